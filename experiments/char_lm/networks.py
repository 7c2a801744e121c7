"""The two networks: torch-rnn's LSTM, and a small transformer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.char_lm.text import Rows, Streams, Windows

State = tuple[Tensor, Tensor]


class LSTM(nn.Module):
    """torch-rnn's language model, with its initialisation.

    A cell has one bias (the second of PyTorch's two is frozen at 0), 1 for the forget gate and else 0; the other
    weights of a layer are normal with variance ``1 / (inputs + hidden)``, embeddings standard normal.
    """

    def __init__(self, characters: int, *, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, characters)
        for layer in range(layers):
            scale = 1.0 / math.sqrt((embedding if layer == 0 else hidden) + hidden)
            for name in ("weight_ih", "weight_hh"):
                nn.init.normal_(getattr(self.lstm, f"{name}_l{layer}"), 0.0, scale)
            bias, other = getattr(self.lstm, f"bias_ih_l{layer}"), getattr(self.lstm, f"bias_hh_l{layer}")
            nn.init.zeros_(bias)
            nn.init.ones_(bias[hidden : 2 * hidden])  # PyTorch's order is input, forget, cell, output
            nn.init.zeros_(other).requires_grad_(False)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return logits ``(batch, length, characters)`` and the state after the last character."""
        hidden, state = self.lstm(self.embedding(x), state)
        return self.head(hidden), state


class Block(nn.Module):
    """Causal attention and a perceptron, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden states for hidden states, both ``(batch, length, width)``."""
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        x = x + self.outer(F.gelu(self.inner(self.norm2(x))))
        return x


class Transformer(nn.Module):
    """A decoder with learned positions; linear weights and embeddings start normal with standard deviation 0.02."""

    def __init__(self, characters: int, *, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                small = 0.02 / math.sqrt(2 * layers) if name.endswith(("projection.weight", "outer.weight")) else 0.02
                nn.init.normal_(parameter, 0.0, small)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return logits ``(batch, length, characters)``, without a state."""
        hidden = self.embedding(x) + self.position.weight[: x.shape[1]]
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden)), None


NETWORKS: Mapping[str, tuple[Callable[..., nn.Module], type[Streams] | type[Windows]]] = {
    "lstm": (LSTM, Streams),
    "transformer": (Transformer, Windows),
}
"""Each network with the order in which it reads the text."""


def build(config: Mapping[str, Any], characters: int) -> nn.Module:
    """Create the network of a unit, initialised with its seed."""
    torch.manual_seed(config["seed"])
    return NETWORKS[config["network"]][0](characters, **config["sizes"])


def rows(config: Mapping[str, Any], codes: Tensor) -> Rows:
    """Return a part of the text in the form in which the network of a unit reads it."""
    return NETWORKS[config["network"]][1](codes, config["batch_size"], config["length"])
