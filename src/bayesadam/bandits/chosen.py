"""The loss of a network with one output per action, when only the reward of the chosen action is known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from bayesadam.likelihoods import Likelihood
from bayesadam.population.batches import Batch
from bayesadam.population.curvature import Gradients
from bayesadam.population.objective import Losses, NegativeLogLikelihood


class ChosenRewards(NegativeLogLikelihood):
    """Mean negative log-likelihood of the rewards, each given the output of the action that was chosen.

    Targets are the number of the action and the reward, ``(k, M, 2)``.

    Args:
        models: One network per agent.
        likelihoods: One likelihood per agent, for one output, without learned parameters.
        clip: Largest Euclidean norm of a gradient over all weights, to which longer gradients are scaled; ``None`` for
            no limit.
    """

    def __init__(self, models: Sequence[nn.Module], likelihoods: Sequence[Likelihood], clip: float | None) -> None:
        super().__init__(models, likelihoods)
        self.clip = clip

    def losses(self, theta: Tensor, batch: Batch) -> Tensor:
        """Return the mean losses, as in the base class."""
        output = self.networks(self.networks.layout.split(theta), batch.x)
        return self._of_chosen(output.gather(3, _places(output, batch.y)), batch)

    def gradients(self, theta: Tensor, batch: Batch, curvature: str | None = None) -> Gradients:
        """Return losses and gradients, as in the base class; for plain perceptrons they are computed in closed form."""
        perceptron = self.networks.perceptron(batch.x)
        if perceptron is None or curvature == "exact":
            return self._clipped(Losses.gradients(self, theta, batch, curvature))
        trace = perceptron.trace(self.networks.layout.split(theta.detach()), batch.x)
        places = _places(trace.output, batch.y)
        chosen = trace.output.gather(3, places)
        slope = self.likelihoods.slope(chosen, batch.y[..., 1:])
        if slope is not None:
            losses, signal = self._of_chosen(chosen, batch), batch.shares(slope).neg()
        else:
            with torch.enable_grad():
                losses = self._of_chosen(chosen.requires_grad_(), batch)
                (signal,) = torch.autograd.grad(losses.sum(), chosen)
        everywhere = torch.zeros_like(trace.output).scatter_(3, places, signal)
        grads, squares = trace.backward(everywhere, squares=curvature == "empirical_fisher")
        # In the mean loss, the loss of a data point has the factor 1 / M.
        squares = None if squares is None else squares * batch.y.shape[1]
        return self._clipped(Gradients(losses.detach(), grads, squares))

    def _of_chosen(self, chosen: Tensor, batch: Batch) -> Tensor:
        return -batch.mean(self.likelihoods.log_density({}, chosen, batch.y[..., 1:]))

    def _clipped(self, found: Gradients) -> Gradients:
        if self.clip is None:
            return found
        norm = torch.linalg.vector_norm(found.grads, dim=2, keepdim=True)
        return found._replace(grads=found.grads * (self.clip / norm).clamp_max(1.0))


def _places(output: Tensor, targets: Tensor) -> Tensor:
    """Return the numbers of the chosen actions as an index, ``(k, S, M, 1)``."""
    return targets[:, None, :, :1].long().expand(-1, output.shape[1], -1, -1)
