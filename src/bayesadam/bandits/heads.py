"""Posterior samples of the outputs of trained networks, for each kind of posterior."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesadam import noise
from bayesadam.bandits.linear import with_intercept
from bayesadam.bandits.regression import ArmRegressions
from bayesadam.likelihoods import Likelihood
from bayesadam.population.chunk import Chunk
from bayesadam.population.networks import Networks
from bayesadam.population.perceptron import Layers, Perceptron, plain_layers
from bayesadam.posthoc.badam import badam_from_moments, unbiased

_ROWS = 4096
_MASKS = 2
"""Step number of the noise of dropout masks; posterior weights and low-rank factors use steps 0 and 1."""


class Head(abc.ABC):
    """Outputs of ``P`` networks at one posterior sample each; in this base class there is no uncertainty.

    Attributes:
        mean: Means of the weights, ``(P, numel)``.
        in_rewards: Whether outputs are expected rewards, and not yet parameters of the likelihood.
    """

    mean: Tensor
    in_rewards = False

    def __init__(self, networks: Networks, width: float) -> None:
        self.networks, self.width = networks, width

    def follow(self, chunk: Chunk) -> None:
        """Take the weights of the networks after training."""
        self.mean = chunk.mean

    @torch.no_grad()
    def outputs(self, contexts: Tensor, number: int | None, seeds: Sequence[int]) -> Tensor:
        """Return the outputs ``(P, n, A)`` under sample ``number``, or at the mean if it is ``None``."""
        weights = self.mean if number is None else self.sample(number, seeds)
        self.networks.train(False)
        return self.networks(self.networks.layout.split(weights.unsqueeze(1)), contexts).squeeze(1)

    def sample(self, number: int, seeds: Sequence[int]) -> Tensor:
        """Return sampled weights, ``(P, numel)``."""
        return self.mean

    def fit(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:  # noqa: B027
        """Learn from all rows after training. Only heads with regressions on features do this."""

    def add(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:  # noqa: B027
        """Learn from new rows immediately. Only heads with regressions on features do this."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors that :meth:`fit` and :meth:`add` have learned."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:  # noqa: B027
        """Restore the result of :meth:`tensors`."""


class Point(Head):
    """The network itself, without uncertainty."""


class MeanField(Head):
    """Independent Gaussian weights: the posterior of the rule that trained them."""

    deviation: Tensor

    def __init__(self, networks: Networks, width: float) -> None:
        super().__init__(networks, width)
        self._sizes = dict(enumerate(networks.layout.sizes))
        self._scratch = noise.Scratch()

    def follow(self, chunk: Chunk) -> None:
        """Take means and variances, as in the base class."""
        self.mean, self.deviation = chunk.mean, chunk.variance().sqrt_().mul_(self.width)

    def sample(self, number: int, seeds: Sequence[int]) -> Tensor:
        """Return sampled weights, as in the base class."""
        eps = noise.normal_many(
            list(seeds),
            [0] * len(seeds),
            [number],
            self._sizes,
            stream=noise.POSTERIOR,
            device=self.mean.device,
            scratch=self._scratch,
        )
        return torch.addcmul(self.mean, eps[:, 0].to(self.mean.dtype), self.deviation)


class Badam(MeanField):
    """The Gaussian of :func:`bayesadam.badam`, from the second moments of Adam.

    Args:
        networks: Networks of the agents.
        width: Factor of the standard deviations.
        weights: ``"map"`` or ``"mle"``.
        prior_precision: Precision of the weights' prior.
    """

    def __init__(self, networks: Networks, width: float, weights: str, prior_precision: float) -> None:
        super().__init__(networks, width)
        self._weights, self._prior_precision = weights, prior_precision

    def follow(self, chunk: Chunk) -> None:
        """Take the weights, as in the base class. Before the first step there are no moments and no uncertainty."""
        own = chunk.hypers[0]
        if chunk.steps[0] == 0:
            self.mean, self.deviation = chunk.mean, torch.zeros_like(chunk.mean)
            return
        found = badam_from_moments(
            [("all", chunk.mean, unbiased(chunk.state["exp_avg_sq"], own["betas"][1], chunk.steps[0]))],
            num_data=own["num_data"],
            prior_precision=self._prior_precision,
            optimizer="Adam",
            weights=self._weights,
        )
        self.mean, self.deviation = found.mean["all"], found.variance["all"].sqrt().mul_(self.width)


