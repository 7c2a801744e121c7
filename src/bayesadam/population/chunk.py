"""The training loop of a chunk of members, as many as fit into the cache."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.core.rule import COUNTERS, INITIAL_COUNTERS, Rule
from bayesadam.population.batches import Batch, Pool
from bayesadam.population.draws import Draws
from bayesadam.population.losses import Losses
from bayesadam.population.members import Setup
from bayesadam.population.segment import Numbers, Segment, advanced, combined

Schedule = Callable[[float], float]
TOO_NEGATIVE = (
    "posterior precision of member {} must stay positive, got a curvature that is too negative in its step {} "
    "(correction='elementwise' or a smaller 1 - betas[1] would help)"
)


@dataclass(frozen=True)
class Plan:
    """What all chunks have in common.

    Attributes:
        pool: Data of all members.
        epochs: Number of epochs.
        lr_schedule: Factor of the learning rate by the fraction of the training that is done.
        beta_schedule: Factor of ``1 - betas[1]`` by that fraction.
        skip_nonfinite: Whether to go on without members whose gradient is not finite.
    """

    pool: Pool
    epochs: int
    lr_schedule: Schedule | None
    beta_schedule: Schedule | None
    skip_nonfinite: bool


class Chunk:
    """Members that are trained together, sorted by falling number of minibatches per epoch.

    The members that still have a minibatch are then always the first ones, and all operations use views of the first
    rows: there are no masks, and nothing is computed for members that wait.

    Args:
        members: Numbers of the ``k`` members within the population.
        losses: Losses of all members of the population.
        setup: Rule, hyper-parameters and initial tensors of all members.
        plan: What all chunks have in common.

    Attributes:
        members: Numbers of the members that are still trained.
        failed: Rows of members that cannot be trained further, with their last good tensors.
    """

    def __init__(self, members: Sequence[int], losses: Losses, setup: Setup, plan: Plan) -> None:
        self.members, self._plan, self._rule = list(members), plan, setup.rule
        rows = torch.tensor(self.members, device=setup.tensors["mean"].device)
        self._losses = losses.select(rows)
        self._hypers = [setup.hypers[member] for member in members]
        if plan.lr_schedule is not None:  # as with a scheduler of PyTorch, which replaces a rule's own schedule
            self._hypers = [{**hyper, "initial_lr": hyper["lr"]} for hyper in self._hypers]
        self._numbers = setup.numbers(members)
        self._samples: int = self._numbers["mc_samples"]
        batches = {plan.pool.batches[member] for member in members}
        self._counters: dict[str, Any] = dict(zip(COUNTERS, INITIAL_COUNTERS, strict=True))
        if len(batches) > 1:
            self._counters = {name: np.full((len(members), 1), value) for name, value in self._counters.items()}
        hessian = self._numbers.get("hessian")
        self._outside = hessian if hessian in ("exact", "empirical_fisher") else None
        noisy = losses.perturbed if setup.noisy else 0
        parts = [part for part in (slice(0, noisy), slice(noisy, losses.layout.numel)) if part.stop > part.start]
        self._sizes = [part.stop - part.start for part in parts]
        self._segments = [
            Segment(
                self._rule,
                {name: value[rows, part] for name, value in setup.tensors.items()},
                {**self._numbers, **self._counters},
                noisy=part.start < noisy,
                has_curvature=self._outside == "exact" or (self._outside is not None and part.start < losses.perturbed),
            )
            for part in parts
        ]
        self._draws = Draws(losses.noise_sizes, self._samples, self._numbers["antithetic"], setup.tensors["mean"])
        self.failed: dict[int, dict[str, Tensor]] = {}

    def train_epoch(self, epoch: int) -> Tensor:
        """Train for one epoch; return the mean training loss of every member, ``(k,)``."""
        seeds = [hyper["seed"] for hyper in self._hypers]
        batches = [self._plan.pool.batches[member] for member in self.members]
        is_ragged = batches[0] != batches[-1]
        losses = []
        for i, batch in enumerate(self._plan.pool.epoch(self.members, seeds, epoch)):
            count = len(batch.x)
            ahead = batches[count - 1] - i if is_ragged else math.inf
            losses.append(self._step(batch, seeds[:count], batches[:count], ahead))
        total = torch.zeros(len(self.members), dtype=torch.float64, device=losses[0].device)
        for count, alike in groupby(losses, key=len):
            total[:count] += torch.stack(list(alike)).double().mean(2).sum(0)
        return total / torch.tensor(batches, device=total.device)

    @torch.no_grad()
    def _step(self, batch: Batch, seeds: Sequence[int], batches: Sequence[int], ahead: float) -> Tensor:
        """Make one step of the first members, those that have a minibatch; return their losses, ``(k, S)``."""
        before = self._numbers_now(len(seeds), batches)
        theta = self._theta(before, seeds, ahead)
        losses, grads, outside = self._losses.gradients(theta, batch, self._outside)
        grad = grads[:, 0] if self._samples == 1 else grads.mean(1)
        self._check_finite(grad)
        curvatures = self._curvatures(theta, grads, outside, before)
        self._check_positive(curvatures, before)
        counters = advanced(self._rule, before)
        after = {**before, **counters}
        for segment, part, curvature in zip(self._segments, self._split(grad), curvatures, strict=True):
            segment.update(part, curvature, after)
        if len(seeds) == len(self.members):
            self._counters = counters
        else:
            for name, value in counters.items():
                self._counters[name][: len(seeds)] = value
        return losses

    def _numbers_now(self, count: int, batches: Sequence[int]) -> dict[str, Any]:
        """Hyper-parameters and counters of the first members in this step."""
        plan, numbers = self._plan, {**self._numbers, **self._counters}
        if count < len(self.members):
            numbers = {name: v[:count] if isinstance(v, np.ndarray) else v for name, v in numbers.items()}
        steps = self._steps(count)
        if type(self._rule).numbers is not Rule.numbers:
            groups = [{**hyper, "noise_step": step} for hyper, step in zip(self._hypers, steps, strict=False)]
            changed = [self._rule.numbers(group) for group in groups]
            for name in {name for own in changed for name in own}:
                numbers[name] = combined([own.get(name, g[name]) for own, g in zip(changed, groups, strict=True)])
        done = [step / (per_epoch * plan.epochs) for step, per_epoch in zip(steps, batches, strict=True)]
        if plan.lr_schedule is not None:
            numbers["lr"] = numbers["lr"] * _factor(plan.lr_schedule, done)
        if plan.beta_schedule is not None:
            numbers["beta2"] = 1.0 - (1.0 - numbers["beta2"]) * _factor(plan.beta_schedule, done)
            if not np.all((numbers["beta2"] >= 0) & (numbers["beta2"] < 1)):
                raise ValueError(f"beta_schedule must keep betas[1] in [0, 1), got {numbers['beta2']!r}")
        return numbers

    def _steps(self, count: int) -> list[int]:
        """Number of steps that each of the first members has made."""
        step = self._counters["step"]
        return [int(s) for s in step[:count, 0]] if isinstance(step, np.ndarray) else [int(step)] * count

    def _theta(self, numbers: Numbers, seeds: Sequence[int], ahead: float) -> Tensor:
        """Sampled weights ``(k, S, numel)``; those without noise are the means."""
        parts = []
        for segment in self._segments:
            if segment.noisy:
                parts.append(segment.sample(self._draws.take(seeds, self._steps(len(seeds)), ahead), numbers))
            else:
                parts.append(segment.tensors["mean"][: len(seeds)].unsqueeze(1).expand(-1, self._samples, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)

    def _curvatures(self, theta: Tensor, grads: Tensor, outside: Tensor | None, numbers: Numbers) -> list[Any]:
        """Curvature of every segment averaged over the samples, from the losses, or from the gradients by the rule."""
        if outside is not None:
            curvatures = self._split(outside.mean(1))
            return [*curvatures, *[None] * (len(self._segments) - len(curvatures))]
        parts = zip(self._segments, self._split(theta), self._split(grads), strict=True)
        return [segment.curvature(own_theta, own_grads, numbers) for segment, own_theta, own_grads in parts]

    def _split(self, values: Tensor) -> Sequence[Tensor]:
        """The parts of the segments along the last axis, which may lack the last segment."""
        if len(self._sizes) == 1:
            return [values]
        return values.split_with_sizes(self._sizes if values.shape[-1] == sum(self._sizes) else self._sizes[:1], dim=-1)

    def _check_finite(self, grad: Tensor) -> None:
        """Note members whose gradient is not finite."""
        if math.isfinite(torch.linalg.vector_norm(grad).item()):
            return
        is_good = torch.linalg.vector_norm(grad, dim=1).isfinite()  # as alone: a square that overflows is refused too
        for row in (~is_good).nonzero().flatten().tolist():
            self._fail(row, "gradient of member {} must be finite, got inf or nan in its step {}")

    def _check_positive(self, curvatures: Sequence[Tensor | None], numbers: Numbers) -> None:
        """Note members whose precision would not stay positive, if the rule does not ensure it."""
        if self._numbers.get("correction", "elementwise") is not None:
            return
        rule: Any = self._rule
        for segment, curvature in zip(self._segments, curvatures, strict=True):
            for row, values in enumerate([] if curvature is None else curvature):
                state, hp = segment.hyper(row, numbers)
                if not rule.largest_rate(state, values, hp) > rule.rate(hp):
                    self._fail(row, TOO_NEGATIVE)

    def _fail(self, row: int, message: str) -> None:
        """Raise an error for a member, or keep its tensors as they are before this step."""
        if not self._plan.skip_nonfinite:
            raise FloatingPointError(f"the {message}".format(self.members[row], self._steps(row + 1)[row]))
        if row not in self.failed:
            self.failed[row] = {name: value[row].clone() for name, value in self._tensors().items()}

    def _tensors(self) -> dict[str, Tensor]:
        """Means, variances and tensors of the rule of all members, each ``(k, numel)``."""
        numbers = {**self._numbers, **self._counters}
        parts = [{**segment.tensors, "variance": segment.variance(numbers)} for segment in self._segments]
        names = ("mean", "variance", *self._rule.state)
        return {name: torch.cat([part[name] for part in parts], dim=1) for name in names}

    def tensors(self) -> Mapping[str, Tensor]:
        """Means, variances and tensors of the rule of all members; for those that failed, the last good ones."""
        tensors = self._tensors()
        for row, good in self.failed.items():
            for name, value in good.items():
                tensors[name][row] = value
        return tensors

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with some of the members only."""
        index = torch.tensor(rows, dtype=torch.int64, device=self._segments[0].tensors["mean"].device)
        self.members, self._hypers = [self.members[row] for row in rows], [self._hypers[row] for row in rows]
        self._losses = self._losses.select(index)
        self._segments = [segment.select(index) for segment in self._segments]
        for numbers in (self._numbers, self._counters):
            numbers.update({name: v[rows] for name, v in numbers.items() if isinstance(v, np.ndarray)})
        self.failed = {}
        self._draws.forget()


def _factor(schedule: Schedule, done: Sequence[float]) -> Any:
    """Values of a schedule: one number if all members are at the same point, otherwise a column."""
    values = {point: schedule(point) for point in set(done)}
    return combined([values[point] for point in done])
