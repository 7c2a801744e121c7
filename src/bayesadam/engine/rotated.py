"""Element-wise rules in rotated coordinates, where the posterior of a weight matrix is a product.

For a weight matrix with the bases ``L`` and ``R`` the rule sees ``L' M R`` in place of the mean ``M``, ``L' G R`` in
place of the gradient, and draws its noise there; weights and means are turned back. ``state[p]["rotated"]`` is the mean
in these coordinates, and ``state[p]["mean"]`` that of the weights. In drop-in training the latter is brought up to date
when it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam.engine import bases
from bayesadam.engine.bases import COORDINATES, PRIOR
from bayesadam.engine.collection import add_curvature, measurable, tensors_of_slot
from bayesadam.engine.gradients import Gradients, Updated
from bayesadam.engine.passes import Pass, follow_, per_weight_of, statics_of
from bayesadam.engine.run import Draw, Job, Plan, Runner, Walk, tensors_of
from bayesadam.engine.store import NumbersCache, Slot, Store, hyper
from bayesadam.engine.weights import Weights
from bayesadam.functional import eigenbasis
from bayesadam.sharding import is_sharded


class RotatedStore(Store):
    """Keeps bases with every weight matrix."""

    def start_rule(self, slot: Slot, state: dict[str, Any]) -> None:
        """Set the initial state, as in the base class; the first bases are those of the weights themselves."""
        sizes = bases.rotated_sides(slot.parameter, slot.group)
        if not sizes:
            super().start_rule(slot, state)
            return
        mean = state["mean"].contiguous()
        state[COORDINATES] = mean.clone()
        state.update(self.rule.init(state[COORDINATES], hyper(slot.group, state, state)))
        for side, size in sizes.items():
            state[side] = eigenbasis.identity(size, bases.rank_of(size, slot.group), mean)
            state[f"{side}_factor"] = mean.new_zeros(size, size)
        if isinstance(state.get("prior_precision"), Tensor):
            state[PRIOR] = state["prior_precision"].clone(memory_format=torch.contiguous_format)

    def eigenvalues(self, slot: Slot, state: Mapping[str, Any]) -> Tensor:
        """Posterior variances in the coordinates of the bases."""
        return super().variance(slot, {**state, "prior_precision": state[PRIOR]} if PRIOR in state else state)

    def variance(self, slot: Slot, state: Mapping[str, Any]) -> Tensor:
        """Posterior variances of the weights, as in the base class."""
        found = self.eigenvalues(slot, state)
        return bases.marginal(found, state) if bases.is_rotated(state) else found

    def check_loaded(self) -> None:
        """Check a loaded state, as in the base class: every matrix has the bases that its group asks for."""
        for slot in self.slots():
            if slot.parameter not in self.owner.state:
                continue
            state = self.state_of(slot)
            sizes = bases.rotated_sides(slot.parameter, slot.group)
            expected = {
                side: eigenbasis.identity(size, bases.rank_of(size, slot.group), state["mean"]).shape
                for side, size in sizes.items()
            }
            found = {
                side: basis.shape for side, basis in zip(bases.SIDES, bases.of(state), strict=True) if basis is not None
            }
            if found != expected or bases.is_rotated(state) != bool(sizes):
                raise ValueError(
                    f"the state of parameter {self.name_of(slot.parameter)} must have bases of the shapes "
                    f"{ ({side: tuple(shape) for side, shape in expected.items()}) }, "
                    f"got { ({side: tuple(shape) for side, shape in found.items()}) }"
                )


class RotatedWeights(Weights):
    """Draws ``M + L (sigma * eps) R'``."""

    store: RotatedStore

    def __init__(self, store: RotatedStore, runner: Runner) -> None:
        super().__init__(store, runner)
        self._outdated: dict[Tensor, None] = {}

    def _move(self, moved: Mapping[Tensor, Tensor]) -> None:
        """Handle parameters that were replaced by others, which must not be shards of them."""
        if any(is_sharded(parameter) for parameter in moved.values()):
            raise RuntimeError("parameters in rotated coordinates must not be sharded, got shards in place of one")
        super()._move(moved)
        self._outdated = {moved.get(parameter, parameter): None for parameter in self._outdated}

    def outdate(self, parameters: Iterable[Tensor]) -> None:
        """Record that the rotated means of some parameters have changed, and those of the weights have not."""
        self._outdated.update(dict.fromkeys(parameters))

    @torch.no_grad()
    def bring_up_to_date(self, parameters: Iterable[Tensor]) -> None:
        """Compute the means of the weights from the rotated ones where they are out of date."""
        for parameter in parameters:
            if parameter in self._outdated:
                state = self._states[parameter]
                state["mean"].copy_(bases.out(state[COORDINATES], state))
                self._outdated.pop(parameter)

    def adopt(self, slot: Slot) -> None:
        """Take the values of a parameter as the mean, if they are not that mean already."""
        state = self.store.state_of(slot)
        mean = state["mean"]
        if mean.dtype == slot.parameter.dtype and torch.equal(mean, slot.parameter):
            return
        found = mean.clone()
        follow_(found, slot.parameter)
        if not torch.equal(found, mean):
            mean.copy_(found)
            state[COORDINATES].copy_(bases.into(found, state))

    def add(self, plan: Plan, slots: Sequence[Slot], draw: Draw, numbers: NumbersCache) -> None:
        """Plan a sample, as in the base class."""
        turned = [slot for slot in slots if bases.is_rotated(self.store.state_of(slot))]
        known = set(map(id, turned))
        super().add(plan, [slot for slot in slots if id(slot) not in known], draw, numbers)
        if not turned:
            return
        adopted = [slot for slot, holds in zip(turned, self.holding(turned), strict=True) if not holds]

        def take(mark: int) -> None:
            for slot in adopted:
                self.adopt(slot)
            plan.done.fill_(mark)

        def write(mark: int) -> None:
            states = [self.store.state_of(slot) for slot in turned]
            drawn = [self.buffer("sample", slot, state) for slot, state in zip(turned, states, strict=True)]
            self._draw(turned, drawn, draw, numbers)
            targets = [slot.parameter for slot in turned]
            values = [bases.out(value, state) for value, state in zip(drawn, states, strict=True)]
            torch._foreach_copy_([*targets, plan.done], [*values, torch.tensor(mark)])

        if adopted:
            plan.add(take)
        plan.add(write, [slot.parameter for slot in turned])

    def _draw(self, slots: Sequence[Slot], targets: Sequence[Tensor], draw: Draw, numbers: NumbersCache) -> None:
        """Write samples in the coordinates of the bases."""
        rule, jobs = self.store.rule, []
        for slot, target in zip(slots, targets, strict=True):
            state = self.store.state_of(slot)
            work = Pass(rule, "sample", statics_of(rule, slot.group), per_weight=per_weight_of(state))
            tensors = {**tensors_of(work, target, state), **bases.rotated(state, work)}
            told, _ = numbers.of(slot.group, state)
            jobs.append(Job(work, slot.index, target, state, tensors, told))
        plan = Plan()
        Walk(jobs, self.runner, compiles=self.store.first["compile"]).add(plan, {"next_eps": draw, "eps": draw})
        plan.run()

    def buffer(self, name: str, slot: Slot, state: Mapping[str, Any]) -> Tensor:
        """A tensor like a parameter's mean, with any values; it is the same one whenever the name is."""
        mean = state[COORDINATES]
        flat = self.runner.scratch.get(f"{name} {slot.index}", mean.numel(), mean.dtype, mean.device)
        return flat.view(mean.shape)

    def _copy_means(self, parameters: Sequence[Tensor]) -> None:
        self.bring_up_to_date(parameters)
        super()._copy_means(parameters)

    def _overwritten(self, sample: int, among: Iterable[Tensor] | None = None) -> Iterator[tuple[Slot, Tensor]]:
        if any(parameter._version != version for parameter, version in self._versions.items()):
            self.bring_up_to_date(list(self._outdated))
        return super()._overwritten(sample, among)

    def _rewrite(self, slot: Slot, sample: int) -> None:
        """Write the sample again, from the mean of the weights if that was changed."""
        state = self.store.state_of(slot)
        if bases.is_rotated(state) and not torch.equal(bases.out(state[COORDINATES], state), state["mean"]):
            state[COORDINATES].copy_(bases.into(state["mean"], state))
        super()._rewrite(slot, sample)

    def unkept_means(self) -> dict[Tensor, Tensor]:
        """None, since all means are brought up to date in the state."""
        self.bring_up_to_date(list(self._outdated))
        return super().unkept_means()

    def mean_of(self, parameter: Tensor) -> Tensor:
        """The mean of a parameter, as in the base class."""
        self.bring_up_to_date([parameter])
        return super().mean_of(parameter)


