"""Losses and gradients of plain perceptrons under a likelihood, without autograd through the network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesadam.curvature.perceptron import Perceptron
from bayesadam.curvature.totals import Scratch
from bayesadam.likelihoods import Likelihood
from bayesadam.modules.calls import call_with
from bayesadam.modules.perceptrons import Layers, plain_layers
from bayesadam.population.batches import Batch
from bayesadam.population.curvature import Gradients, diagonal
from bayesadam.population.layout import Layout
from bayesadam.population.objective import Member

Tensors = Mapping[str, Tensor]


class ClosedForm:
    """Perceptrons of which all parameters are trained, under a likelihood.

    The likelihood's learned parameters and those that differ between members broadcast against the outputs, as
    :meth:`Likelihood.element_log_density` guarantees.

    Args:
        layers: Layers of the network.
        likelihood: The likelihood.
        weights: Layout of the network's weights, the first coordinates.
        learned: Layout of the likelihood's learned parameters, the others.
    """

    def __init__(self, layers: Layers, likelihood: Likelihood, weights: Layout, learned: Layout) -> None:
        self._layers, self._likelihood, self._scratch = layers, likelihood, Scratch()
        self._weights, self._learned = weights, learned
        self._log_density, self._score = _Method(likelihood, "log_density"), _Method(likelihood, "score")
        self._has_score = likelihood.defines("score") and not self._learned.shapes

    @classmethod
    def of(cls, member: Member, weights: Layout, learned: Layout, constants: Tensors) -> ClosedForm | None:
        """The closed form for members, given their layouts and the constants that differ, if there is one."""
        layers, likelihood = plain_layers(member.model), member.likelihood
        if layers is None or not isinstance(likelihood, Likelihood):
            return None
        if not all(p.requires_grad for p in member.model.parameters()):
            return None
        if (constants or learned.shapes) and not likelihood.defines("element_log_density"):
            return None
        return cls(layers, likelihood, weights, learned)

    def handles(self, batch: Batch, curvature: str | None) -> bool:
        """Whether there is a closed form for inputs of this shape and this curvature."""
        return batch.x.ndim == 3 and (curvature != "exact" or len(self._layers) == 1)

    def outputs(self, weights: Tensors, x: Tensor) -> Tensor:
        """Outputs ``(S, N, ...)`` for inputs ``(N, D)`` at weights ``(S, *shape)``."""
        return Perceptron(self._layers, {name: value[None] for name, value in weights.items()}, x[None]).output[0]

    def gradients(self, theta: Tensor, constants: Tensors, batch: Batch, curvature: str | None) -> Gradients:
        """Losses, gradients and curvature, as in :meth:`bayesadam.population.losses.Losses.gradients`."""
        weights, learned = theta.split_with_sizes([self._weights.numel, self._learned.numel], dim=-1)
        with torch.no_grad():
            trace = Perceptron(self._layers, self._weights.split(weights), batch.x, scratch=self._scratch)
        inputs: list[Tensor] = []
        if self._has_score and curvature != "exact":
            losses = self._losses(trace.output, learned, constants, batch)
            grads: Sequence[Tensor] = [batch.shares(self._slope(trace.output, constants, batch.y)).neg()]
        else:
            inputs = [trace.output.detach().requires_grad_()]
            if self._learned.shapes:
                learned = learned.clone().requires_grad_()
                inputs.append(learned)
            with torch.enable_grad():
                losses = self._losses(inputs[0], learned, constants, batch)
                grads = torch.autograd.grad(losses.sum(), inputs, create_graph=curvature == "exact")
        rows, squares = trace.backward(grads[0].detach(), squares=curvature == "empirical_fisher")
        firsts, seconds = [*rows, *(grad.detach() for grad in grads[1:])], []
        if curvature == "exact":
            seconds = trace.second(diagonal(grads[0], inputs[0]))
            seconds += [diagonal(grad, value) for grad, value in zip(grads[1:], inputs[1:], strict=True)]
        elif squares:
            # In the mean loss, the loss of a data point has the factor 1 / M.
            size = len(batch.y[0]) if batch.weight is None else batch.weight[:, :1, None].reciprocal().to(theta)
            seconds = [square * size for square in squares]
        return Gradients(losses.detach(), _joined(firsts), _joined(seconds) if seconds else None)

    def _losses(self, output: Tensor, learned: Tensor, constants: Tensors, batch: Batch) -> Tensor:
        """Mean losses ``(k, S)`` at outputs ``(k, S, M, D)`` and learned parameters ``(k, S, n)``."""
        values = self._aligned(constants, output, 1)
        if self._learned.shapes:
            values |= self._aligned(self._learned.split(learned), output, 2)
        if values:  # they broadcast, which costs much less than vmap
            return -batch.mean(call_with(self._log_density, values, (output, batch.y.unsqueeze(1))))
        count, samples, points = output.shape[:3]
        rows = output.transpose(0, 1).reshape(samples, count * points, *output.shape[3:])
        density = self._likelihood.log_density(rows, batch.y.flatten(0, 1))
        return -batch.mean(density.view(samples, count, points, *density.shape[2:]).transpose(0, 1))

    def _slope(self, output: Tensor, constants: Tensors, target: Tensor) -> Tensor:
        """``d log p / d output``, of the output's shape."""
        values, inputs = self._aligned(constants, output, 1), (output, target.unsqueeze(1))
        slope: Tensor = call_with(self._score, values, inputs) if values else self._likelihood.score(*inputs)
        return slope

    @staticmethod
    def _aligned(values: Tensors, output: Tensor, leading: int) -> dict[str, Tensor]:
        """Parameters of the first members, with new axes after the leading ones, so that they broadcast."""
        first = {name: value[: len(output)] for name, value in values.items()}
        axes = [1] * output.ndim
        return {n: v.view(*v.shape[:leading], *axes[v.ndim :], *v.shape[leading:]) for n, v in first.items()}


class _Method(nn.Module):
    """A method of a likelihood as the forward method of a module, as ``call_with`` needs it."""

    def __init__(self, likelihood: Likelihood, name: str) -> None:
        super().__init__()
        self.likelihood = likelihood
        self.name = name

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        result: Tensor = getattr(self.likelihood, self.name)(output, target)
        return result


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The coordinates of all tensors of the network, followed by those of the likelihood if there are any."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim=2)
