"""Comparison of the outputs of many sampled networks at every held-out point with the propagated Gaussian."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import bayesadam as ba
from experiments.fawn.scores import predictive
from experiments.fawn.training import Fitted
from experiments.uci_table1.protocol import Part

Floats = NDArray[np.float64]

LEVEL = 0.05
BLOCKS = (100, 1_000)
"""Numbers of samples in the smaller tests."""


def compare(fitted: Fitted, part: Part, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return statistics at every held-out point and histograms at some, in original units and without the noise."""
    moments = predictive(fitted, part)
    mean, sd = (values[:, 0].double().numpy() for values in (moments.mean, moments.epistemic.sqrt()))
    drawn = ba.predict(
        fitted.model,
        fitted.posterior,
        part.x,
        likelihood=fitted.likelihood,
        mc_samples=config["samples"],
        seed=config["seed"],
    )
    assert isinstance(drawn, ba.predictive.RegressionPredictive)
    samples = drawn.rescale(part.scaler.mean, part.scaler.std).means[..., 0].double().numpy()
    points = [statistics(samples[:, i], mean[i], sd[i]) for i in range(len(mean))]
    # Points with evenly spaced ranks of their means.
    ranks = np.linspace(0, len(mean) - 1, config["shown"]).round().astype(int)
    histograms = []
    for i in np.argsort(mean)[ranks]:
        density, edges = np.histogram(samples[:, i], config["bins"], density=True)
        histograms.append({"point": int(i), "density": density, "edges": edges[[0, -1]]})
    return {"points": points, "histograms": histograms}


def statistics(samples: Floats, mean: float, sd: float) -> dict[str, Any]:
    """Moments of the samples beside the propagated ones, and Kolmogorov-Smirnov tests against ``N(mean, sd^2)``.

    ``rejected_by_N``: the share of the tests with ``N`` samples each that reject at the level 0.05.
    """
    test = stats.kstest(samples, stats.norm(mean, sd).cdf)
    found: dict[str, Any] = {
        "mean": mean,
        "sd": sd,
        "mean_error": (samples.mean() - mean) / sd,
        "variance_ratio": samples.var(ddof=1) / sd**2,
        "skewness": stats.skew(samples),
        "kurtosis": stats.kurtosis(samples),
        "ks": test.statistic,
        "p": test.pvalue,
    }
    for size in BLOCKS:
        blocks = samples[: len(samples) // size * size].reshape(-1, size)
        p = stats.kstest(blocks, stats.norm(mean, sd).cdf, axis=1).pvalue
        found[f"rejected_by_{size}"] = float((p < LEVEL).mean()) if len(blocks) else None
    return found
