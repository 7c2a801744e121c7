"""One Gaussian over all weights together: the Hessian is a matrix, and so sampling and stepping are not element-wise.

``S`` is kept row by row with the parameters: ``state[p]["hessian"]`` has the rows of ``p`` and the columns of all
parameters that were trainable when the optimiser was made, in order. What is frozen later is held at its mean: the
posterior of the others is then the conditional one, whose precision is a part of the matrix. The matrix and all algebra
are float64, whatever the parameters: in float32 a precision whose eigenvalues span seven digits need not be positive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from bayesadam.functional import hessian
from bayesadam.optim.blocks import blocks
from bayesadam.optim.gradients import Gradients, Hidden
from bayesadam.optim.rule import advance
from bayesadam.optim.sampler import MEAN, Sampler
from bayesadam.optim.sources import HessianSource
from bayesadam.optim.state import follow, hyper

if TYPE_CHECKING:
    from bayesadam.optim.base import PerturbedOptimizer

Entry = tuple[dict[str, Any], int, nn.Parameter]


def layout(groups: Sequence[dict[str, Any]]) -> int:
    """Write into every group where its parameters' columns begin, -1 for frozen ones; returns the number of columns."""
    total = 0
    for group in groups:
        group["columns"] = []
        for parameter in group["params"]:
            group["columns"].append(total if parameter.requires_grad else -1)
            total += parameter.numel() if parameter.requires_grad else 0
    return total


def dense_state(state: dict[str, Any], parameter: Tensor, groups: Sequence[dict[str, Any]]) -> None:
    """Turn a diagonal Hessian into rows of the matrix."""
    start = next(column for g in groups for p, column in zip(g["params"], g["columns"], strict=True) if p is parameter)
    diagonal = state["hessian"].flatten()
    rows = diagonal.new_zeros(len(diagonal), width(groups), dtype=torch.float64)
    if start >= 0:
        rows.diagonal(start).copy_(diagonal)
    state["hessian"] = rows


def width(groups: Sequence[dict[str, Any]]) -> int:
    """The number of columns."""
    return sum(p.numel() for g in groups for p, column in zip(g["params"], g["columns"], strict=True) if column >= 0)


def column_of(group: Mapping[str, Any], index: int) -> int:
    """Where the columns of the parameter with this noise index begin.

    Raises:
        RuntimeError: It was frozen when the optimiser was made.
    """
    column: int = group["columns"][index - group["noise_index"]]
    if column < 0:
        raise RuntimeError(
            f"parameter number {index} must be trainable when the optimiser is made with covariance='full', "
            "got one that was frozen then"
        )
    return column


def positions(entries: Sequence[Entry]) -> Tensor:
    """The columns of some parameters, one after another."""
    parts = [torch.arange(p.numel()) + column_of(group, index) for group, index, p in entries]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64)


def _parts(joined: Tensor, entries: Sequence[Entry]) -> Sequence[Tensor]:
    """The rows that belong to each of the parameters that were joined."""
    return torch.split(joined, [p.numel() for _, _, p in entries])


