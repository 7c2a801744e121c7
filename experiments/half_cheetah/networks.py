"""Actor and critic of the published code, with its initial values, as functions of one vector of weights each.

Their gradients are written out for speed: a step of training consists of a dozen products of small matrices, and
automatic differentiation and a list of parameters would take an additional quarter of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]


class Network:
    """A vector of weights with its gradient, and views of both as matrices and biases.

    Attributes:
        weights: The vector.
        gradient: Gradient of the last call of ``backward``.
    """

    def __init__(self, shapes: Sequence[Shape]) -> None:
        sizes = [math.prod(shape) for shape in shapes]
        self.weights = nn.Parameter(torch.zeros(sum(sizes)))
        self.gradient = torch.zeros(sum(sizes))
        self.parts, self.slopes = (
            [part.view(shape) for part, shape in zip(torch.split(vector, sizes), shapes, strict=True)]
            for vector in (self.weights.data, self.gradient)
        )

    def _layer_gradient(self, number: int, inputs: Tensor, slope: Tensor) -> None:
        """Store the gradients of the matrix with this number and of the bias that follows it."""
        torch.mm(slope.t(), inputs, out=self.slopes[number])
        torch.sum(slope, 0, out=self.slopes[number + 1])


class Actor(Network):
    """Two hidden layers of ReLU; ``tanh`` times the bound of the actions.

    Weights start as ``N(0, 0.3^2)``, those of the output as ``U(-0.003, 0.003)``; all biases are 0.1.
    """

    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], bound: float, generator: torch.Generator
    ) -> None:
        first, second = hidden
        super().__init__([(first, inputs), (first,), (second, first), (second,), (actions, second), (actions,)])
        self.bound = bound
        for matrix in (self.parts[0], self.parts[2]):
            matrix.normal_(0.0, 0.3, generator=generator)
        self.parts[4].uniform_(-0.003, 0.003, generator=generator)
        for bias in self.parts[1::2]:
            bias.fill_(0.1)

    def __call__(self, states: Tensor) -> Tensor:
        """Return actions ``(n, actions)`` for states ``(n, inputs)``."""
        matrix_1, bias_1, matrix_2, bias_2, matrix_3, bias_3 = self.parts
        self.hidden_1 = torch.addmm(bias_1, states, matrix_1.t()).relu_()
        self.hidden_2 = torch.addmm(bias_2, self.hidden_1, matrix_2.t()).relu_()
        self.squashed = torch.addmm(bias_3, self.hidden_2, matrix_3.t()).tanh_()
        return self.squashed * self.bound

    def backward(self, states: Tensor, slope: Tensor) -> None:
        """Compute the gradient of ``sum(slope * actions)``; ``states`` must be those of the last call."""
        slope = slope * self.bound * (1.0 - self.squashed.square())
        self._layer_gradient(4, self.hidden_2, slope)
        slope = (slope @ self.parts[4]).mul_(self.hidden_2 > 0)
        self._layer_gradient(2, self.hidden_1, slope)
        slope = (slope @ self.parts[2]).mul_(self.hidden_1 > 0)
        self._layer_gradient(0, states, slope)


class Critic(Network):
    """Two hidden layers of ReLU and a linear output. The action is an input of the second layer.

    Weights start as ``N(0, 0.02^2)`` cut at two standard deviations, those of the output as ``U(-0.003, 0.003)``;
    biases are 0.
    """

    def __init__(self, inputs: int, actions: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        first, second = hidden
        shapes = [(first, inputs), (first,), (second, first), (second,), (1, second), (1,), (second, actions)]
        super().__init__(shapes)
        for matrix in (self.parts[0], self.parts[2], self.parts[6]):
            nn.init.trunc_normal_(matrix, std=0.02, a=-0.04, b=0.04, generator=generator)
        self.parts[4].uniform_(-0.003, 0.003, generator=generator)

    def __call__(self, states: Tensor, actions: Tensor) -> Tensor:
        """Return values, ``(n, 1)``."""
        matrix_1, bias_1, matrix_2, bias_2, matrix_3, bias_3, action = self.parts
        self.hidden_1 = torch.addmm(bias_1, states, matrix_1.t()).relu_()
        self.hidden_2 = torch.addmm(bias_2, self.hidden_1, matrix_2.t()).addmm_(actions, action.t()).relu_()
        return torch.addmm(bias_3, self.hidden_2, matrix_3.t())

    def backward(self, states: Tensor, actions: Tensor, slope: Tensor) -> None:
        """Compute the gradient of ``sum(slope * values)``; states and actions must be those of the last call."""
        self._layer_gradient(4, self.hidden_2, slope)
        slope = (slope @ self.parts[4]).mul_(self.hidden_2 > 0)
        torch.mm(slope.t(), actions, out=self.slopes[6])
        self._layer_gradient(2, self.hidden_1, slope)
        slope = (slope @ self.parts[2]).mul_(self.hidden_1 > 0)
        self._layer_gradient(0, states, slope)

    def action_gradient(self) -> Tensor:
        """Return ``dQ / da`` at the states and actions of the last call; it is cheap, as actions enter late."""
        return torch.mul(self.parts[4], self.hidden_2 > 0) @ self.parts[6]
