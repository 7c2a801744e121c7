"""The training loop of a chunk of members: as many as the cache holds, one epoch after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesadam import noise
from bayesadam.optim.rule import Rule, advance, initial_counters
from bayesadam.population.batches import Batch, Pool
from bayesadam.population.members import Hyper, columns, map_columns
from bayesadam.population.objective import Objective

Schedule = Callable[[float], float]


class Chunk:
    """Members that are trained together, sorted by falling number of minibatches per epoch.

    The members that still have a minibatch are then always the first ones, and everything is done on views of the
    first rows: no masks, and nothing is computed for those that wait.

    Attributes:
        members: Which of the population these are, ``k`` of them.
        mean: ``(k, numel)``.
        state: The rule's tensors, each ``(k, numel)``.
        steps: How many steps every member has made.
        bad: Members that met a gradient that is not finite, with their rows before it.
    """

    def __init__(
        self,
        members: Sequence[int],
        objective: Objective,
        rule: Rule,
        hypers: Sequence[Hyper],
        mean: Tensor,
        pool: Pool,
        epochs: int,
        lr_schedule: Schedule | None,
        compiled: bool,
    ) -> None:
        self.members = list(members)
        self.objective, self.rule, self.pool = objective, rule, pool
        self.epochs, self.lr_schedule = epochs, lr_schedule
        self.hypers = list(hypers)
        self.samples: int = hypers[0]["mc_samples"]
        self.antithetic: bool = hypers[0]["antithetic"]
        self.mean = mean
        self.steps = [0] * len(self.members)
        self.bad: dict[int, dict[str, Tensor]] = {}
        self._scratch = noise.Scratch()
        self._compiled = compiled
        noisy = objective.perturbed if hypers[0]["perturb"] else 0
        ends = [noisy, objective.layout.numel]
        self._segments = [(slice(lo, hi), lo < noisy) for lo, hi in zip([0, *ends], ends, strict=False) if hi > lo]
        self._hyper = columns(self.hypers, mean.device)
        self.counters = self._initial_counters()
        self.state = self._initial_state()

    def _initial_counters(self) -> dict[str, Any]:
        """Numbers, if they will always be the same for all members; else columns."""
        batches = {self.pool.batches[member] for member in self.members}
        varying = any(isinstance(v, Tensor) for v in (*self._hyper["betas"], self._hyper["temperature"]))
        counters: dict[str, Any] = initial_counters()
        if len(batches) == 1 and not varying:
            return counters
        size, device = (len(self.members), 1), self.mean.device
        return {n: torch.full(size, float(v), dtype=torch.float64, device=device) for n, v in counters.items()}

    def _initial_state(self) -> dict[str, Tensor]:
        parts = [
            self.rule.init(self.mean[:, part], self._of(part, {**self._hyper, **self.counters}))
            for part, _ in self._segments
        ]
        return {name: torch.cat([state[name] for state in parts], dim=1) for name in self.rule.state}

    def train_epoch(self, epoch: int, raise_nonfinite: bool) -> Tensor:
        """One epoch; mean training loss of every member, ``(k,)``."""
        total = torch.zeros(len(self.members), dtype=torch.float64, device=self.mean.device)
        counts = torch.zeros_like(total)
        seeds = [hyper["seed"] for hyper in self.hypers]
        for i, batch in enumerate(self.pool.epoch(self.members, seeds, epoch)):
            losses = self._step(batch, self._rates(len(batch.x), epoch, i), raise_nonfinite)
            total[: len(losses)] += losses
            counts[: len(losses)] += 1
        return total / counts

    def _rates(self, count: int, epoch: int, batch: int) -> Any:
        """Learning rates of the first members in this step: a number, or a column."""
        rate = _first(self._hyper["lr"], count)
        if self.lr_schedule is None:
            return rate
        done = [(epoch + batch / self.pool.batches[member]) / self.epochs for member in self.members[:count]]
        factors = {part: self.lr_schedule(part) for part in set(done)}
        if len(factors) == 1:
            return rate * factors[done[0]]
        return rate * torch.tensor([[factors[part]] for part in done], dtype=torch.float64, device=self.mean.device)

    @torch.no_grad()
    def _step(self, batch: Batch, rate: Any, raise_nonfinite: bool) -> Tensor:
        """One step of the first members, those that have a minibatch; their losses."""
        count = len(batch.x)
        counters = {name: _first(value, count) for name, value in self.counters.items()}
        hyper = {**map_columns(self._hyper, lambda column: column[:count]), "lr": rate}
        theta, eps = self._sample(count, {**hyper, **counters})
        with torch.enable_grad():
            losses = self.objective.losses(theta.requires_grad_(), batch)
            (grads,) = torch.autograd.grad(losses.sum(), theta)
        grad = grads.mean(1)
        self._check_finite(grad, raise_nonfinite)
        after = advance(counters, hyper)
        for part, noisy in self._segments:
            views = {name: rows[:count, part] for name, rows in self.state.items()}
            wide = {name: rows.unsqueeze(1) for name, rows in views.items()}
            before = map_columns(self._of(part, {**hyper, **counters}), lambda column: column.unsqueeze(1))
            curvature = self.rule.curvature(grads[:, :, part], eps if noisy else None, wide, before)
            curvature = None if curvature is None else curvature.mean(1)
            now = self._of(part, {**hyper, **after})
            self.rule.update_(self.mean[:count, part], views, grad[:, part], curvature, now)
        for name, value in after.items():
            if isinstance(value, Tensor):
                self.counters[name][:count] = value
            else:
                self.counters[name] = value
        for row in range(count):
            self.steps[row] += 1
        return losses.mean(1).double()

    def _sample(self, count: int, hyper: Hyper) -> tuple[Tensor, Tensor | None]:
        """Weights ``(count, S, numel)``, and the noise in them."""
        mean = self.mean[:count]
        part, noisy = self._segments[0]
        if not noisy:
            return mean.unsqueeze(1).repeat(1, self.samples, 1), None
        eps = noise.normal_many(
            [own["seed"] for own in self.hypers[:count]],
            self.steps[:count],
            range(self.samples // 2 if self.antithetic else self.samples),
            self.objective.draws,
            device=mean.device,
            scratch=self._scratch,
            compiled=self._compiled,
        ).to(mean.dtype)
        if self.antithetic:
            eps = torch.stack((eps, -eps), dim=2).flatten(1, 2)
        sigma = self._precision(count, part, hyper).rsqrt_()
        if part.stop == mean.shape[1]:
            return torch.addcmul(mean.unsqueeze(1), eps, sigma.unsqueeze(1)), eps
        theta = mean.unsqueeze(1).repeat(1, self.samples, 1)
        theta[:, :, part].addcmul_(eps, sigma.unsqueeze(1))
        return theta, eps

    def _precision(self, count: int, part: slice, hyper: Hyper) -> Tensor:
        views = {name: rows[:count, part] for name, rows in self.state.items()}
        return self.rule.precision(views, self._of(part, hyper))

    def variance(self) -> Tensor:
        """Posterior variance of the coordinates that may be perturbed, ``(k, perturbed)``."""
        part, noisy = self._segments[0]
        if not noisy:
            return self.mean.new_zeros(len(self.mean), self.objective.perturbed)
        return self._precision(len(self.mean), part, {**self._hyper, **self.counters}).reciprocal_()

    def _of(self, part: slice, hyper: Mapping[str, Any]) -> Hyper:
        """Hyper-parameters of some coordinates: rows of a prior are cut, columns are not."""
        return map_columns(dict(hyper), lambda column: column if column.shape[-1] == 1 else column[..., part])

    def _check_finite(self, grad: Tensor, raise_nonfinite: bool) -> None:
        """Keep the rows of members whose gradient is not finite: their last good ones."""
        good = torch.linalg.vector_norm(grad, dim=1).isfinite()  # as alone: a square that overflows is refused too
        if good.all():
            return
        for row in (~good).nonzero().flatten().tolist():
            if raise_nonfinite:
                raise FloatingPointError(
                    f"the gradient of member {self.members[row]} must be finite, got inf or nan in its step "
                    f"{self.steps[row]}"
                )
            if row not in self.bad:
                rows = {"mean": self.mean[row], "variance": self.variance()[row]}
                rows |= {f"state/{name}": value[row] for name, value in self.state.items()}
                self.bad[row] = {name: value.clone() for name, value in rows.items()}

    def rows(self) -> dict[str, Tensor]:
        """Mean, variance and state of all members; the last good ones of those that went bad."""
        rows = {"mean": self.mean.clone(), "variance": self.variance()}
        rows |= {f"state/{name}": value.clone() for name, value in self.state.items()}
        for row, kept in self.bad.items():
            for name, value in kept.items():
                rows[name][row] = value
        return rows

    def keep(self, rows: Sequence[int]) -> None:
        """Go on with some of the members only."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.mean.device)
        self.members, self.hypers = [self.members[r] for r in rows], [self.hypers[r] for r in rows]
        self.steps = [self.steps[r] for r in rows]
        self.bad = {}
        self.objective = self.objective.select(index)
        self.mean = self.mean[index]
        self.state = {name: value[index] for name, value in self.state.items()}
        self.counters = {n: v[index] if isinstance(v, Tensor) else v for n, v in self.counters.items()}
        self._hyper = map_columns(self._hyper, lambda column: column[index])


def _first(value: Any, count: int) -> Any:
    return value[:count] if isinstance(value, Tensor) else value
