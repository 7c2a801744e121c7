"""The training loop of a chunk of members, as many as fit into the cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesadam.core.rule import COUNTERS, INITIAL_COUNTERS, Hyper, Rule
from bayesadam.population.batches import Batch, Pool
from bayesadam.population.draws import Draws
from bayesadam.population.formulas import Formulas, advanced, with_betas
from bayesadam.population.members import Numbers, columns, map_columns
from bayesadam.population.objective import Losses
from bayesadam.population.rates import Rates
from bayesadam.population.segments import View, first, segments, views


class Chunk:
    """Members that are trained together, sorted by falling number of minibatches per epoch.

    The members that still have a minibatch are then always the first ones, and all operations use views of the first
    rows: there are no masks, and nothing is computed for members that wait.

    Attributes:
        members: Numbers of the ``k`` members within the population.
        mean: Means, ``(k, numel)``.
        state: Tensors of the rule, each ``(k, numel)``.
        counters: Counters, see :data:`bayesadam.core.rule.COUNTERS`: numbers if they are always the same for
            all members, otherwise columns.
        steps: Number of steps of every member.
        epochs: Number of epochs of the whole training.
        bad: Members with a gradient that was not finite, with their rows before it.
    """

    def __init__(
        self,
        members: Sequence[int],
        objective: Losses,
        rule: Rule,
        hypers: Sequence[Numbers],
        mean: Tensor,
        pool: Pool,
        rates: Rates,
    ) -> None:
        self.members = list(members)
        self.objective, self.rule, self.pool, self.rates = objective, rule, pool, rates
        self.hypers = list(hypers)
        self.samples: int = hypers[0]["mc_samples"]
        self.epochs = rates.epochs
        self.mean = mean
        self.steps = [0] * len(self.members)
        self.bad: dict[int, dict[str, Tensor]] = {}
        self._draws = Draws(objective.draws, self.samples, hypers[0]["antithetic"], mean.dtype, mean.device)
        self._segments = segments(objective.perturbed if hypers[0]["perturb"] else 0, objective.layout.numel)
        self._hyper = columns(self.hypers, mean.device)
        kind = self._hyper.get("hessian")
        self._outside = kind if kind in ("exact", "empirical_fisher") else None
        self.counters = self._initial_counters()
        self.formulas = [
            Formulas(rule, part.hyper(with_betas(self._hyper)), noisy=part.noisy, dtype=mean.dtype)
            for part in self._segments
        ]
        self.state = self._initial_state()
        self._views: dict[int, list[View]] = {}

    def _initial_counters(self) -> dict[str, Any]:
        batches = {self.pool.batches[member] for member in self.members}
        varying = any(isinstance(v, np.ndarray) for v in (*self._hyper["betas"], self._hyper["temperature"]))
        counters: dict[str, Any] = dict(zip(COUNTERS, INITIAL_COUNTERS, strict=True))
        if len(batches) == 1 and not varying:
            return counters
        return {name: np.full((len(self.members), 1), value) for name, value in counters.items()}

    def _initial_state(self) -> dict[str, Tensor]:
        parts = []
        for part in self._segments:
            mean = part.rows(self.mean)
            told = part.hyper(with_betas({**self._hyper, **self.counters}))
            told = map_columns(told, lambda value: torch.from_numpy(value) if isinstance(value, np.ndarray) else value)
            state = self.rule.init(mean, Hyper(**told))
            parts.append({name: value.to(mean.dtype) for name, value in state.items()})
        return {name: torch.cat([state[name] for state in parts], dim=1) for name in self.rule.state}

    def train_epoch(self, epoch: int, raise_nonfinite: bool) -> Tensor:
        """Train for one epoch; return the mean training loss of every member, ``(k,)``."""
        seeds = [hyper["seed"] for hyper in self.hypers]
        batches = [self.pool.batches[member] for member in self.members]
        ragged = batches[0] != batches[-1]
        found = []
        for i, batch in enumerate(self.pool.epoch(self.members, seeds, epoch)):
            count = len(batch.x)
            ahead = batches[count - 1] - i if ragged else math.inf
            found.append(self._step(batch, seeds[:count], batches[:count], ahead, raise_nonfinite))
        total = torch.zeros(len(self.members), dtype=torch.float64, device=self.mean.device)
        for count, losses in groupby(found, key=len):
            total[:count] += torch.stack(list(losses)).double().mean(2).sum(0)
        return total / torch.tensor(batches, device=total.device)

    @torch.no_grad()
    def _step(
        self, batch: Batch, seeds: Sequence[int], batches: Sequence[int], ahead: float, raise_nonfinite: bool
    ) -> Tensor:
        """Make one step of the first members, those that have a minibatch; return their losses, ``(k, S)``."""
        count = len(seeds)
        shown = self._first(count)
        counters = first(self.counters, count)
        rates = self.rates.at(shown[0].hyper, self.steps[:count], batches)
        before = {**counters, **rates}
        theta, deviation = self._sample(shown[0], before, seeds, ahead)
        losses, grads, outside = self.objective.gradients(theta, batch, self._outside)
        grad = grads[:, 0] if self.samples == 1 else grads.mean(1)
        self._check_finite(grad, raise_nonfinite)
        counters = advanced(self.rule, counters, with_betas({**shown[0].hyper, **rates}))
        after = {**counters, **rates}
        curvatures = [
            self._curvature(view, own, grads, deviation, outside, before)
            for view, own in zip(shown, self.formulas, strict=True)
        ]
        self._check_positive(shown, curvatures, before, raise_nonfinite)
        for view, own, curvature in zip(shown, self.formulas, curvatures, strict=True):
            told = with_betas({**view.hyper, **after})
            own.update(view.mean, view.state, view.segment.rows(grad), curvature, told)
        for name, value in counters.items():
            if isinstance(value, np.ndarray):
                self.counters[name][:count] = value
            else:
                self.counters[name] = value
        self.steps[:count] = [step + 1 for step in self.steps[:count]]
        return losses

    def _first(self, count: int) -> list[View]:
        if count not in self._views:
            self._views[count] = views(self._segments, count, self.mean, self.state, self._hyper)
        return self._views[count]

    def _sample(
        self, view: View, changing: Numbers, seeds: Sequence[int], ahead: float
    ) -> tuple[Tensor, Tensor | None]:
        """Sampled weights ``(k, S, numel)``, and their deviations from the mean where there is noise."""
        mean = self.mean[: len(seeds)].unsqueeze(1)
        if not view.segment.noisy:
            return mean.expand(-1, self.samples, -1), None
        eps = self._draws.take(seeds, self.steps[: len(seeds)], ahead)
        told = with_betas({**view.hyper, **changing})
        sample = self.formulas[0].sample(view.mean, eps, view.state, told)
        deviation = sample - view.mean.unsqueeze(1) if self.rule.needs_noise else None
        if view.segment.whole:
            return sample, deviation
        theta = mean.repeat(1, self.samples, 1)
        view.segment.rows(theta).copy_(sample)
        return theta, deviation

    def _curvature(
        self,
        view: View,
        formulas: Formulas,
        grads: Tensor,
        deviation: Tensor | None,
        outside: Tensor | None,
        changing: Numbers,
    ) -> Tensor | None:
        """Curvature averaged over the samples, from the objective, or from the gradients by the rule."""
        part = view.segment
        if outside is not None:
            return outside[:, :, part.part].mean(1) if part.part.start < outside.shape[2] else None
        deviation = deviation if part.noisy else None
        return formulas.curvature(part.rows(grads), deviation, view.state, with_betas({**view.hyper, **changing}))

    def _check_finite(self, grad: Tensor, raise_nonfinite: bool) -> None:
        """Restore the last good rows of members whose gradient is not finite."""
        if math.isfinite(torch.linalg.vector_norm(grad).item()):
            return
        good = torch.linalg.vector_norm(grad, dim=1).isfinite()  # as alone: a square that overflows is refused too
        for row in (~good).nonzero().flatten().tolist():
            self._note_bad(row, raise_nonfinite, "gradient of member {} must be finite, got inf or nan in its step {}")

    def _check_positive(
        self, shown: Sequence[View], curvatures: Sequence[Tensor | None], changing: Numbers, raise_nonfinite: bool
    ) -> None:
        """Restore the last good rows of members whose precision would not stay positive, if the rule does not ensure
        it.
        """
        if self._hyper.get("correction", "elementwise") is not None:
            return
        rule: Any = self.rule
        for view, curvature in zip(shown, curvatures, strict=True):
            if curvature is None:
                continue
            for row in range(len(curvature)):
                one = slice(row, row + 1)
                told = map_columns({**view.hyper, **changing}, itemgetter(one))
                told = {n: v.item() if isinstance(v, np.ndarray) else v for n, v in with_betas(told).items()}
                own = {name: value[one] for name, value in view.state.items()}
                if not rule.largest_rate(own, curvature[one], Hyper(**told)) > rule.rate(Hyper(**told)):
                    self._note_bad(
                        row,
                        raise_nonfinite,
                        "posterior precision of member {} must stay positive, got a curvature that is too negative in "
                        "its step {} (correction='elementwise' or a smaller 1 - betas[1] would help)",
                    )

    def _note_bad(self, row: int, raise_it: bool, message: str) -> None:
        if raise_it:
            raise FloatingPointError(f"the {message}".format(self.members[row], self.steps[row]))
        if row not in self.bad:
            rows = {"mean": self.mean[row], "variance": self.variance()[row]}
            rows |= {f"state/{name}": value[row] for name, value in self.state.items()}
            self.bad[row] = {name: value.clone() for name, value in rows.items()}

    def variance(self) -> Tensor:
        """Posterior variance of the coordinates that may be perturbed, ``(k, perturbed)``."""
        view = self._first(len(self.mean))[0]
        if not view.segment.noisy:
            return self.mean.new_zeros(len(self.mean), self.objective.perturbed)
        return self.formulas[0].variance(view.state, with_betas({**view.hyper, **self.counters}))

    def rows(self) -> dict[str, Tensor]:
        """Mean, variance and state of all members; for members with an error their last good ones."""
        rows = {"mean": self.mean.clone(), "variance": self.variance()}
        rows |= {f"state/{name}": value.clone() for name, value in self.state.items()}
        for row, kept in self.bad.items():
            for name, value in kept.items():
                rows[name][row] = value
        return rows

    def tell(self, **changed: float) -> None:
        """Change hyper-parameters that are numbers (such as ``num_data``), for all members, from the next step on."""
        self.hypers = [{**own, **changed} for own in self.hypers]
        self._hyper = {**self._hyper, **changed}
        self._views = {}

    def keep(self, rows: Sequence[int]) -> None:
        """Continue with some of the members only."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.mean.device)
        self.members, self.hypers = [self.members[r] for r in rows], [self.hypers[r] for r in rows]
        self.bad = {}
        self.objective = self.objective.select(index)
        self._hyper = map_columns(self._hyper, lambda column: column[rows if isinstance(column, np.ndarray) else index])
        self.mean, self.state = self.mean[index], {name: value[index] for name, value in self.state.items()}
        self.counters = {n: v[rows] if isinstance(v, np.ndarray) else v for n, v in self.counters.items()}
        self.steps = [self.steps[r] for r in rows]
        self._views = {}
        self._draws.forget()