class DenseSampler(Sampler):
    """Draws the weights together: ``theta = mu + L^-T eps``, ``L L^T`` the precision."""

    def __init__(self, optimizer: PerturbedOptimizer) -> None:
        super().__init__(optimizer)
        self._drawn: tuple[object, ...] = ()
        self._displacements: dict[Tensor, Tensor] = {}
        self._scores: dict[Tensor, Tensor] = {}

    def hessian(self, entries: Sequence[Entry]) -> Tensor:
        """``S`` of some parameters, in float64."""
        wanted = positions(entries)
        rows = [self.optimizer.state_of(p, group)["hessian"] for group, _, p in entries]
        return torch.cat([part[:, wanted.to(part.device)] for part in rows])

    def prior(self, entries: Sequence[Entry]) -> Tensor:
        """``lambda`` at every weight, in float64."""
        return torch.cat(
            [
                torch.as_tensor(
                    self.optimizer.state_of(p, group).get("prior_precision", group["prior_precision"]),
                    dtype=torch.float64,
                    device=p.device,
                )
                .expand(p.shape)
                .flatten()
                for group, _, p in entries
            ]
        )

    def precision(self, entries: Sequence[Entry]) -> Tensor:
        """``N (S + lt I)``; without the prior's part at ``tau = 0``."""
        first = self.optimizer.param_groups[0]
        scaled: Tensor = first["num_data"] * self.hessian(entries)
        return scaled + torch.diag(self.prior(entries) * (first["temperature"] > 0))

    def scores(self, sample: int) -> dict[Tensor, Tensor]:
        """``P (theta - mu)`` of every weight that has noise in this sample, in float64."""
        self._draw(sample)
        return self._scores

    def _draw(self, sample: int) -> None:
        entries = [e for e in self.optimizer.parameters() if e[2].requires_grad and e[0]["perturb"]]
        key = (self.optimizer.param_groups[0]["noise_step"], sample, *(index for _, index, _ in entries))
        if self._drawn == key:
            return
        self._drawn = ()
        factor, failed = torch.linalg.cholesky_ex(self.precision(entries))
        if failed:
            raise FloatingPointError(
                "the posterior precision must be positive definite to draw a sample, got one that is not "
                "(temperature 0 takes the prior's share away, which may have kept it so)"
            )
        draws = []
        for group, index, parameter in entries:
            mean = self.optimizer.state_of(parameter, group)["mean"]
            for block in blocks(mean, []):  # a copy: the next draw overwrites this one
                draws.append(self.eps(group, index, block, sample, mean).flatten().to(torch.float64, copy=True))
        eps = torch.cat(draws)
        moved = torch.linalg.solve_triangular(factor.mT, eps[:, None], upper=True)[:, 0]
        score = factor @ eps
        parameters = [p for _, _, p in entries]
        self._displacements = dict(zip(parameters, _parts(moved, entries), strict=True))
        self._scores = dict(zip(parameters, _parts(score, entries), strict=True))
        self._drawn = key

    def _write(self, group: dict[str, Any], index: int, parameter: Tensor, sample: int, adopt: bool) -> None:
        self._draw(sample)
        mean = self.optimizer.state_of(parameter, group)["mean"]
        self._written[parameter] = 0
        if adopt:
            follow(mean, parameter.detach())
        moved = self._displacements.get(parameter)  # none if it was frozen since: held at its mean
        theta = mean if moved is None else mean + moved.view(mean.shape).to(mean.dtype)
        self._written[parameter] = parameter.numel()
        parameter.copy_(theta)


class DenseHessianSource(HessianSource):
    """The whole Hessian of losses that the user hands over."""

    def __init__(self, optimizer: PerturbedOptimizer) -> None:
        super().__init__(optimizer)
        self.matrix: Tensor | None = None

    def discard(self) -> None:
        """See the protocol."""
        super().discard()
        self.matrix = None

    def backward(self, loss: Tensor) -> None:
        """See the protocol."""
        parameters, grads = self.differentiate(loss)
        found = hessian.matrix(grads, parameters).detach().double()
        if self.matrix is None:
            columns = width(self.optimizer.param_groups)
            self.matrix = found.new_zeros(columns, columns)
        entries = [e for e in self.optimizer.parameters() if e[2].requires_grad]
        wanted = positions(entries).to(found.device)
        self.matrix[wanted[:, None], wanted] += found
        self.add_gradients(parameters, grads)

    def curvature(self, parameter: Tensor) -> Tensor | None:
        """None: a matrix does not fall into parameters."""
        return None


