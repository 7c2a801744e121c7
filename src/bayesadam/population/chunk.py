"""The training loop of a chunk of members, as many as fit into the cache."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.core.rule import COUNTERS, INITIAL_COUNTERS, Hyper, Rule, advanced, computes_curvature
from bayesadam.population.batches import Batch, Pool
from bayesadam.population.draws import Draws
from bayesadam.population.losses import Losses
from bayesadam.population.members import Setup
from bayesadam.population.segment import Numbers, Segment, combined

Schedule = Callable[[float], float]
_NOT_FINITE = "gradient of member {} must be finite, got inf or nan in its step {}"


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
        self._shared = setup.hypers[0]  # number of samples and static options are those of all members
        self._numbers = setup.numbers(members)
        self._samples: int = self._shared["mc_samples"]
        self._counters: dict[str, Any] = dict(zip(COUNTERS, INITIAL_COUNTERS, strict=True))
        if len({plan.pool.batches[member] for member in members}) > 1:
            self._counters = {name: np.full((len(members), 1), value) for name, value in self._counters.items()}
        noisy = losses.perturbed if setup.noisy else 0
        hessian = self._shared.get("hessian")
        squared = hessian == "empirical_fisher" and not computes_curvature(self._rule)
        self._segments = [
            Segment(
                self._rule,
                {name: value[rows] for name, value in setup.tensors.items()},
                self._shared,
                slice(start, stop),
                noisy=start < noisy,
                has_curvature=hessian == "exact" or (squared and start < losses.perturbed),
            )
            for start, stop in ((0, noisy), (noisy, losses.layout.numel))
            if stop > start
        ]
        self._draws = Draws(losses.noise_sizes, self._samples, self._shared["antithetic"], setup.tensors["mean"])
        self.failed: dict[int, dict[str, Tensor]] = {}
        self._bad_at = torch.empty(0)  # of a GPU's members, the step of the epoch with the first bad gradient
        self._past: list[dict[str, Any]] = []  # counters before each step of the epoch, for a GPU

    def train_epoch(self, epoch: int) -> Tensor:
        """Train for one epoch; return the mean training loss of every member, ``(k,)``."""
        seeds = [hyper["seed"] for hyper in self._hypers]
        batches, losses = self._batches(), []
        mean = self._segments[0].tensors["mean"]
        self._past, self._bad_at = [], torch.full((len(mean), 1), math.inf, device=mean.device)
        for i, batch in enumerate(self._plan.pool.epoch(self.members, seeds, epoch)):
            count = len(batch.x)
            ahead = batches[count - 1] - i if batches[0] != batches[-1] else math.inf
            losses.append(self._step(batch, seeds[:count], ahead))
        self._learn()
        total = torch.zeros(len(self.members), dtype=torch.float64, device=losses[0].device)
        for count, alike in groupby(losses, key=len):
            total[:count] += torch.stack(list(alike)).double().mean(2).sum(0)
        return total / torch.tensor(batches, device=total.device)

    @torch.no_grad()
    def _step(self, batch: Batch, seeds: Sequence[int], ahead: float) -> Tensor:
        """Make one step of the first members, those that have a minibatch; return their losses, ``(k, S)``."""
        count = len(seeds)
        steps = self._steps(count)
        before = self._numbers_now(steps)
        means = [segment.tensors["mean"][:count].unsqueeze(1) for segment in self._segments]
        parts = [mean.expand(-1, self._samples, -1) for mean in means]
        if self._segments[0].noisy:
            parts[0] = self._segments[0].sample(self._draws.take(seeds, steps, ahead), before)
        theta = parts[0] if len(parts) == 1 else torch.cat(parts, dim=2)
        losses, grads, curvature = self._losses.gradients(theta, batch, self._shared.get("hessian"))
        grad = grads[:, 0] if self._samples == 1 else grads.mean(1)
        writes = self._check_finite(grad)
        counters = advanced(self._rule, Hyper(**before))
        updates = [segment.updated(theta, grads, grad, curvature, before) for segment in self._segments]
        self._check_positive(updates, {**before, **counters}, writes)
        for segment, update in zip(self._segments, updates, strict=True):
            segment.write(update, writes)
        if count == len(self.members):
            self._counters = counters
        else:
            for name, value in counters.items():
                self._counters[name][:count] = value
        return losses

    def _numbers_now(self, steps: Sequence[int]) -> dict[str, Any]:
        """Hyper-parameters and counters of the first members, which have made these numbers of steps."""
        plan, numbers = self._plan, self._numbers_of_rule(steps)
        if plan.lr_schedule is not None:
            numbers["lr"] = numbers["lr"] * self._factor(plan.lr_schedule, steps)
        if plan.beta_schedule is not None:
            numbers["beta2"] = 1.0 - (1.0 - numbers["beta2"]) * self._factor(plan.beta_schedule, steps)
            if not np.all((numbers["beta2"] >= 0) & (numbers["beta2"] < 1)):
                raise ValueError(f"beta_schedule must keep betas[1] in [0, 1), got {numbers['beta2']!r}")
        return numbers

    def _numbers_of_rule(self, steps: Sequence[int]) -> dict[str, Any]:
        """The same without schedules of the training."""
        numbers = {**self._numbers, **self._counters}
        if len(steps) < len(self.members):
            numbers = {name: v[: len(steps)] if isinstance(v, np.ndarray) else v for name, v in numbers.items()}
        if type(self._rule).numbers is not Rule.numbers:
            groups = [{**hyper, "noise_step": step} for hyper, step in zip(self._hypers, steps, strict=False)]
            changed = [self._rule.numbers(group) for group in groups]
            for name in {name for values in changed for name in values}:
                pairs = zip(changed, groups, strict=True)
                numbers[name] = combined([values.get(name, group[name]) for values, group in pairs])
        return numbers

    def _factor(self, schedule: Schedule, steps: Sequence[int]) -> Any:
        """Values of a schedule: one number if all members are at the same point, otherwise a column."""
        lengths = [batches * self._plan.epochs for batches in self._batches()]
        done = [step / length for step, length in zip(steps, lengths, strict=False)]
        values = {point: schedule(point) for point in set(done)}
        return combined([values[point] for point in done])

    def _batches(self) -> list[int]:
        """Number of minibatches per epoch of every member."""
        return [self._plan.pool.batches[member] for member in self.members]

    def _steps(self, count: int) -> list[int]:
        """Number of steps that each of the first members has made."""
        step = self._counters["step"]
        return [int(value) for value in step[:count, 0]] if isinstance(step, np.ndarray) else [int(step)] * count

    def _check_finite(self, grad: Tensor) -> Tensor | None:
        """Note members whose gradient is not finite.

        A GPU is not waited for: a mask ``(k, 1)`` says which members go on, and :meth:`_learn` looks for the others.
        """
        if _is_on_gpu(grad):
            bad_at = self._bad_at[: len(grad)]
            is_bad = ~torch.linalg.vector_norm(grad, dim=1, keepdim=True).isfinite()
            bad_at.copy_(torch.where(is_bad, bad_at.clamp_max(len(self._past)), bad_at))
            self._past.append(copy.deepcopy(self._counters))
            return bad_at == math.inf
        if not math.isfinite(torch.linalg.vector_norm(grad).item()):
            norms = torch.linalg.vector_norm(grad, dim=1)  # as alone: a square that overflows is refused, too
            self._fail((~norms.isfinite()).nonzero().flatten().tolist(), _NOT_FINITE)
        return None

    def _learn(self) -> None:
        """Note members of a GPU whose gradient was not finite in a step of this epoch, with their counters there."""
        present = self._counters
        for row, step in enumerate(self._bad_at.flatten().tolist() if self._past else ()):
            if step < math.inf:
                self._counters = self._past[int(step)]
                self._fail([row], _NOT_FINITE)
        self._counters = present

    def _check_positive(self, updates: Sequence[Mapping[str, Tensor]], numbers: Numbers, writes: Tensor | None) -> None:
        """Note members whose precision would not stay positive, if the rule does not ensure it; of those that go on."""
        if self._shared.get("correction", "elementwise") is not None:
            return
        for segment, update in zip(self._segments, updates, strict=True):
            bad = ~(segment.precision(numbers, update) > 0).all(1)
            self._fail(
                (bad if writes is None else bad & writes.flatten()).nonzero().flatten().tolist(),
                "posterior precision of member {} must stay positive, got a curvature that is too negative in its step "
                "{} (correction='elementwise' or a smaller 1 - betas[1] would help)",
            )

    def _fail(self, rows: Sequence[int], message: str) -> None:
        """Raise an error for some members, or keep their tensors as they are before this step."""
        for row in rows:
            if not self._plan.skip_nonfinite:
                raise FloatingPointError(f"the {message}".format(self.members[row], self._steps(row + 1)[row]))
            if row not in self.failed:
                self.failed[row] = {name: value[row].clone() for name, value in self.tensors().items()}

    def tensors(self) -> Mapping[str, Tensor]:
        """Means, variances and tensors of the rule of all members, each ``(k, numel)``; for those that failed, the last
        good ones.
        """
        numbers, parts = self._numbers_of_rule(self._steps(len(self.members))), []
        for segment in self._segments:
            mean = segment.tensors["mean"]
            variance = 1.0 / segment.precision(numbers, segment.tensors) if segment.noisy else torch.zeros_like(mean)
            parts.append({**segment.tensors, "variance": variance})
        names = ("mean", "variance", *self._rule.state)
        tensors = {name: torch.cat([part[name] for part in parts], dim=1) for name in names}
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


def _is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda
