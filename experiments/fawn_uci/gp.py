"""The Gaussian process of the paper: a linear and a squared exponential kernel with a length for every input.

It replaces scikit-learn's Gaussian process, whose gradient needs an array ``(n, n, d)``; here the gradient needs a few
matrix products.
"""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

import bayesadam as ba
from experiments.uci import Part


class Process:
    """The data. Hyper-parameters are a vector of natural logarithms, in standardised units: length scales of the
    inputs, and the variances smooth, linear, constant and noise.

    Attributes:
        start: The first start.
        bounds: Lower and upper bounds.
    """

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x.double(), y.double()
        self.start = np.array([0.0] * (x.shape[1] + 3) + [-2.0])
        self.bounds = [(-4.0, 9.0)] * x.shape[1] + [(-9.0, 9.0), (-12.0, 7.0), (-12.0, 7.0), (-14.0, 3.0)]

    def kernel(self, theta: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Return the kernel matrix without the noise."""
        scale, (smooth, linear, constant) = (-theta[:-4]).exp(), theta[-4:-1].exp()
        a_scaled, b_scaled = a * scale, b * scale
        squares = a_scaled.square().sum(1)[:, None] + b_scaled.square().sum(1) - 2.0 * a_scaled @ b_scaled.T
        found: Tensor = smooth * (-0.5 * squares.clamp_min(0.0)).exp() + linear * (a @ b.T + constant)
        return found

    def log_marginal_likelihood(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the log marginal likelihood of all training targets, 0-d, and its gradient."""
        with torch.no_grad():
            factor, weights = self._solved(theta)
            value = -0.5 * (self.y * weights).sum() - factor.diagonal().log().sum()
            value = value - 0.5 * len(self.y) * math.log(2.0 * math.pi)
            # The gradient in closed form takes half as long as backpropagation through the decomposition.
            inner = 0.5 * (weights @ weights.T - torch.cholesky_inverse(factor))
        theta = theta.detach().requires_grad_()
        (slope,) = torch.autograd.grad((inner * self._covariance(theta)).sum(), theta)
        return value, slope

    def predict(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the targets, ``(m, 1)``, including the noise."""
        factor, weights = self._solved(theta)
        across = self.kernel(theta, self.x, x.double())
        known = torch.linalg.solve_triangular(factor, across, upper=False).square().sum(0)
        own = theta[-4].exp() + theta[-3].exp() * (x.double().square().sum(1) + theta[-2].exp())
        return across.T @ weights, (own - known + theta[-1].exp()).clamp_min(theta[-1].exp())[:, None]

    def fit(self, start: NDArray[np.float64]) -> tuple[Tensor, float]:
        """Return the hyper-parameters that L-BFGS finds from a start, and their log marginal likelihood."""

        def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            try:
                value, slope = self.log_marginal_likelihood(torch.tensor(values, dtype=torch.float64))
            except RuntimeError:  # the matrix is numerically singular
                return 1e10, np.zeros_like(values)
            return -value.item(), -slope.numpy()

        low, high = np.array(self.bounds).T
        found = minimize(objective, np.clip(start, low, high), jac=True, method="L-BFGS-B", bounds=self.bounds)
        return torch.as_tensor(found.x), -float(found.fun)

    def _solved(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        factor = torch.linalg.cholesky(self._covariance(theta))
        return factor, torch.cholesky_solve(self.y, factor)

    def _covariance(self, theta: Tensor) -> Tensor:
        noise = theta[-1].exp() * torch.eye(len(self.x), dtype=torch.float64)
        return self.kernel(theta, self.x, self.x) + noise


def score(part: Part, restarts: int, seed: int) -> dict[str, Any]:
    """Fit the hyper-parameters with the largest marginal likelihood of several starts, and return the test scores."""
    began = time.perf_counter()
    prediction, theta, fits = fit(part, restarts, seed)
    return {
        "nll": ba.metrics.nll(prediction, part.y.double()),
        "rmse": ba.metrics.rmse(prediction.mean, part.y.double()),
        "log_marginal_likelihoods": fits,
        "hyperparameters": theta.tolist(),
        "seconds": time.perf_counter() - began,
    }


def fit(part: Part, restarts: int, seed: int) -> tuple[ba.predictive.GaussianPredictive, Tensor, list[float]]:
    """Return predictions ``(m, 1)`` in original units, hyper-parameters, and the marginal likelihood of each start."""
    process, generator = Process(*part.train), np.random.default_rng(seed)
    starts = [process.start, *(process.start + generator.standard_normal(len(process.start)) for _ in range(restarts))]
    fits = [process.fit(start) for start in starts]
    theta, _ = max(fits, key=lambda fit: fit[1])
    mean, variance = process.predict(theta, part.x)
    noise = theta[-1].exp().expand(mean.shape)
    prediction = ba.predictive.GaussianPredictive(mean, variance - noise, noise)
    return prediction.rescale(part.scaler.mean, part.scaler.std), theta, [value for _, value in fits]
