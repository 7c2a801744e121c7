"""Actor and critic of the published code, with its initial values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Sequence


class Actor(nn.Module):
    """Two hidden layers of ReLU; ``tanh`` times the bound of the actions.

    Weights start as ``N(0, 0.3^2)``, those of the output as ``U(-0.003, 0.003)``; all biases are 0.1.
    """

    def __init__(
        self, inputs: int, actions: int, hidden: Sequence[int], bound: float, generator: torch.Generator
    ) -> None:
        super().__init__()
        first, second = hidden
        self.layers = nn.Sequential(
            nn.Linear(inputs, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, actions)
        )
        self.bound = bound
        with torch.no_grad():
            for layer in self.layers[::2]:
                layer.weight.normal_(0.0, 0.3, generator=generator)
                layer.bias.fill_(0.1)
            self.layers[-1].weight.uniform_(-0.003, 0.003, generator=generator)

    def forward(self, states: Tensor) -> Tensor:
        """Actions, of shape ``(n, actions)``, for states of shape ``(n, inputs)``."""
        return self.bound * torch.tanh(self.layers(states))


class Critic(nn.Module):
    """Two hidden layers of ReLU, the action enters at the second; linear output.

    Weights start as ``N(0, 0.02^2)`` cut at two standard deviations, those of the output as ``U(-0.003, 0.003)``;
    biases are 0.
    """

    def __init__(self, inputs: int, actions: int, hidden: Sequence[int], generator: torch.Generator) -> None:
        super().__init__()
        first, second = hidden
        self.state = nn.Linear(inputs, first)
        self.hidden = nn.Linear(first, second)
        self.action = nn.Linear(actions, second, bias=False)
        self.output = nn.Linear(second, 1)
        with torch.no_grad():
            for layer in (self.state, self.hidden, self.action):
                nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.04, b=0.04, generator=generator)
            for layer in (self.state, self.hidden, self.output):
                layer.bias.zero_()
            self.output.weight.uniform_(-0.003, 0.003, generator=generator)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        """Values, of shape ``(n, 1)``."""
        return self.output(torch.relu(self._hidden(states, actions)))

    @torch.no_grad()
    def action_gradient(self, states: Tensor, actions: Tensor) -> Tensor:
        """``dQ / da`` at every state, of the shape of the actions: they enter late, so nothing else is passed back."""
        active = self._hidden(states, actions) > 0
        return torch.where(active, self.output.weight, 0.0) @ self.action.weight

    def _hidden(self, states: Tensor, actions: Tensor) -> Tensor:
        return self.hidden(torch.relu(self.state(states))) + self.action(actions)
