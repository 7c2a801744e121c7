"""Bayesian linear regressions, one for every agent and action, updated row by row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

SHAPE, RATE = 6.0, 6.0
"""Parameters of the inverse gamma prior of an unknown noise variance (Riquelme et al. 2018)."""

_STREAM = 2


class ArmRegressions:
    """``r = w_a' x + noise`` for every agent and action, in closed form and float64 (Bishop 2006, section 3.3)::

        Lambda = prior_precision I + sum x x',  mean = Lambda^-1 sum x r
        w | sigma^2 ~ N(mean, sigma^2 Lambda^-1)
        sigma^2 ~ InvGamma(6 + n / 2, 6 + (sum r^2 - mean' Lambda mean) / 2)

    With a known noise precision ``b`` the prior ``N(0, 1 / prior_precision)`` does not depend on the noise,
    ``Lambda = prior_precision I / b + sum x x'`` and ``sigma^2 = 1 / b``.

    With ``standardize`` this is the model of the rewards after an agent's mean reward has been subtracted, and they
    have been divided by their standard deviation. As the sums are kept in the units of the rewards, the posterior is
    always that of all rewards so far under their present mean and deviation.

    Args:
        agents: Number of agents ``P``.
        actions: Number of actions ``A``.
        width: Number of features ``F`` of ``x``.
        prior_precision: Precision of the prior, positive.
        noise_precision: Precision of the noise, or ``None`` if it is unknown.
        standardize: Whether rewards are standardised. The last feature must then be 1, the intercept.
    """

    def __init__(
        self,
        agents: int,
        actions: int,
        width: int,
        *,
        prior_precision: float,
        noise_precision: float | None,
        standardize: bool = False,
    ) -> None:
        self.noise_precision, self.standardize = noise_precision, standardize
        self._ridge = prior_precision / (noise_precision or 1.0)
        self._width = width
        self.count = torch.zeros(agents, 0, dtype=torch.float64)
        self.gram = torch.zeros(agents, 0, width, width, dtype=torch.float64)
        self.moment = torch.zeros(agents, 0, width, dtype=torch.float64)
        self.square = torch.zeros(agents, 0, dtype=torch.float64)
        self._root = self.gram.clone()
        self._solved, self._constant = self.moment.clone(), self.moment.clone()
        self.grow(actions)

    def grow(self, count: int) -> None:
        """Add actions without observations."""
        agents = len(self.gram)
        eye = torch.eye(self._width, dtype=torch.float64).expand(agents, count, -1, -1)
        self.gram = torch.cat([self.gram, self._ridge * eye], dim=1)
        self._root = torch.cat([self._root, self._ridge**-0.5 * eye], dim=1)
        self.moment, self._solved, self._constant = (
            torch.cat([part, part.new_zeros(agents, count, self._width)], dim=1)
            for part in (self.moment, self._solved, self._constant)
        )
        self.count, self.square = (
            torch.cat([part, part.new_zeros(agents, count)], dim=1) for part in (self.count, self.square)
        )
        self._stale = torch.zeros(self.count.shape, dtype=torch.bool)

    def forget(self) -> None:
        """Remove all observations, so that the posterior is the prior."""
        self.gram.zero_().diagonal(dim1=-2, dim2=-1).fill_(self._ridge)
        for part in (self.count, self.moment, self.square):
            part.zero_()
        self._stale.fill_(True)

    def add(self, x: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Add features ``(P, n, F)`` with their actions and rewards ``(P, n)``."""
        agents, rows = actions.shape
        if rows == 1:
            where, chosen, own = torch.arange(agents), actions[:, 0], x[:, 0].double()
            reward = rewards[:, 0].double()
            self.gram[where, chosen] += own.unsqueeze(2) * own.unsqueeze(1)
            self.moment[where, chosen] += own * reward[:, None]
            self.count[where, chosen] += 1.0
            self.square[where, chosen] += reward.square()
            self._stale[where, chosen] = True
            return
        for agent in range(agents):
            for action in torch.unique(actions[agent]).tolist():
                chosen = (actions[agent] == action).nonzero()[:, 0]
                own, reward = x[agent, chosen].double(), rewards[agent, chosen].double()
                self.gram[agent, action] += own.T @ own
                self.moment[agent, action] += reward @ own
                self.count[agent, action] += len(chosen)
                self.square[agent, action] += reward.square().sum()
                self._stale[agent, action] = True

    def mean(self) -> Tensor:
        """Return the posterior means, ``(P, A, F)``, in the units of the rewards."""
        self._solve()
        shift, scale = self._units()
        return self._in_units(self._means(shift, scale), shift, scale)

    def sample(self, number: int, seeds: Sequence[int], *, center: Tensor | None = None, width: float = 1.0) -> Tensor:
        """Draw the weights of all agents and actions once, ``(P, A, F)``, in the units of the rewards. The draw depends
        only on seed and number.

        Args:
            number: Number of the draw.
            seeds: Seeds of the agents.
            center: Centre of the draw instead of the posterior means.
            width: Factor of the standard deviations.
        """
        self._solve()
        shift, scale = self._units()
        mean = self._means(shift, scale)
        moment = (self.moment - shift[..., None] * self._sums()) / scale[..., None]
        square = (self.square - shift * (2.0 * self.moment[..., -1] - shift * self.count)) / scale.square()
        eps, variance = np.empty(self.moment.shape), np.empty(self.count.shape)
        rate = RATE + 0.5 * (square - (mean * moment).sum(2)).clamp_min(0.0).numpy()
        for agent, seed in enumerate(seeds):
            generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, _STREAM, number]))
            eps[agent] = generator.standard_normal(eps.shape[1:])
            if self.noise_precision is None:
                variance[agent] = rate[agent] / generator.gamma(SHAPE + 0.5 * self.count[agent].numpy())
            else:
                variance[agent] = 1.0 / self.noise_precision
        noise = (self._root @ torch.from_numpy(eps).unsqueeze(3)).squeeze(3)
        center = mean if center is None else center
        drawn = center + width * torch.from_numpy(variance).sqrt().unsqueeze(2) * noise
        return self._in_units(drawn, shift, scale)

    def _units(self) -> tuple[Tensor, Tensor]:
        """Return means and standard deviations of the rewards of every agent, ``(P, 1)`` each, or 0 and 1."""
        total = self.count.sum(1, keepdim=True).clamp_min(1.0)
        shift, scale = torch.zeros_like(total), torch.ones_like(total)
        if self.standardize:
            shift = self.moment[..., -1].sum(1, keepdim=True) / total
            spread = (self.square.sum(1, keepdim=True) / total - shift.square()).clamp_min(0.0).sqrt()
            scale = torch.where(spread > 1e-6 * shift.abs(), spread, scale)
        return shift, scale

    def _sums(self) -> Tensor:
        """Return the sums of the features, ``(P, A, F)``, if the last feature is the intercept."""
        sums = self.gram[..., -1].clone()
        sums[..., -1] -= self._ridge
        return sums

    def _means(self, shift: Tensor, scale: Tensor) -> Tensor:
        """Return the posterior means for standardised rewards, ``(P, A, F)``."""
        return (self._solved - shift[..., None] * self._constant) / scale[..., None]

    def _in_units(self, weights: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """Convert weights for standardised rewards to the units of the rewards."""
        weights = scale[..., None] * weights
        weights[..., -1] += shift
        return weights

    def _solve(self) -> None:
        """Bring the regressions with new rows up to date: ``Lambda^-1 sum x r``, ``Lambda^-1 sum x``, and roots ``R``
        with ``R R' = Lambda^-1``.
        """
        if not self._stale.any():
            return
        stale = self._stale
        lower = torch.linalg.cholesky(self.gram[stale])
        eye = torch.eye(self._width, dtype=lower.dtype).expand_as(lower)
        root = torch.linalg.solve_triangular(lower, eye, upper=False).transpose(1, 2)
        self._root[stale] = root
        solved = [(self._solved, self.moment)]
        if self.standardize:
            solved.append((self._constant, self._sums()))
        for place, sums in solved:
            place[stale] = (root @ (root.transpose(1, 2) @ sums[stale].unsqueeze(2))).squeeze(2)
        self._stale = torch.zeros_like(stale)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to be saved."""
        return {"count": self.count, "gram": self.gram, "moment": self.moment, "square": self.square}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the result of :meth:`tensors`."""
        for name, value in self.tensors().items():
            value.copy_(tensors[name])
        self._stale.fill_(True)