class DenseGradients(Gradients):
    """One Newton step with the matrix."""

    sampler: DenseSampler

    def __init__(self, optimizer: PerturbedOptimizer, sampler: DenseSampler) -> None:
        super().__init__(optimizer, sampler)
        self._matrix: Tensor | None = None
        self._planned: tuple[Tensor, Tensor, list[Entry]] | None = None

    def discard(self) -> None:
        """Forget the samples collected so far."""
        super().discard()
        self._matrix, self._planned = None, None

    @torch.no_grad()
    def collect(self, hidden: Hidden) -> None:
        """Close a sample; the mean over the samples of the whole Hessian is kept."""
        share = 1.0 / (self.collected + 1)
        measured = self._measure(self.collected)
        self._matrix = measured if self._matrix is None else self._matrix.lerp_(measured, share)
        super().collect(hidden)

    def _add_curvature(self, group: dict[str, Any], index: int, parameter: Tensor, share: float) -> None:
        """Nothing: the matrix is kept."""

    def _collect_curvature(self, share: float) -> None:
        self._matrix = self._measure(0)

    def _measure(self, sample: int) -> Tensor:
        """The Hessian of this sample over all columns; zero where it is not known."""
        entries = list(self.optimizer.trained())
        columns = width(self.optimizer.param_groups)
        device = self.optimizer.param_groups[0]["params"][0].device
        found = torch.zeros(columns, columns, dtype=torch.float64, device=device)
        sign = -1.0 if self.optimizer.param_groups[0]["maximize"] else 1.0
        source = self.optimizer.source
        if isinstance(source, DenseHessianSource):
            return found if source.matrix is None else sign * source.matrix
        noisy = [e for e in entries if e[0]["perturb"]]
        if noisy:
            wanted = positions(noisy).to(device)
            scores = self.sampler.scores(sample)
            score = torch.cat([scores[p] for _, _, p in noisy])
            grad = torch.cat([self._dense(p).detach().flatten().double() for _, _, p in noisy])
            outer = 0.5 * sign * torch.outer(score, grad)
            found[wanted[:, None], wanted] = outer + outer.mT
        return found

    def prepare(self) -> bool:
        """Whether to step; plans the new Hessian, which must leave the precision positive."""
        if not super().prepare():
            return False
        entries = list(self.optimizer.trained())
        if not entries:
            return True
        assert self._matrix is not None
        if not self._matrix.isfinite().all():
            return self._refuse("the curvature of the loss must be finite")
        first = self.optimizer.param_groups[0]
        rate, tau = 1.0 - first["betas"][1], first["temperature"]
        wanted = positions(entries).to(self._matrix.device)
        scale = torch.cat(
            [self._matrix.new_full((p.numel(),), self.unscale * self._rescaled(p)) for _, _, p in entries]
        ).sqrt()
        current = self.sampler.hessian(entries)
        error = tau * current - scale[:, None] * self._matrix[wanted[:, None], wanted] * scale
        if first["hessian"] == "reparameterized":  # nothing is known of weights without noise
            known = torch.cat([scale.new_full((p.numel(),), float(g["perturb"])) for g, _, p in entries])
            error = known[:, None] * error * known
        prior = self.sampler.prior(entries) / first["num_data"]
        active = torch.diag(prior * (tau > 0))
        planned = current - rate * error
        if first["correction"] == "elementwise":
            second: Tensor = error @ torch.linalg.solve(current + active, error)
            planned += 0.25 * rate * rate * (second + second.mT)
        if torch.linalg.cholesky_ex(planned + active).info.item():
            return self._not_positive()
        self._planned = planned, planned + torch.diag(prior), entries
        self._keep_others(current + active, planned - current)
        return True

    def _keep_others(self, precision: Tensor, change: Tensor) -> None:
        """Plan for what has no gradient in this step: its own marginal posterior stays, whatever the others' does.

        Those follow a conditional posterior given it, of which only the precision changes and the regression on it does
        not. If the rows that they share stayed instead, all together might be no precision of anything.
        """
        assert self._planned is not None
        planned, divisor, entries = self._planned
        trained = {parameter for _, _, parameter in entries}
        others = [
            (group, index, parameter)
            for group, index, parameter in self.optimizer.parameters()
            if parameter in self.optimizer.state
            and parameter not in trained
            and group["columns"][index - group["noise_index"]] >= 0
        ]
        if not others:
            return
        count = len(planned)
        whole = self.sampler.hessian([*entries, *others])
        slopes = torch.linalg.solve(precision, whole[:count, count:])
        whole[:count, count:] += change @ slopes
        whole[count:, :count] = whole[:count, count:].mT
        whole[count:, count:] += slopes.mT @ change @ slopes
        whole[:count, :count] = planned
        self._planned = whole, divisor, [*entries, *others]

    def step(self) -> None:
        """Apply what was planned."""
        entries = list(self.optimizer.trained())
        if self._planned is None or not entries:
            return
        planned, divisor, known = self._planned
        prior_gradient = self.sampler.prior(entries) / self.optimizer.param_groups[0]["num_data"]
        parts = []
        for group, _, parameter in entries:
            state = self.optimizer.state_of(parameter, group)
            if self.sampler.weights == MEAN or not group["perturb"]:
                follow(state["mean"], parameter.detach())
            parts.append((state["mean"] - state.get("prior_mean", 0.0)).flatten().double())
        grad = torch.cat([self._dense(p).detach().flatten().double() for _, _, p in entries])
        grad = self._scale(self.optimizer.param_groups[0]) * grad
        grad += self.optimizer.param_groups[0]["temperature"] * prior_gradient * torch.cat(parts)
        move = torch.linalg.solve(divisor, grad)
        wanted = positions(known).to(planned.device)
        for (group, _, parameter), rows in zip(known, _parts(planned, known), strict=True):
            self.optimizer.state_of(parameter, group)["hessian"][:, wanted] = rows
        for (group, _, parameter), part in zip(entries, _parts(move, entries), strict=True):
            state = self.optimizer.state_of(parameter, group)
            state["mean"].sub_(float(group["lr"]) * part.view(parameter.shape).to(state["mean"].dtype))
            if self.sampler.weights == MEAN or not group["perturb"]:
                parameter.copy_(state["mean"])
            state.update(advance(state, hyper(group, state, {})))