class Dropout(Head):
    """MC dropout: in a sample, the columns of the weights that belong to dropped units are 0.

    Args:
        networks: Plain perceptrons with ``nn.Dropout`` before some of their linear layers.
        width: Not used, since masks have no width.
    """

    def __init__(self, networks: Networks, width: float) -> None:
        super().__init__(networks, width)
        self._rates: dict[str, float] = {}
        kept = 1.0
        for prefix, layer in _layers(networks):
            if isinstance(layer, nn.Dropout):
                kept *= 1.0 - layer.p
            elif isinstance(layer, nn.Linear):
                if kept < 1.0:
                    self._rates[f"{prefix}weight"] = 1.0 - kept
                kept = 1.0
        self._scratch = noise.Scratch()

    def sample(self, number: int, seeds: Sequence[int]) -> Tensor:
        """Return sampled weights, as in the base class."""
        layout = self.networks.layout
        weights = layout.split(self.mean.clone())
        sizes = {i: layout.shapes[name][1] for i, name in enumerate(self._rates)}
        eps = noise.normal_many(
            list(seeds),
            [_MASKS] * len(seeds),
            [number],
            sizes,
            stream=noise.POSTERIOR,
            device=self.mean.device,
            scratch=self._scratch,
        )[:, 0]
        parts = eps.split_with_sizes(list(sizes.values()), dim=1)
        for (name, rate), part in zip(self._rates.items(), parts, strict=True):
            quantile = torch.special.ndtri(torch.tensor(rate, dtype=torch.float64)).item()
            weights[name] = weights[name] * ((part >= quantile).to(self.mean.dtype) / (1.0 - rate)).unsqueeze(1)
        return layout.flatten(weights)


class LastLayer(Head):
    """Exact regressions of the rewards on the units before the last layer.

    With ``laplace`` their posterior is centred on the trained weights, which is the last-layer Laplace approximation:
    every row counts with the curvature of the likelihood at its output. Otherwise it is the posterior of the
    regressions, which do not use the trained last layer ("neural-linear").

    Args:
        networks: Plain perceptrons that end with a linear layer.
        width: Factor of the standard deviations.
        laplace: Whether to centre the posterior on the trained weights.
        agents: Number of agents ``P``.
        actions: Number of actions ``A``.
        prior_precision: Precision of the prior of the last layer's weights.
        noise_precision: Precision of the standardised rewards' noise; ``None`` learns it.
        likelihood: Likelihood of the rewards for the Laplace approximation; ``None`` for Gaussian rewards with the
            noise precision.
    """

    def __init__(
        self,
        networks: Networks,
        width: float,
        laplace: bool,
        agents: int,
        actions: int,
        prior_precision: float,
        noise_precision: float | None,
        likelihood: Likelihood | None,
    ) -> None:
        super().__init__(networks, width)
        *before, (prefix, last) = _layers(networks)
        if not isinstance(last, nn.Linear) or last.bias is None or last.out_features != actions:
            raise ValueError(f"model must end with a linear layer with a bias and {actions} outputs, got {last!r}")
        self._before = Perceptron([(name, layer) for name, layer in before if not isinstance(layer, nn.Dropout)])
        self._last = f"{prefix}weight", f"{prefix}bias"
        self._laplace, self.in_rewards = laplace, not laplace
        self._likelihood = likelihood if laplace else None
        noise_precision = noise_precision if self._likelihood is None else 1.0
        self.arms = ArmRegressions(
            agents, actions, last.in_features + 1, prior_precision=prior_precision, noise_precision=noise_precision
        )

    @torch.no_grad()
    def features(self, contexts: Tensor) -> Tensor:
        """Return the features ``(P, n, F)``, with an intercept."""
        weights = self.networks.layout.split(self.mean.unsqueeze(1))
        return with_intercept(self._before(weights, contexts).squeeze(1))

    @torch.no_grad()
    def outputs(self, contexts: Tensor, number: int | None, seeds: Sequence[int]) -> Tensor:
        """Return the outputs, as in the base class."""
        center = self._center() if self._laplace else None
        if number is None:
            drawn = self.arms.mean() if center is None else center
        else:
            drawn = self.arms.sample(number, seeds, center=center, width=self.width)
        return self.features(contexts).double() @ drawn.transpose(1, 2)

    def fit(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Fit the regressions to all rows."""
        self.arms.forget()
        for first in range(0, actions.shape[1], _ROWS):
            part = slice(first, first + _ROWS)
            self.add(contexts[:, part], actions[:, part], rewards[:, part])

    def add(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Add new rows to the regressions."""
        features = self.features(contexts)
        if self._likelihood is not None:
            weights = self._center().gather(1, actions.unsqueeze(2).expand(-1, -1, features.shape[2]))
            output = (features * weights).sum(2).view(-1, 1)
            root = self._likelihood.fisher_factor(output, rewards.to(output.dtype).view(-1, 1))
            features = features * root.square().sum(3).sqrt().view(*actions.shape, 1)
        self.arms.add(features, actions, rewards)

    def _center(self) -> Tensor:
        """Return the trained weights and biases of the last layer, ``(P, A, F)``."""
        weights = self.networks.layout.split(self.mean)
        return torch.cat([weights[self._last[0]], weights[self._last[1]].unsqueeze(2)], dim=2).double()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the regressions."""
        return self.arms.tensors()

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the regressions."""
        self.arms.restore(tensors)


def _layers(networks: Networks) -> Layers:
    layers = plain_layers(networks.template)
    if layers is None:
        raise ValueError(f"model must be an nn.Sequential of linear layers and activations, got {networks.template!r}")
    return layers
