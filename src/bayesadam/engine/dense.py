"""One Gaussian over all weights together, where the Hessian is a matrix, and samples and steps are not element-wise.

``S`` is kept row by row with the parameters: ``state[p]["hessian"]`` has the rows of ``p`` and the columns of all
parameters that were trainable when the optimiser was made, in order. Parameters that are frozen later are held at their
means; the posterior of the others is then the conditional one, whose precision is a submatrix. The matrix and all
algebra are float64 for parameters of any dtype: in float32 a precision whose eigenvalues span seven orders of magnitude
need not be positive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.engine.collection import Hidden, measurable
from bayesadam.engine.gradients import Gradients, Updated
from bayesadam.engine.passes import follow_
from bayesadam.engine.run import Draw, Plan, Runner
from bayesadam.engine.sources import CurvatureSource, HessianSource
from bayesadam.engine.store import NumbersCache, Slot, Store, hyper
from bayesadam.engine.weights import MEAN, Weights
from bayesadam.functional import hessian


def layout(groups: Sequence[dict[str, Any]]) -> int:
    """Write the first column of each parameter into its group, -1 for frozen ones; return the number of columns."""
    total = 0
    for group in groups:
        group["columns"] = []
        for parameter in group["params"]:
            group["columns"].append(total if parameter.requires_grad else -1)
            total += parameter.numel() if parameter.requires_grad else 0
    return total


class DenseStore(Store):
    """Keeps rows of the matrix with every parameter."""

    def start_rule(self, slot: Slot, state: dict[str, Any]) -> None:
        """Set the initial state, as in the base class; the Hessian has rows."""
        super().start_rule(slot, state)
        diagonal = state["hessian"].flatten()
        start = slot.group["columns"][slot.index - slot.group["noise_index"]]
        rows = diagonal.new_zeros(len(diagonal), self.width, dtype=torch.float64)
        if start >= 0:
            rows.diagonal(start).copy_(diagonal)
        state["hessian"] = rows

    def check_loaded(self) -> None:
        """Check a loaded state, as in the base class; rows that a hook gave to other parameters do not fit the
        columns.
        """
        if not self._fits():
            raise ValueError(
                "the Hessian of the state_dict must be a precision matrix, got one that is not positive definite (with "
                "covariance='full' the parameters must be in the order in which they were saved)"
            )

    def _fits(self) -> bool:
        """Whether the columns are those of the parameters one after another, and the matrix is a precision."""
        starts = [at for group in self.owner.param_groups for at in group["columns"]]
        columns = [(at, slot) for at, slot in zip(starts, self.slots(), strict=True) if at >= 0]
        total = 0
        for at, slot in columns:
            if at != total:
                return False
            total += slot.parameter.numel()
        slots = [slot for _, slot in columns if slot.parameter in self.owner.state]
        if any(self.state_of(slot)["hessian"].shape != (slot.parameter.numel(), total) for slot in slots):
            return False
        if not slots:
            return True
        matrix = self.precision(slots)
        scale = float(matrix.abs().max())
        symmetric = torch.allclose(matrix, matrix.mT, rtol=1e-6, atol=1e-9 * scale)
        return symmetric and not torch.linalg.cholesky_ex(matrix).info.item()

    @property
    def width(self) -> int:
        """The number of columns."""
        groups = self.owner.param_groups
        return sum(p.numel() for g in groups for p, at in zip(g["params"], g["columns"], strict=True) if at >= 0)

    def hessian(self, slots: Sequence[Slot]) -> Tensor:
        """``S`` of some parameters, in float64."""
        wanted = positions(slots)
        rows = [self.state_of(slot)["hessian"] for slot in slots]
        return torch.cat([part[:, wanted.to(part.device)] for part in rows])

    def prior(self, slots: Sequence[Slot]) -> Tensor:
        """``lambda`` at every weight, in float64."""
        parts = []
        for slot in slots:
            state = self.state_of(slot)
            value = hyper(slot.group, state, state)["prior_precision"]
            value = torch.as_tensor(value, dtype=torch.float64, device=slot.parameter.device)
            parts.append(value.expand(slot.parameter.shape).flatten())
        return torch.cat(parts)

    def precision(self, slots: Sequence[Slot]) -> Tensor:
        """``N (S + lt I)``; without the prior's part at ``tau = 0``."""
        scaled: Tensor = self.first["num_data"] * self.hessian(slots)
        return scaled + torch.diag(self.prior(slots) * (self.first["temperature"] > 0))


