"""The Gaussian process of the paper: a linear and a squared exponential kernel with a length for every input."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

import bayesadam as ba
from experiments.uci import Part


def score(part: Part, restarts: int, seed: int) -> dict[str, Any]:
    """Fit the process, and return its test scores."""
    prediction, hyperparameters = fit(part, restarts, seed)
    return {
        "nll": ba.metrics.nll(prediction, part.y.double()),
        "rmse": ba.metrics.rmse(prediction.mean, part.y.double()),
        "hyperparameters": hyperparameters,
    }


def fit(part: Part, restarts: int, seed: int) -> tuple[ba.predictive.GaussianPredictive, list[float]]:
    """Fit the hyper-parameters with the largest marginal likelihood of several starts.

    Returns:
        Predictions ``(m, 1)`` in original units, and the logarithms of the hyper-parameters.
    """
    x, y = (values.double().numpy() for values in part.train)
    smooth = ConstantKernel(1.0, (1e-4, 1e4)) * RBF(np.ones(x.shape[1]), (0.02, 8e3))
    linear = ConstantKernel(1.0, (6e-6, 1e3)) * DotProduct(1.0, (2.5e-3, 30.0))
    kernel = smooth + linear + WhiteKernel(0.14, (1e-6, 20.0))
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=restarts, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a hyper-parameter at its bound
        process.fit(x, y[:, 0])
    predicted = process.predict(part.x.double().numpy(), return_std=True)
    mean, sd = (torch.as_tensor(values)[:, None] for values in predicted)
    noise = torch.full_like(mean, process.kernel_.k2.noise_level)
    prediction = ba.predictive.GaussianPredictive(mean, (sd.square() - noise).clamp_min(0.0), noise)
    return prediction.rescale(part.scaler.mean, part.scaler.std), process.kernel_.theta.tolist()
