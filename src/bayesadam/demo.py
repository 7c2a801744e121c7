"""The demo: what a posterior adds to an ordinary network, on data that ships with scikit-learn.

Vadam and IVON beside Adam, trained for the same number of epochs on the same minibatches: a regression (diabetes), a
classification (digits 0 to 7, with digits 8 and 9 and rotated digits as outliers), and a curve with a gap in its data.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import metrics
from bayesadam.likelihoods import Categorical, Gaussian, Likelihood
from bayesadam.optim import IVON, Vadam
from bayesadam.posterior import DiagonalGaussian
from bayesadam.predictive import RegressionPredictive, predict

Advance = Callable[[str, int, int], None]
"""Called with what is being done, the steps done and the steps in all."""

Rows = dict[str, dict[str, float]]
"""Metrics by method."""

Posteriors = dict[str, DiagonalGaussian]

SPLITS = 3
"""The table's numbers are means over this many random splits."""

METHODS = ("Adam", "Vadam", "IVON")
MC_SAMPLES = 64


@dataclass(frozen=True)
class Task:
    """A network, a likelihood and settings, the same for all methods but for what differs in ``options``."""

    network: Callable[[], nn.Sequential]
    likelihood: Callable[[], Likelihood]
    epochs: int
    batch_size: int
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


DIGITS = Task(
    network=lambda: _mlp(64, 128, 128, 8),
    likelihood=Categorical,
    epochs=100,
    batch_size=32,
    options={
        "Adam": {"lr": 1e-3},
        "Vadam": {"lr": 3e-3, "temperature": 0.1},
        "IVON": {"lr": 0.5, "prior_precision": 0.3, "initial_precision": 300.0},
    },
)
DIABETES = Task(
    network=lambda: _mlp(10, 50, 1),
    likelihood=lambda: Gaussian(2.0, learned=True),
    epochs=100,
    batch_size=32,
    options={"Adam": {"lr": 1e-2}, "Vadam": {"lr": 1e-2}, "IVON": {"lr": 0.1}},
)
GAP = Task(
    network=lambda: _mlp(1, 32, 32, 1),
    likelihood=lambda: Gaussian(100.0),
    epochs=800,
    batch_size=8,
    options={"Vadam": {"lr": 1e-2}},
)


