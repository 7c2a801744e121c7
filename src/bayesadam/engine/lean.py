"""``low_memory=True``: means that are not stored while the weights hold a sample, but recomputed from it and its
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam.engine.passes import Pass, per_weight_of, statics_of
from bayesadam.engine.run import Draw, Job, Plan, Runner, Walk, tensors_of
from bayesadam.engine.store import NumbersCache, Slot, Store, widths_in
from bayesadam.sharding import local

_PRINTED = 16


class Lean:
    """The parameters whose mean in the state shares the memory of the weights, so that it takes none.

    While the weights hold the mean, nothing is different. While they hold a sample, the mean is ``theta - sigma *
    eps``, with the sample's noise and the width with which it was drawn. Parameters of less than float32 keep their
    mean, since a sample of few bits does not determine it.

    Args:
        store: Groups and state of the optimiser.
        runner: Runs the passes.

    Attributes:
        held: These parameters, once a sample was put into them.
        draw: Noise of the sample that they hold.
    """

    def __init__(self, store: Store, runner: Runner) -> None:
        self.store = store
        self.runner = runner
        self.held: dict[Tensor, Slot] = {}
        self.draw: Draw | None = None
        self._groups: dict[int, dict[str, Any]] = {}
        self._prints: dict[Tensor, Tensor] = {}
        self._restoring: Plan | None = None

    def begin(self, draw: Draw) -> None:
        """Share memory where possible, before a sample is put into weights that hold the mean."""
        self.held, self._prints, self.draw, self._restoring = {}, {}, draw, None
        if not self.store.first["low_memory"]:
            return
        for slot in self.store.slots():
            parameter = slot.parameter
            if slot.noisy and self.store.state_of(slot)["mean"].dtype == parameter.dtype:
                self.held[parameter] = slot
                self._share(parameter)
        self._groups = self._widths()

    def settle(self, written: Container[Tensor], draw: Draw | None, *, drop_in: bool) -> None:
        """Record that samples were drawn for these parameters, by ``draw`` if it differs from the one at the
        beginning.
        """
        if not self.store.first["low_memory"]:
            return
        for slot in self.store.slots():  # one that was frozen for a while was given its mean, and holds a sample again
            if slot.parameter in written and slot.parameter not in self.held and self._is_shared(slot.parameter):
                self.held[slot.parameter] = slot
        if draw is not None:
            self.draw, self._groups = draw, self._widths()
        if drop_in:
            self.remember(self.held)

    def changed(self) -> bool:
        """Whether a hyper-parameter that affects the width was changed since the sample was drawn."""
        return bool(self.held) and self._groups != self._widths()

    @torch.inference_mode(False)
    @torch.no_grad()
    def means(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Their means, new tensors."""
        found = [torch.zeros_like(parameter, requires_grad=False) for parameter in parameters]
        self._run("recover", parameters, found).run()
        return found

    @torch.inference_mode(False)
    @torch.no_grad()
    def restore(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Replace the sample of these parameters by their means, which are returned; completed even if it is
        interrupted.
        """
        if not parameters:
            return []
        self._restoring = plan = self._run("restore", parameters, [self._share(parameter) for parameter in parameters])
        try:
            plan.run()
        finally:
            self.finish()
        return plan.written()

    def finish(self) -> None:
        """Record which samples :meth:`restore` has replaced, if it was interrupted before it had done so: a second
        subtraction of the noise would give wrong means.
        """
        if self._restoring is not None:
            for parameter in self._restoring.written():
                self.forget(parameter)
            self._restoring = None

    def forget(self, parameter: Tensor) -> None:
        """Record that a parameter holds no sample."""
        self.held.pop(parameter, None)
        self._prints.pop(parameter, None)

    def move(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Record that parameters were replaced by others."""
        slots: dict[Tensor, Slot] = {slot.parameter: slot for slot in self.store.slots()}
        self.held = {moved.get(p, p): slots[moved.get(p, p)] for p in self.held}
        self._prints = {p: found for p, found in self._prints.items() if p not in moved}
        for parameter in self.held:
            self._share(parameter)

    def remember(self, parameters: Iterable[Tensor]) -> None:
        """Record a few elements of the parameters, by which external changes are detected."""
        self._prints.update({parameter: _some(parameter).clone() for parameter in parameters})

    def is_unchanged(self, parameter: Tensor) -> bool:
        """Whether those elements still have the recorded values."""
        known = self._prints.get(parameter)
        return known is not None and torch.equal(known, _some(parameter))

    def kept(self) -> Callable[[], None]:
        """Return a function that restores the present state."""
        known = dict(self.held), self.draw, self._groups, dict(self._prints)

        def put_back() -> None:
            self.held, self.draw, self._groups, self._prints = known
            for parameter in self.held:
                self._share(parameter)

        return put_back

    def _share(self, parameter: Tensor) -> Tensor:
        """Make the mean in the state share the memory of the weights at its present place."""
        state = self.store.owner.state[parameter]
        if not self._is_shared(parameter):
            state["mean"] = parameter.detach()
        mean: Tensor = state["mean"]
        return mean

    def _is_shared(self, parameter: Tensor) -> bool:
        mean = self.store.owner.state[parameter]["mean"]
        shared: bool = local(mean).data_ptr() == local(parameter).data_ptr() and mean.dtype == parameter.dtype
        return shared

    def _run(self, kind: str, parameters: Sequence[Tensor], means: Sequence[Tensor]) -> Plan:
        rule, jobs, numbers = self.store.rule, [], NumbersCache(self.store.rule)
        groups = {id(group): {**group, **self._groups.get(id(group), {})} for group in self.store.owner.param_groups}
        for parameter, mean in zip(parameters, means, strict=True):
            slot, state = self.held[parameter], self.store.owner.state[parameter]
            group = groups[id(slot.group)]
            work = Pass(rule, kind, statics_of(rule, group), per_weight=per_weight_of(state))
            told, _ = numbers.of(group, state)
            tensors = {**tensors_of(work, parameter, state), "mean": local(mean)}
            jobs.append(Job(work, slot.index, parameter, state, tensors, told))
        plan = Plan()
        assert self.draw is not None
        Walk(jobs, self.runner, compiles=self.store.first["compile"]).add(plan, {"eps": self.draw})
        return plan

    def _widths(self) -> dict[int, dict[str, Any]]:
        """Entries of each group that may affect the width."""
        groups = self.store.owner.param_groups
        return {id(group): widths_in(group) for group in groups}


def _some(parameter: Tensor) -> Tensor:
    """A few elements of the local part of a parameter."""
    flat = local(parameter.detach()).reshape(-1)
    return flat[:: max(1, flat.numel() // _PRINTED)]