def positions(slots: Sequence[Slot]) -> Tensor:
    """The columns of some parameters, one after another.

    Raises:
        RuntimeError: One of them was frozen when the optimiser was made.
    """
    parts = []
    for slot in slots:
        column = slot.group["columns"][slot.index - slot.group["noise_index"]]
        if column < 0:
            raise RuntimeError(
                f"parameter number {slot.index} must be trainable when the optimiser is made with covariance='full', "
                "got one that was frozen then"
            )
        parts.append(torch.arange(slot.parameter.numel()) + column)
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def _parts(joined: Tensor, slots: Sequence[Slot]) -> Sequence[Tensor]:
    """The rows that belong to each of the parameters that were joined."""
    return torch.split(joined, [slot.parameter.numel() for slot in slots])


class DenseWeights(Weights):
    """Draws the weights together: ``theta = mu + L^-T eps``, ``L L^T`` the precision."""

    store: DenseStore

    def __init__(self, store: DenseStore, runner: Runner) -> None:
        super().__init__(store, runner)
        self._drawn: tuple[object, ...] = ()
        self._displacements: dict[Tensor, Tensor] = {}
        self._scores: dict[Tensor, Tensor] = {}

    def scores(self, sample: int) -> dict[Tensor, Tensor]:
        """``P (theta - mu)`` of every weight that has noise in this sample, in float64."""
        self._solve(self.draw(sample))
        return self._scores

    def _solve(self, draw: Draw) -> None:
        drawn = self.held != MEAN and draw.step == self.store.first["noise_step"]
        slots = [s for s in self.store.slots() if (self.holds_sample(s.parameter) if drawn else s.noisy)]
        key = (draw, *(slot.index for slot in slots))
        if self._drawn == key:
            return
        self._drawn, self._displacements, self._scores = (), {}, {}
        if not slots:
            return
        factor, failed = torch.linalg.cholesky_ex(self.store.precision(slots))
        if failed:
            raise FloatingPointError(
                "the posterior precision must be positive definite to draw a sample, got one that is not "
                "(temperature 0 takes the prior's share away, which may have kept it so)"
            )
        normals = torch.empty(len(factor), device=factor.device)
        runs = [(slot.index, 0, slot.parameter.numel(), slot.parameter.numel()) for slot in slots]
        noise.fill_runs(
            normals,
            [run for run in runs if run[2]],
            seed=draw.seed,
            step=draw.step,
            sample=draw.pair,
            scratch=self.runner.scratch,
        )
        eps = normals.double().mul_(-1.0 if draw.negative else 1.0)
        moved = torch.linalg.solve_triangular(factor.mT, eps[:, None], upper=True)[:, 0]
        parameters = [slot.parameter for slot in slots]
        self._displacements = dict(zip(parameters, _parts(moved, slots), strict=True))
        self._scores = dict(zip(parameters, _parts(factor @ eps, slots), strict=True))
        self._drawn = key

    def add(self, plan: Plan, slots: Sequence[Slot], draw: Draw, numbers: NumbersCache) -> None:
        """Plan a sample, as in the base class; for any slots the values are a part of one draw of all weights."""
        parameters = [slot.parameter for slot in slots]
        means = [self.store.state_of(slot)["mean"] for slot in slots]
        holds = self.holding(slots)

        def take(mark: int) -> None:
            for mean, parameter, sampled in zip(means, parameters, holds, strict=True):
                if not sampled:
                    follow_(mean, parameter)
            plan.done.fill_(mark)

        def write(mark: int) -> None:
            self._solve(draw)
            moved = [self._displacements[parameter] for parameter in parameters]
            thetas = [mean + part.view(mean.shape).to(mean.dtype) for mean, part in zip(means, moved, strict=True)]
            torch._foreach_copy_([*parameters, plan.done], [*thetas, torch.tensor(mark)])

        if slots:
            plan.add(take)
            plan.add(write, parameters)