def fit(
    method: str, task: Task, x: Tensor, y: Tensor, *, seed: int, advance: Callable[[int, int], None]
) -> tuple[nn.Sequential, DiagonalGaussian, Likelihood]:
    """Train one network; Adam's "posterior" is the point that it found, with variance 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network, likelihood = task.network(), task.likelihood()
    groups = [
        {"params": list(network.named_parameters())},
        {"params": list(likelihood.named_parameters(prefix="likelihood"))},
    ]
    groups = [group for group in groups if group["params"]]
    options = dict(task.options.get(method, {}))
    optimizer: torch.optim.Optimizer
    if method == "Adam":
        optimizer = torch.optim.Adam(groups, **options)
    else:
        for group in groups[1:]:
            group["perturb"] = False  # type: ignore[assignment]
        perturbed = {"Vadam": Vadam, "IVON": IVON}[method](groups, num_data=len(x), seed=seed, **options)
        perturbed.train()
        optimizer = perturbed
    steps = task.epochs * math.ceil(len(x) / task.batch_size)
    done = 0
    for _ in range(task.epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), task.batch_size):
            optimizer.zero_grad()
            torch.autograd.backward(likelihood.nll(network(x[rows]), y[rows]))
            optimizer.step()
            done += 1
            advance(done, steps)
    if method == "Adam":
        mean = {name: p.detach().clone() for name, p in network.named_parameters()}
        return network, DiagonalGaussian(mean, {n: torch.zeros_like(p) for n, p in mean.items()}), likelihood
    perturbed.eval()
    return network, perturbed.posterior(network), likelihood


def digits(seed: int, advance: Advance) -> tuple[Rows, Posteriors, dict[str, dict[str, Any]]]:
    """Classification: accuracy, NLL, ECE, and AUROC of the entropy against outliers of two kinds, together and each."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    known = torch.nonzero(y < 8).flatten()
    known = known[torch.randperm(len(known), generator=torch.Generator().manual_seed(seed))]
    train, test = known.chunk(2)
    outliers = {
        "digits 8 and 9": x[y >= 8],
        "rotated digits": torch.rot90(x[test].view(-1, 8, 8), dims=(1, 2)).reshape(-1, 64),
    }
    rows: Rows = {}
    posteriors: Posteriors = {}
    shown: dict[str, dict[str, Any]] = {}
    for method in METHODS:
        network, posterior, likelihood = fit(
            method, DIGITS, x[train], y[train], seed=seed, advance=partial(advance, f"digits, {method}")
        )
        inside = _predict(method, network, posterior, x[test], likelihood)
        entropy = {name: _predict(method, network, posterior, z, likelihood).entropy for name, z in outliers.items()}
        rows[method] = {
            "accuracy": metrics.accuracy(inside.probs, y[test]),
            "NLL": metrics.nll(inside, y[test]),
            "ECE": metrics.expected_calibration_error(inside.probs, y[test]),
            "OOD AUROC": metrics.ood_auroc(inside.entropy, torch.cat(list(entropy.values()))),
            "(digits 8-9)": metrics.ood_auroc(inside.entropy, entropy["digits 8 and 9"]),
            "(rotated)": metrics.ood_auroc(inside.entropy, entropy["rotated digits"]),
        }
        posteriors[method] = posterior
        shown[method] = {"probs": (inside.probs, y[test]), "entropy": {"digits 0 to 7": inside.entropy, **entropy}}
    return rows, posteriors, shown


def diabetes(seed: int, advance: Advance) -> tuple[Rows, Posteriors]:
    """Regression: RMSE, NLL and coverage of the 95% interval, in the units of the data."""
    from sklearn.datasets import load_diabetes

    features, targets = (torch.tensor(a, dtype=torch.float32) for a in load_diabetes(return_X_y=True))
    order = torch.randperm(len(features), generator=torch.Generator().manual_seed(seed))
    train, test = order[:332], order[332:]
    x = (features - features[train].mean(0)) / features[train].std(0)
    center, scale = targets[train].mean(), targets[train].std()
    y = ((targets - center) / scale).unsqueeze(-1)
    rows: Rows = {}
    posteriors: Posteriors = {}
    for method in METHODS:
        network, posterior, likelihood = fit(
            method,
            DIABETES,
            x[train],
            y[train],
            seed=seed,
            advance=partial(advance, f"diabetes, {method}"),
        )
        prediction = _predict(method, network, posterior, x[test], likelihood).rescale(center, scale)
        truth = targets[test].unsqueeze(-1)
        lower, upper = prediction.quantile([0.025, 0.975])
        rows[method] = {
            "RMSE": metrics.rmse(prediction.mean, truth),
            "NLL": metrics.nll(prediction, truth),
            "95% coverage": metrics.coverage(lower, upper, truth),
            "95% width": metrics.interval_width(lower, upper),
        }
        posteriors[method] = posterior
    return rows, posteriors


