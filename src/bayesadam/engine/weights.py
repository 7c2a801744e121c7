"""Putting posterior samples into the weights and the mean back, such that an interruption at any point loses
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam.engine.lean import Lean
from bayesadam.engine.passes import Pass, per_weight_of, statics_of
from bayesadam.engine.run import Draw, Job, Plan, Runner, Walk, tensors_of
from bayesadam.engine.store import NumbersCache, Slot, Store
from bayesadam.sharding import local, rank_and_size

MEAN, BLOCK, TRAIN = "mean", "block", "train"
"""What the weights hold, as the groups' ``"weights"`` says: the mean, which is then authoritative (the state's follows
it); or a sample, inside a block or after ``train()``, and then the state's mean is authoritative."""


class Weights:
    """Transient record of the parameters that hold a sample, and of external changes to them.

    Args:
        store: Groups and state of the optimiser.
        runner: Runs the passes.
    """

    def __init__(self, store: Store, runner: Runner) -> None:
        self.store = store
        self.runner = runner
        self._written: dict[Tensor, None] = {}
        self._versions: dict[Tensor, int] = {}
        self._groups: dict[int, dict[str, Any]] = {}
        self._walk: tuple[Any, list[Slot], Walk] | None = None
        self.lean = Lean(store, runner)
        store.moved = self._move

    def _move(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Handle parameters that were replaced by others, whose values must be compared."""
        self._written = {moved.get(parameter, parameter): None for parameter in self._written}
        self.lean.move(moved)
        self._versions = {moved.get(p, p): -1 if p in moved else version for p, version in self._versions.items()}

    @property
    def held(self) -> str:
        """``MEAN``, ``BLOCK`` or ``TRAIN``."""
        held: str = self.store.first["weights"]
        return held

    @property
    def written(self) -> list[Tensor]:
        """Which parameters hold a sample."""
        return list(self._written)

    def resume(self, written: Sequence[Tensor] | None) -> None:
        """Set which parameters hold a sample: those of the original in a copy, or all possible ones after loading."""
        if self.held == MEAN:
            return
        if written is None:
            written = [slot.parameter for slot in self.store.slots() if slot.noisy and slot.parameter in self._states]
        self._written = dict.fromkeys(written)
        if self.held == TRAIN:
            self._remember_versions()

    def holds_sample(self, parameter: Tensor) -> bool:
        """Whether a parameter holds a sample at this moment."""
        return self.held != MEAN and parameter in self._written

    def holding(self, slots: Sequence[Slot]) -> list[bool]:
        """Whether each parameter holds a sample; the others hold their mean, which is authoritative."""
        if self.held == MEAN:
            return [False] * len(slots)
        return [slot.parameter in self._written for slot in slots]

    def sampled(self, slots: Sequence[Slot]) -> list[bool]:
        """Whether each gradient of this step was taken at a sample of its parameter, whose noise tells the curvature.

        Blocks draw a sample of every perturbed parameter; in drop-in training, one that was frozen or not perturbed
        when the last sample was drawn holds its mean.
        """
        inside = self.held != MEAN
        return [bool(slot.group["perturb"]) and (not inside or slot.parameter in self._written) for slot in slots]

    def draw(self, sample: int, *, ahead: int = 0) -> Draw:
        """The noise of a sample of this step, or of a step ``ahead`` of it."""
        first = self.store.first
        if first["rank_samples"]:
            rank, size = rank_and_size()
            sample = sample * size + rank
        return Draw(first["seed"], first["noise_step"] + ahead, sample, first["antithetic"])

    @torch.inference_mode(False)  # tensors that are made here must be usable in training
    @torch.no_grad()
    def perturb(self, sample: int, then: str, *, among: Container[Tensor] | None = None) -> None:
        """Put a sample into the weights, of all perturbed parameters or of those ``among`` them, and set their state
        to ``then``; if this fails, they hold the mean again.
        """
        if self.held == BLOCK:  # a checkpoint or a copy that was made inside a block, or an interrupted end of one
            self.restore()
        before = self._written
        if self.held == MEAN:
            self.lean.begin(self.draw(sample))
        slots = [slot for slot in self.store.slots() if slot.noisy and (among is None or slot.parameter in among)]
        plan = self.plan(slots, sample)
        try:
            plan.run()
            self.settle(plan.written(), then)
        except BaseException:
            self._written = {**before, **dict.fromkeys(plan.written())}
            self.restore()
            raise

    def plan(self, slots: Sequence[Slot], sample: int, *, again: bool = False) -> Plan:
        """Steps that put a sample into parameters; the mean of those that hold it is first copied to the state.

        With ``again`` it is the sample that they already held, of the width with which it was drawn.
        """
        plan = Plan()
        numbers = NumbersCache(self.store.rule, self._groups if again else {})
        self.add(plan, slots, self.draw(sample), numbers)
        return plan

    def add(self, plan: Plan, slots: Sequence[Slot], draw: Draw, numbers: NumbersCache) -> None:
        """Add those steps to a plan."""
        if not slots:
            return
        rule, compiles = self.store.rule, self.store.first["compile"]
        holds, lean = self.holding(slots), self.lean.held
        recovers = [own and slot.parameter in lean for own, slot in zip(holds, slots, strict=True)]
        key = (compiles, holds, recovers, tuple(statics_by_group(self.store)))
        known = self._walk
        if known is None or known[:2] != (key, slots) or not known[2].fits(()):
            jobs = []
            for slot, own, recovered in zip(slots, holds, recovers, strict=True):
                state = self.store.state_of(slot)
                work = Pass(
                    rule,
                    "sample",
                    statics_of(rule, slot.group),
                    holds_mean=not own,
                    recovers=recovered,
                    per_weight=per_weight_of(state),
                )
                tensors = tensors_of(work, slot.parameter, state)
                told, _ = numbers.of(slot.group, state)
                jobs.append(Job(work, slot.index, slot.parameter, state, tensors, told))
            known = self._walk = (key, list(slots), Walk(jobs, self.runner, compiles=compiles))
        walk = known[2]
        for job, slot in zip(walk.jobs, slots, strict=True):
            job.numbers, _ = numbers.of(slot.group, job.state)
        walk.add(plan, {"next_eps": draw, "eps": self.lean.draw or draw})

    def settle(self, written: Iterable[Tensor], then: str, draw: Draw | None = None) -> None:
        """Record that exactly these parameters hold a sample; parameters frozen since the last one get their mean
        back.
        """
        chosen = dict.fromkeys(written)
        self._copy_means([parameter for parameter in self._written if parameter not in chosen])
        self._written = chosen
        self.lean.settle(chosen, draw, drop_in=then == TRAIN)
        self.store.set_all("weights", then)
        if then == TRAIN:  # what the user changes before the next sample does not change the width of this one
            self._groups = {id(group): group.copy() for group in self.store.owner.param_groups}
        self._remember_versions()
        torch.clear_autocast_cache()

    def refresh(self) -> None:
        """Draw the sample of drop-in training again, if means are recomputed from it and its width has changed."""
        if self.held == TRAIN and self.lean.changed():
            held = dict(self._written)  # a copy, since restoring empties it
            self.restore()
            self.perturb(0, TRAIN, among=held)

    @torch.no_grad()
    def restore(self) -> None:
        """Put the mean back wherever a sample was written; completed even if it is interrupted once."""
        try:
            self._restore()
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        self._copy_means(list(self._written))
        self._written, self._versions = {}, {}
        self.lean.held = {}
        self.store.set_all("weights", MEAN)
        torch.clear_autocast_cache()

    def _copy_means(self, parameters: Sequence[Tensor]) -> None:
        self.lean.finish()
        held, kept = self.lean.held, parameters
        if held:
            kept = [parameter for parameter in parameters if parameter not in held]
            for parameter in self.lean.restore([parameter for parameter in parameters if parameter in held]):
                self._written.pop(parameter, None)
        if kept and not (self._walk is not None and self._walk[2].copy_means(kept)):
            means = [local(self._states[parameter]["mean"]) for parameter in kept]
            torch._foreach_copy_([local(parameter) for parameter in kept], means)

    def rebuild(self) -> None:
        """Set the weights after loading as the loaded groups say, from the loaded mean."""
        loaded, written = self.held, self._written
        if loaded != MEAN:
            self.restore()
            if loaded == TRAIN:
                self.perturb(0, TRAIN)
            else:  # the model may be loaded later, with the block's sample
                self._written = written
            self.store.set_all("weights", loaded)

    @torch.no_grad()
    def kept(self) -> Callable[[], None]:
        """Copy all weights; return a function that restores them and the record of samples."""
        held, written, known, groups = self.held, dict(self._written), self._versions, self._groups
        copies = [(local(slot.parameter), local(slot.parameter).clone()) for slot in self.store.slots()]
        lean = self.lean.kept()
        foreign = [parameter for parameter, version in known.items() if local(parameter)._version != version]

        @torch.no_grad()
        def put_back() -> None:
            for parameter, copy in copies:
                parameter.copy_(copy)
            self.store.set_all("weights", held)
            self._written, self._groups = written, groups
            lean()
            self._remember_versions()
            self._versions.update(dict.fromkeys(foreign, -1))

        return put_back

    @torch.inference_mode(False)
    @torch.no_grad()
    def reconcile(
        self, sample: int, *, allow_mean: bool = False, adopt: bool = False, among: Iterable[Tensor] | None = None
    ) -> None:
        """Handle parameters that were modified externally while they held a posterior sample, for example by loading a
        checkpoint.

        The same sample is accepted. If ``allow_mean``, the mean is replaced by the sample; if ``adopt``, any other
        value becomes the new mean. Otherwise an error is raised, since the step would use a gradient at other weights.
        """
        for slot, found in self._overwritten(sample, among):
            weights, mean = local(slot.parameter), local(self._states[slot.parameter]["mean"])
            if slot.parameter in self.lean.held and (allow_mean or adopt):  # its mean is no longer known
                self._written.pop(slot.parameter)
                self.plan([slot], sample, again=True).run()
                self._written[slot.parameter] = None
                self._versions[slot.parameter] = weights._version
                self.lean.remember([slot.parameter])
                continue
            if allow_mean and torch.equal(found, mean.to(found.dtype)):
                continue
            if not adopt:
                weights.copy_(found)
                raise RuntimeError(
                    f"parameter {self.store.name_of(slot.parameter)} must hold the sample that train() drew, "
                    "got other values: call train() after loading a checkpoint, and eval() before changing weights "
                    "(a call of eval() now takes the changed values as the mean)"
                )
            mean.copy_(found)
            self._rewrite(slot, sample)

    @torch.inference_mode(False)
    @torch.no_grad()
    def release(self) -> list[Tensor]:
        """End drop-in training: put the mean back, except where weights were modified externally; these values become
        the mean.

        Returns:
            The parameters that were modified externally.
        """
        others: list[Tensor] = []
        for slot, found in self._overwritten(0):
            mean = local(self._states[slot.parameter]["mean"])
            if slot.parameter in self.lean.held or not torch.equal(found, mean.to(found.dtype)):
                local(slot.parameter).copy_(found)
                others.append(slot.parameter)
        for other in others:
            self._written.pop(other, None)
            self.lean.forget(other)
        self.restore()
        return others

    def _overwritten(self, sample: int, among: Iterable[Tensor] | None = None) -> Iterator[tuple[Slot, Tensor]]:
        """Parameters that were modified externally while they held a sample, and their values.

        The sample is written to them again.
        """
        candidates = self._versions if among is None else self._versions.keys() & set(among)
        changed = {p for p in candidates if local(p)._version != self._versions[p]}
        if not changed:
            return
        for slot in list(self.store.slots()):
            if slot.parameter in changed:
                weights = local(slot.parameter)
                found = weights.clone()
                if slot.parameter in self.lean.held:
                    if not self.lean.is_unchanged(slot.parameter):
                        yield slot, found
                    self._versions[slot.parameter] = weights._version
                    continue
                try:
                    self._rewrite(slot, sample)
                except BaseException:
                    weights.copy_(found)
                    raise
                if not torch.equal(weights, found):
                    yield slot, found

    def _rewrite(self, slot: Slot, sample: int) -> None:
        self.plan([slot], sample, again=True).run()
        self._versions[slot.parameter] = local(slot.parameter)._version

    def _remember_versions(self) -> None:
        self._versions = {parameter: local(parameter)._version for parameter in self._written}

    def unkept_means(self) -> dict[Tensor, Tensor]:
        """Means that are not stored at this moment, computed from the sample in the weights."""
        lean = [parameter for parameter in self.lean.held if self.holds_sample(parameter)]
        return dict(zip(lean, self.lean.means(lean), strict=True)) if lean else {}

    def mean_of(self, parameter: Tensor) -> Tensor:
        """The mean of a parameter that has a state, whether the weights hold the mean or a sample; it must not be
        changed.
        """
        if parameter in self.lean.held and self.holds_sample(parameter):
            return self.lean.means([parameter])[0]
        mean: Tensor = self._states[parameter]["mean"]
        return mean

    @property
    def _states(self) -> Mapping[Tensor, dict[str, Any]]:
        states: Mapping[Tensor, dict[str, Any]] = self.store.owner.state
        return states


def statics_by_group(store: Store) -> list[Any]:
    """Static options of the passes of every group; if they have not changed, neither have the passes."""
    return [(group["perturb"], statics_of(store.rule, group)) for group in store.owner.param_groups]
