"""Ratings: what a user thinks of a joke, from embeddings of both: nearly all weights belong to single users."""

from __future__ import annotations

from functools import partial

import torch
from torch import Generator, Tensor, nn

import bayesadam as ba
from default_tasks.task import Data, Part, Task
from public_data import load

USERS, RATED = 1_500, 12
"""Users, and how many of the 40 jokes each rates in the training part."""


def opinions(seed: int, size: int | None) -> Data:
    """Jester's ratings of 40 jokes, divided by their standard deviation: of every user 12 to train, 3 to validate and
    10 to test.
    """
    ratings = torch.as_tensor(load("bandits/jester").x_train, dtype=torch.float32)
    generator = Generator().manual_seed(seed)
    users = ratings[torch.randperm(len(ratings), generator=generator)[: size or USERS]]
    users = (users - users.mean()) / users.std()
    order = torch.rand(users.shape, generator=generator).argsort(1)

    def part(first: int, last: int) -> Part:
        jokes = order[:, first:last]
        rows = torch.arange(len(users)).unsqueeze(1).expand_as(jokes)
        return torch.stack([rows, jokes], -1).flatten(0, 1), users.gather(1, jokes).reshape(-1, 1)

    return Data(part(0, RATED), part(RATED, RATED + 3), part(RATED + 3, RATED + 13))


class Recommender(nn.Module):
    """An embedding of the user and one of the joke, and a perceptron of both."""

    def __init__(self, users: int, jokes: int, width: int = 16) -> None:
        super().__init__()
        self.user, self.joke = nn.Embedding(users, width), nn.Embedding(jokes, width)
        self.head = nn.Sequential(nn.Linear(2 * width, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Numbers of users and jokes ``(N, 2)`` to ratings ``(N, 1)``."""
        return self.head(torch.cat([self.user(x[:, 0]), self.joke(x[:, 1])], -1))


def recommender(data: Data) -> nn.Module:
    """For the users of the training part."""
    return Recommender(int(data.train[0][:, 0].max()) + 1, 40)


TASKS = [Task("ratings", opinions, recommender, 15, USERS, partial(ba.Gaussian, 1.0, learned=True), batch_size=128)]