def gap(seed: int, advance: Advance) -> tuple[Tensor, RegressionPredictive, tuple[Tensor, Tensor]]:
    """A curve whose data have a gap: the predictive of Vadam on a grid, and the data."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.cat([torch.rand(40, generator=generator) * 1.5 - 2.0, torch.rand(40, generator=generator) * 1.2 + 0.8])
    y = torch.sin(2.5 * x) + 0.1 * torch.randn(80, generator=generator)
    network, posterior, likelihood = fit(
        "Vadam", GAP, x.unsqueeze(-1), y.unsqueeze(-1), seed=seed, advance=partial(advance, "curve, Vadam")
    )
    grid = torch.linspace(-3.0, 3.0, 300)
    return grid, _predict("Vadam", network, posterior, grid.unsqueeze(-1), likelihood), (x, y)


def _predict(method: str, network: nn.Module, posterior: DiagonalGaussian, x: Tensor, likelihood: Likelihood) -> Any:
    return predict(
        network,
        posterior,
        x,
        likelihood=likelihood,
        mc_samples=MC_SAMPLES,
        method="mean" if method == "Adam" else "monte_carlo",
    )


def run(folder: Path, *, seed: int, advance: Advance) -> dict[str, Rows]:
    """Train everything; write ``table.json``, the posteriors and the figures into ``folder``.

    Posteriors are those of the first split; the figures of the digits show the test points of all splits.

    Returns:
        The table: metrics, means over the splits, by method by data set. The same seed gives the same table.
    """
    folder.mkdir(parents=True, exist_ok=True)
    curve = gap(seed, advance)
    regressions, classifications = [], []
    for split in range(SPLITS):
        part = partial(_advance_part, advance, split)
        regressions.append(diabetes(SPLITS * seed + split, part))
        classifications.append(digits(SPLITS * seed + split, part))
    table = {
        "diabetes": _mean_rows([rows for rows, _ in regressions]),
        "digits": _mean_rows([rows for rows, _, _ in classifications]),
    }
    record: dict[str, Any] = {"seed": seed, "splits": SPLITS, **table}
    (folder / "table.json").write_text(json.dumps(record, indent=2) + "\n")
    for name, found in (("diabetes", regressions[0][1]), ("digits", classifications[0][1])):
        for method, posterior in found.items():
            if method != "Adam":
                posterior.save(folder / f"{name}_{method.lower()}.safetensors")
    _draw(folder, curve, classifications[0][1], [shown for _, _, shown in classifications])
    return table


def _advance_part(advance: Advance, part: int, what: str, done: int, total: int) -> None:
    advance(what, part * total + done, SPLITS * total)


def _mean_rows(splits: list[Rows]) -> Rows:
    return {
        method: {name: sum(rows[method][name] for rows in splits) / len(splits) for name in row}
        for method, row in splits[0].items()
    }


def _draw(
    folder: Path,
    curve: tuple[Tensor, RegressionPredictive, tuple[Tensor, Tensor]],
    posteriors: Mapping[str, DiagonalGaussian],
    splits: list[dict[str, dict[str, Any]]],
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from bayesadam import plots

    def save(figure: Any, name: str) -> None:
        for axes in figure.axes:
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False)
        figure.savefig(folder / f"{name}.png", dpi=150)
        pyplot.close(figure)

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    plots.regression_band(axes, *curve)
    axes.set(title="Uncertainty grows where there are no data (Vadam)", ylim=(-3.5, 3))
    save(figure, "regression_band")

    figure, axes = pyplot.subplots(figsize=(5.5, 5), layout="constrained")
    pooled = {m: [split[m]["probs"] for split in splits] for m in METHODS}
    plots.reliability(
        axes, {m: (torch.cat([p for p, _ in ps]), torch.cat([y for _, y in ps])) for m, ps in pooled.items()}
    )
    axes.set_title("Reliability on held-out digits")
    save(figure, "reliability")

    figure, rows = pyplot.subplots(len(METHODS), figsize=(7, 7), sharex=True, layout="constrained")
    for axes, method in zip(rows, METHODS, strict=True):
        groups = splits[0][method]["entropy"]
        entropy = {name: torch.cat([split[method]["entropy"][name] for split in splits]) for name in groups}
        plots.entropy_histogram(axes, entropy, classes=8)
        axes.set_title(method)
        axes.label_outer()
    save(figure, "entropy")

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    plots.signal_to_noise(axes, {m: q for m, q in posteriors.items() if m != "Adam"})
    axes.set_title("How well determined the weights are (digits)")
    save(figure, "signal_to_noise")