class DenseHessianSource(HessianSource):
    """The whole Hessian of losses that the user passes to the optimiser."""

    store: DenseStore

    def __init__(self, store: DenseStore, collected: Callable[[], int]) -> None:
        super().__init__(store, collected)
        self.matrix: Tensor | None = None

    def discard(self) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        super().discard()
        self.matrix = None

    def backward(self, loss: Tensor) -> None:
        """Part of the :class:`CurvatureSource` protocol."""
        parameters, grads = self.differentiate(loss)
        found = hessian.matrix(grads, parameters).detach().double()
        if self.matrix is None:
            self.matrix = found.new_zeros(self.store.width, self.store.width)
        slots = [slot for slot in self.store.slots() if slot.parameter.requires_grad]
        wanted = positions(slots).to(found.device)
        self.matrix[wanted[:, None], wanted] += found
        self.add_gradients(parameters, grads)

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """None, since a matrix cannot be divided between parameters."""
        return None


class DenseGradients(Gradients):
    """One Newton step with the matrix."""

    resamples = False
    store: DenseStore
    weights: DenseWeights

    def __init__(self, store: DenseStore, weights: DenseWeights, source: CurvatureSource | None) -> None:
        super().__init__(store, weights, source)
        self._matrix: Tensor | None = None
        self._planned: tuple[Tensor, Tensor, list[Slot]] | None = None

    @property
    def keeps_curvature(self) -> bool:
        """Always true, since the whole step must be known before any of it is made."""
        return True

    def discard(self) -> None:
        """Forget the samples collected so far."""
        super().discard()
        self._matrix, self._planned = None, None

    @torch.no_grad()
    def collect(self, hidden: Sequence[Hidden]) -> None:
        """Finish a sample; the mean of the whole Hessian over the samples is kept."""
        share = 1.0 / (self.collected + 1)
        measured = self._measure(self.collected)
        self._matrix = measured if self._matrix is None else self._matrix.lerp_(measured, share)
        super().collect(hidden)

    def _keep(self, trained: Sequence[Slot], share: float) -> None:
        """Measure the one sample of drop-in training; samples of blocks are measured in :meth:`collect`."""
        if self._matrix is None:
            self._matrix = self._measure(0)

    def _measure(self, sample: int) -> Tensor:
        """The Hessian of this sample over all columns; zero where it is not known."""
        width, sign = self.store.width, -1.0 if self.store.first["maximize"] else 1.0
        found = torch.zeros(width, width, dtype=torch.float64, device=self.store.first["params"][0].device)
        if isinstance(self.source, DenseHessianSource):
            return found if self.source.matrix is None else sign * self.source.matrix
        noisy = measurable(self.weights, self.store.trained())
        if noisy:
            wanted = positions(noisy).to(found.device)
            scores = self.weights.scores(sample)
            score = torch.cat([scores[slot.parameter] for slot in noisy])
            outer = 0.5 * sign * torch.outer(score, self._joined_gradient(noisy))
            found[wanted[:, None], wanted] = outer + outer.mT
        return found

    def _joined_gradient(self, slots: Sequence[Slot]) -> Tensor:
        grads = [self.store.dense_gradient(slot.parameter).detach().flatten().double() for slot in slots]
        return torch.cat(grads)

    def ready(self) -> bool:
        """Whether to step; plans the new Hessian, with which the precision must stay positive."""
        if not super().ready():
            return False
        slots = self.store.trained()
        if not slots:
            return True
        assert self._matrix is not None
        if not self._matrix.isfinite().all():
            return self._refuse("the curvature of the loss must be finite")
        first = self.store.first
        rate, tau = 1.0 - first["betas"][1], first["temperature"]
        wanted = positions(slots).to(self._matrix.device)
        rescaled = self._rescaled(slots)
        scale = torch.cat([self._matrix.new_full((s.parameter.numel(),), rescaled[s.parameter]) for s in slots]).sqrt()
        current = self.store.hessian(slots)
        error = tau * current - scale[:, None] * self._matrix[wanted[:, None], wanted] * scale
        if first["hessian"] == "reparameterized":  # there is no estimate for weights without noise
            sampled = zip(slots, self.weights.sampled(slots), strict=True)
            known = torch.cat([scale.new_full((slot.parameter.numel(),), float(noisy)) for slot, noisy in sampled])
            error = known[:, None] * error * known
        prior = self.store.prior(slots) / first["num_data"]
        active = torch.diag(prior * (tau > 0))
        planned = current - rate * error
        if first["correction"] == "elementwise":
            second: Tensor = error @ torch.linalg.solve(current + active, error)
            planned += 0.25 * rate * rate * (second + second.mT)
        if torch.linalg.cholesky_ex(planned + active).info.item():
            return self._not_positive()
        self._planned = planned, planned + torch.diag(prior), slots
        self._keep_others(current + active, planned - current)
        return True

    def _limit_rates(self) -> bool:
        """Do nothing, since :meth:`ready` checks the matrix instead."""
        return True

    def _keep_others(self, precision: Tensor, change: Tensor) -> None:
        """Plan the Hessian of parameters without a gradient in this step, whose marginal posterior does not change.

        The other parameters follow a conditional posterior given these, of which only the precision changes and not the
        regression on them. If the shared rows stayed as they are, the whole matrix might not be a precision.
        """
        assert self._planned is not None
        planned, divisor, slots = self._planned
        trained = {slot.parameter for slot in slots}
        others = [
            slot
            for slot in self.store.slots()
            if slot.parameter in self.store.owner.state
            and slot.parameter not in trained
            and slot.group["columns"][slot.index - slot.group["noise_index"]] >= 0
        ]
        if not others:
            return
        count = len(planned)
        whole = self.store.hessian([*slots, *others])
        slopes = torch.linalg.solve(precision, whole[:count, count:])
        whole[:count, count:] += change @ slopes
        whole[count:, :count] = whole[:count, count:].mT
        whole[count:, count:] += slopes.mT @ change @ slopes
        whole[:count, :count] = planned
        self._planned = whole, divisor, [*slots, *others]

    def _add_updates(
        self, plan: Plan, draws: Mapping[str, Draw], numbers: NumbersCache, drop_in: bool
    ) -> list[Updated]:
        """Add the planned change as one step."""
        slots = self.store.trained()
        if self._planned is None or not slots:
            return []
        planned, divisor, known = self._planned
        first, holds = self.store.first, self.weights.holding(slots)
        prior_gradient = self.store.prior(slots) / first["num_data"]
        targets, values, parts = [], [], []
        for slot, sampled in zip(slots, holds, strict=True):
            state = self.store.state_of(slot)
            mean = state["mean"].clone()
            if not sampled:
                follow_(mean, slot.parameter.detach())
            parts.append((mean - state.get("prior_mean", 0.0)).flatten().double())
            targets.append(state["mean"])
            values.append(mean)
        grad = (-1.0 if first["maximize"] else 1.0) * self._factor * self._joined_gradient(slots)
        grad += first["temperature"] * prior_gradient * torch.cat(parts)
        moves = _parts(torch.linalg.solve(divisor, grad), slots)
        for slot, value, move in zip(slots, values, moves, strict=True):
            radius = float(slot.group["clip_radius"])
            value.sub_(float(slot.group["lr"]) * move.clamp(-radius, radius).view(value.shape).to(value.dtype))
        shown = [i for i, sampled in enumerate(holds) if not sampled]
        targets += [slots[i].parameter for i in shown]
        values += [values[i] for i in shown]
        wanted = positions(known).to(planned.device)
        for slot, rows in zip(known, _parts(planned, known), strict=True):
            kept = self.store.state_of(slot)["hessian"]
            targets.append(kept)
            values.append(kept.index_copy(1, wanted, rows))

        def write(mark: int) -> None:
            torch._foreach_copy_([*targets, plan.done], [*values, torch.tensor(mark)])

        plan.add(write)
        states = [self.store.state_of(slot) for slot in slots]
        return [(slot, state, numbers.of(slot.group, state)[1]) for slot, state in zip(slots, states, strict=True)]
