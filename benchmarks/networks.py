"""Networks of several benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.append(str(Path(__file__).parents[1]))  # the folder of the experiments
from experiments.networks import resnet as resnet


def perceptron(
    *widths: int, layer: Callable[[int, int], nn.Module] = nn.Linear, seed: int | None = None
) -> nn.Sequential:
    """Linear layers with ReLU in between, from torch's global generator, which ``seed`` seeds."""
    if seed is not None:
        torch.manual_seed(seed)
    return nn.Sequential(*[m for i, o in pairwise(widths) for m in (layer(i, o), nn.ReLU())][:-1])


class Block(nn.Module):
    """Causal attention and a perceptron, each normalised before, and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_perceptron = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """States ``(N, T, width)`` to states."""
        count, length, width = x.shape
        asked = self.attention(self.before_attention(x)).view(count, length, 3, self.heads, width // self.heads)
        query, key, value = asked.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).reshape(count, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.before_perceptron(x))))


class Transformer(nn.Module):
    """Tokens ``(N, T)`` to logits of the next ones, ``(N, T, C)``, by blocks of causal attention."""

    def __init__(self, tokens: int, *, width: int, depth: int, length: int, heads: int = 4) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)

    def forward(self, x: Tensor) -> Tensor:
        """Logits at every position."""
        # One row of positions for every example: what squares the gradients of examples needs that.
        places = torch.arange(x.shape[1], device=x.device).expand(x.shape)
        hidden = self.tokens(x) + self.places(places)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))
