"""Bayer et al. 2015, section 3.2.1: are the outputs of a network with random weights Gaussian?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

import bayesadam as ba
from experiments.fawn import Fitted, fit, predictive
from experiments.framework import Context, Report, Unit
from experiments.plots import panels
from experiments.tables import frame
from experiments.uci import Part, splits

TITLE = "Outputs of sampled networks against the propagated Gaussian"
SOURCE = "Bayer et al. 2015, section 3.2.1"

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bernoulli-inputs": (
        "Bernoulli weights, scales of inputs",
        {"weights": "bernoulli", "scales": "inputs", "drawn_std": 0.2},
    ),
    "bernoulli": ("Bernoulli weights, scales of outputs", {"weights": "bernoulli"}),
    "gaussian": ("Gaussian weights", {"weights": "gaussian"}),
}
"""Label and settings of the networks, which are those of ``fawn-uci``."""
PROTOCOL = {
    "dataset": "boston",
    "split": 0,
    "iterations": 20_000,
    "objective": "ropd",
    "hidden": 50,
    "batch_size": 128,
    "lr": 0.01,
    "initial_std": 0.05,
    "noise_sd": 0.3,
    "samples": 20_000,
    "shown": 6,
    "bins": 60,
    "seed": 0,
}
LEVEL = 0.05
BLOCKS = (100, 1_000)
"""Numbers of samples in the smaller tests."""
BLUE, ORANGE = "#0072B2", "#D55E00"


def units() -> list[Unit]:
    """Return one unit per network."""
    return [Unit(name, {**PROTOCOL, **own}) for name, (_, own) in NETWORKS.items()]


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Train a network, sample its outputs, and compare them with the propagated Gaussian."""
    config = unit.config
    part = splits(f"uci/{config['dataset']}", config["split"] + 1)[-1]
    (fitted,), _ = fit([part], [config["seed"]], config, context.progress)
    return compare(fitted, part, config)


def compare(fitted: Fitted, part: Part, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return statistics at every held-out point and histograms at some, in original units and without the noise."""
    moments = predictive(fitted, part)
    mean, sd = (values[:, 0].double().numpy() for values in (moments.mean, moments.epistemic.sqrt()))
    options: dict[str, Any] = {"likelihood": fitted.likelihood, "mc_samples": config["samples"], "seed": config["seed"]}
    drawn = ba.predict(fitted.model, fitted.posterior, part.x, **options)
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


def statistics(samples: NDArray[np.float64], mean: float, sd: float) -> dict[str, Any]:
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


def report(results: Mapping[str, Any]) -> Report:
    """Return statistics of all held-out points, and the histograms of some."""
    rows = []
    for key, result in results.items():
        points = {name: np.array([point[name] for point in result["points"]]) for name in result["points"][0]}
        row: list[Any] = [NETWORKS[key][0], len(result["points"])]
        for name in ("mean_error", "skewness", "kurtosis", "ks"):
            row.append(f"{np.median(np.abs(points[name])):.3f}, {np.abs(points[name]).max():.3f}")
        row.insert(3, f"{points['variance_ratio'].min():.3f} to {points['variance_ratio'].max():.3f}")
        row += [f"{points[f'rejected_by_{size}'].mean():.0%}" for size in BLOCKS]
        rows.append([*row, f"{(points['p'] < LEVEL).mean():.0%}"])
    header = ["network", "points", "mean error / sd", "variance ratio", "skewness", "excess kurtosis", "KS distance"]
    header += ["rejected, 100 samples", "1,000", "all"]
    tables = {"All held-out points: median and largest of absolute values": frame(header, rows)}
    return Report(tables, {"histograms": _figure(results)})


def _figure(results: Mapping[str, Any]) -> Figure:
    """Plot one row of panels per network."""
    columns = max(len(result["histograms"]) for result in results.values())
    figure, axes = panels(len(results), columns, 2.1 * columns, 2.4 * len(results) + 0.3, grid="")
    for line, (key, result) in zip(axes, results.items(), strict=True):
        for axis, histogram in zip(line, result["histograms"], strict=True):
            point, density = result["points"][histogram["point"]], np.asarray(histogram["density"], float)
            low, high = histogram["edges"]
            edges = np.linspace(low, high, len(density) + 1)
            axis.stairs(density, edges, fill=True, color=BLUE, alpha=0.45, label="sampled")
            x = np.linspace(edges[0], edges[-1], 200)
            propagated = stats.norm(point["mean"], point["sd"]).pdf(x)
            axis.plot(x, propagated, color=ORANGE, lw=1.4, label="propagated")
            axis.set_title(f"KS {point['ks']:.3f}", fontsize=9)
            axis.set_ylim(top=1.25 * density.max())
            axis.set_yticks([])
            axis.tick_params(axis="x", labelsize=8)
            axis.spines["left"].set_visible(False)
        line[0].set_ylabel(f"{NETWORKS[key][0].replace(', ', chr(10))}\ndensity", fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("output", fontsize=9)
    axes[0, 0].legend(fontsize=6.5, frameon=False, loc="upper left")
    return figure