class RotatedGradients(Gradients):
    """Steps in the coordinates of the bases, and the computation of new bases."""

    resamples = False
    store: RotatedStore
    weights: RotatedWeights

    def _keep(self, trained: Sequence[Slot], share: float) -> None:
        """Average a sample's curvature into the one that is kept, as in the base class."""
        fresh: dict[Tensor, Tensor] = {}
        samples = []
        for slot in measurable(self.weights, trained):
            parameter, state = slot.parameter, self.store.state_of(slot)
            if parameter not in self._curvature:
                fresh[parameter] = torch.zeros_like(state["hessian"])
            kept = fresh[parameter] if parameter in fresh else self._curvature[parameter]
            samples.append((slot, self._turned(slot, state), kept))
        add_curvature(self.weights, samples, self.collected, share, signed=True, tensors=self._tensors)
        self._curvature.update(fresh)

    def _turned(self, slot: Slot, state: Mapping[str, Any]) -> Tensor:
        """The gradient, in the coordinates of the bases if there are any."""
        grad = self.store.dense_gradient(slot.parameter)
        if not bases.is_rotated(state):
            return grad
        return bases.into(grad.detach().to(state["mean"].dtype), state)

    def _tensors(self, work: Pass, slot: Slot, state: Mapping[str, Any], **others: Tensor) -> dict[str, Tensor]:
        """The tensors that a pass works on."""
        found = tensors_of_slot(work, slot, state, **others)
        return {**found, **bases.rotated(state, work)} if bases.is_rotated(state) else found

    def _add_updates(
        self, plan: Plan, draws: Mapping[str, Draw], numbers: NumbersCache, drop_in: bool
    ) -> list[Updated]:
        """Add the updates to a plan; return the parameters that they change."""
        trained, _ = self._gradients()
        factors = self._curvature_factors(trained) if self.keeps_curvature else {}
        states = [self.store.state_of(slot) for slot in trained]
        turned = [(slot, state) for slot, state in zip(trained, states, strict=True) if bases.is_rotated(state)]
        jobs, changed = [], []
        grads: dict[Tensor, Tensor] = {}
        for slot, state in zip(trained, states, strict=True):
            grad = self.store.dense_gradient(slot.parameter)
            if bases.is_rotated(state):
                grad = grads[slot.parameter] = self.weights.buffer("gradient", slot, state)
            plain, after = numbers.of(slot.group, state)
            sign = -1.0 if slot.group["maximize"] else 1.0
            told = numbers.scaled(plain, sign * self._factor, factors.get(slot.parameter, 1.0))
            work = self._update(slot, state)
            kept = {"kept": self._curvature[slot.parameter]} if work.kept else {}
            tensors = self._tensors(work, slot, state, grad=grad, **kept)
            if PRIOR in state:
                tensors["prior_mean"] = self.weights.buffer("prior", slot, state)
            jobs.append(Job(work, slot.index, slot.parameter, state, tensors, told))
            changed.append((slot, state, after))

        def turn(mark: int) -> None:
            for slot, state in turned:
                if not self.weights.holds_sample(slot.parameter):
                    self.weights.adopt(slot)
                grads[slot.parameter].copy_(self._turned(slot, state))
                if PRIOR in state:
                    self.weights.bring_up_to_date([slot.parameter])
                    self.weights.buffer("prior", slot, state).copy_(bases.prior_mean(state))
            plan.done.fill_(mark)

        def collect(mark: int) -> None:
            targets: list[Tensor] = []
            values: list[Tensor] = []
            for slot, state in turned:
                step = int(state["step"]) + 1
                if bases.collects(slot.group, step):
                    sign = -self._factor if slot.group["maximize"] else self._factor
                    found = bases.collected(state, sign * grads[slot.parameter], slot.group, step)
                    targets += [state[name] for name in found]
                    values += found.values()
            torch._foreach_copy_([*targets, plan.done], [*values, torch.tensor(mark)])

        def refresh(mark: int) -> None:
            targets: list[Tensor] = []
            values: list[Tensor] = []
            for slot, state in turned:
                if bases.refreshes(slot.group, int(state["step"]) + 1):
                    found = bases.refreshed(state, slot.group)
                    targets += [state[name] for name in found]
                    values += found.values()
            torch._foreach_copy_([*targets, plan.done], [*values, torch.tensor(mark)])

        def turn_back(mark: int) -> None:
            moved = [slot for slot, _ in turned if float(slot.group["lr"]) != 0]
            self.weights.outdate(slot.parameter for slot in moved)
            for slot in moved:
                if not self.weights.holds_sample(slot.parameter):
                    self.weights.bring_up_to_date([slot.parameter])
                    slot.parameter.copy_(self.store.state_of(slot)["mean"])
            plan.done.fill_(mark)

        if turned:
            plan.add(turn)
            plan.add(collect)
        Walk(jobs, self.weights.runner, compiles=self.store.first["compile"]).add(plan, draws)
        if turned:
            plan.add(refresh)
            plan.add(turn_back)
        return changed

    def _update(self, slot: Slot, state: Mapping[str, Any]) -> Pass:
        """The update of a parameter; that of a matrix does not touch its weights."""
        rule, keeps = self.store.rule, self.keeps_curvature
        return Pass(
            rule,
            "update",
            statics_of(rule, slot.group),
            holds_mean=not bases.is_rotated(state) and not self.weights.holds_sample(slot.parameter),
            given=keeps,
            noisy=rule.needs_noise and not keeps and self.weights.sampled([slot])[0],
            per_weight=per_weight_of(state),
            kept=slot.parameter in self._curvature,
        )
