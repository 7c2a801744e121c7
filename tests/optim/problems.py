"""Small problems whose solutions are known: losses for the loops of ``references.py``, and linear regression."""

import math

import numpy as np
import torch
from torch import nn

from bayesadam import noise

D = 5
START = [0.4 - 0.3 * j for j in range(D)]


def tensor(value):
    return torch.tensor(value, dtype=torch.float64)


class Problem:
    """``sum_j 0.35 (j+1) x_j^2 - x_j cos(0.3 t + j) - a/9 cos(3 x_j)``, and coupling of neighbours in a ring.

    Its Hessian diagonal is ``0.7 (j+1) + a cos(3 x_j)``: positive for small ``a``.
    """

    def __init__(self, a=0.45, coupling=0.1):
        self.a, self.coupling = a, coupling

    def loss(self, x, t):
        j = torch.arange(D, dtype=x.dtype)
        own = 0.35 * (j + 1) * x.square() - x * torch.cos(0.3 * t + j) - self.a / 9 * torch.cos(3 * x)
        return own.sum() + self.coupling * (x * x.roll(-1)).sum()

    def gradient(self, x, t):
        return [
            0.7 * (j + 1) * x[j]
            - math.cos(0.3 * t + j)
            + self.a / 3 * math.sin(3 * x[j])
            + self.coupling * (x[(j + 1) % D] + x[j - 1])
            for j in range(D)
        ]

    def hessian(self, x, t):
        return [0.7 * (j + 1) + self.a * math.cos(3 * x[j]) for j in range(D)]

    def whole_hessian(self, x, t):
        matrix = np.diag(self.hessian(x, t))
        for j in range(D):
            matrix[j, (j + 1) % D] += self.coupling
            matrix[(j + 1) % D, j] += self.coupling
        return matrix.tolist()


def eps_of(sizes=(D,), antithetic=False):
    """The noise of parameters of these sizes, for a reference."""

    def eps(t, sample):
        pair = sample // 2 if antithetic else sample
        draw = torch.cat([noise.normal(0, t, pair, index, (size,)).double() for index, size in enumerate(sizes)])
        return (-draw if antithetic and sample % 2 else draw).tolist()

    return eps


class Regression:
    """Bayesian linear regression with known noise, whose posterior is a formula."""

    def __init__(self, outputs=1, bias=True, rows=20):
        generator = torch.Generator().manual_seed(0)
        mixing = tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.4], [0.0, 0.0, 0.7]])
        self.x = torch.randn(rows, 3, generator=generator, dtype=torch.float64) @ mixing
        self.y = torch.randn(rows, outputs, generator=generator, dtype=torch.float64) + self.x[:, :1]
        self.noise, self.prior, self.rows = 0.5, 2.0, rows
        self.net = nn.Linear(3, outputs, bias=bias).double()
        columns = []
        for p in self.net.parameters():
            for i in range(p.numel()):  # what a unit weight adds to the outputs
                weight, offset = torch.zeros(outputs, 3).double(), torch.zeros(outputs).double()
                (weight if p.ndim == 2 else offset).view(-1)[i] = 1.0
                columns.append((self.x @ weight.T + offset).flatten())
        design = torch.stack(columns, 1)
        self.gram, self.moment = design.T @ design / self.noise, design.T @ self.y.flatten() / self.noise

    def make(self, cls, **hyperparameters):
        """An optimiser with this problem's prior."""
        return cls(self.net.named_parameters(), num_data=self.rows, prior_precision=self.prior, **hyperparameters)

    def loss(self):
        return 0.5 * (self.net(self.x) - self.y).square().sum(1).mean() / self.noise

    def exact(self, tau=1.0):
        """Mean, and the precision matrix, of the optimum of ``E[F] + tau KL``."""
        eye = torch.eye(len(self.gram), dtype=torch.float64)
        return torch.linalg.solve(self.gram + tau * self.prior * eye, self.moment), self.gram / tau + self.prior * eye


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


def spread_out(size, seed=0):
    """A matrix that is positive definite."""
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.T + torch.diag(torch.linspace(1.0, 5.0, size, dtype=torch.float64))
