"""The demo shows in a minute what a posterior adds, on data from scikit-learn and on generated data.

The examples are prices whose noise grows, images of digits, and a curve with a gap in its data, each in comparison with
the usual methods. The library's methods have their default settings.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesadam import metrics
from bayesadam.calibration import calibrate
from bayesadam.files import whole_file, write_json, write_text
from bayesadam.functional.generators import seeded
from bayesadam.likelihoods import Categorical, Gaussian
from bayesadam.optim import BayesAdam
from bayesadam.posterior import DiagonalGaussian
from bayesadam.predictive import predict

Array = NDArray[Any]
Scores = dict[str, dict[str, float]]
"""Scores by method, and by name of the score."""
Data = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]
Advance = Callable[[str, int, int], None]
"""A function of the current work, the number of steps done, and the number of all steps."""

COVERAGE, NORMAL, NEW_FLATS = 0.95, 1.959963984540054, 2000
COLUMNS = ("area", "rooms", "year", "km_to_centre", "floor")
OURS, LINEAR, QUANTILES, TRUTH = "BayesianMLPRegressor", "linear model", "quantile boosting", "the truth"
RATES, BATCH_SIZE, VALIDATION = (1e-3, 3e-3, 1e-2), 32, 200
"""Adam's learning rates, and how many images choose one of them and the temperature; BayesAdam does without."""
ADAM, SCALED = "Adam", "Adam, scaled"
DIGITS, PHOTOGRAPHS, SHUFFLED = "digits", "photographs", "shuffled"
LEFT, RIGHT, NOISE, GRID = (-2.0, -0.5), (0.8, 2.0), 0.1, torch.linspace(-3.0, 3.0, 301)


@dataclasses.dataclass(frozen=True)
class Effort:
    """The amount of training.

    Attributes:
        tables: Number of tables of prices.
        price_rows: Number of training rows of each table.
        splits: Number of splits of the digits, at least 2.
        digit_rows: Number of training images.
        epochs: Number of epochs of the networks for digits.
        curve_epochs: Number of epochs of BayesAdam on the curve.
        estimator: Arguments that shorten the estimator's training; if empty, it has its defaults.
    """

    tables: int = 3
    price_rows: int = 400
    splits: int = 6
    digit_rows: int = 1000
    epochs: int = 30
    curve_epochs: int = 400
    estimator: Mapping[str, int] = dataclasses.field(default_factory=dict)


FULL = Effort()
QUICK = Effort(2, 100, 2, 300, 4, 20, {"members": 4, "epochs": 100})
"""A few seconds of training, to see that the demo runs; its networks have hardly been trained."""


def run(folder: Path, *, seed: int, advance: Advance, effort: Effort = FULL) -> dict[str, Any]:
    """Train everything; write ``metrics.json``, ``report.txt``, the figures and the trained networks into ``folder``.

    Args:
        folder: Folder of the results, which is created if it does not exist.
        seed: Seed of data, networks and noise. The same seed gives the same numbers.
        advance: Function that is called during the training.
        effort: Amount of training.

    Returns:
        The contents of ``metrics.json``: scores by table of prices, by split of the digits and by place on the curve.
    """
    import matplotlib
    from matplotlib import pyplot

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    prices, flats = compare_prices(effort, seed, advance)
    digits, shown = compare_digits(effort, seed, advance)
    bands, curve = compare_bands(effort, seed, advance)
    record = {
        "seed": seed,
        "effort": dataclasses.asdict(effort),
        "prices": prices,
        "digits": digits,
        "curve": bands,
        "report": dataclasses.asdict(shown["report"]),
    }
    write_json(folder / "metrics.json", record, digest=False, indent=2)
    write_text(folder / "report.txt", f"{shown['report']}\n")
    shown["posterior"].save(folder / "digits_bayesadam.safetensors")
    rows = np.column_stack([flats["training"]["inputs"], flats["training"]["price"]])
    with whole_file(folder / "prices.csv") as path:
        np.savetxt(path, rows, "%.2f", delimiter=",", header=",".join((*COLUMNS, "price")), comments="")
    with pyplot.rc_context({**matplotlib.rcParamsDefault, "axes.spines.top": False, "axes.spines.right": False}):
        _draw(folder / "prices.png", flats["intervals"], partial(_draw_prices, flats["new"]), (11, 4.2))
        _draw(folder / "digits.png", shown["entropy"], _draw_entropy, (9.5, 4))
        _draw(folder / "curve.png", curve["predictions"], partial(_draw_band, curve["data"]), (10, 4))
        _draw(folder / "weights.png", {"Widths (digits, BayesAdam)": shown}, _draw_weights, (6, 4))
    return record


def seed_of(seed: int, *place: int) -> int:
    """Return a seed for a place in the demo."""
    return int(np.random.SeedSequence([seed, *place]).generate_state(1)[0] >> 1)


def generate(rows: int, generator: np.random.Generator) -> dict[str, Array]:
    """Generate flats and their prices, whose noise grows with the square of the area.

    Returns:
        ``"inputs"`` ``(rows, 5)`` in the order of ``COLUMNS``; ``"price"`` in thousands, its ``"mean"`` and its
        ``"deviation"``.
    """
    area = generator.uniform(30.0, 200.0, rows)
    rooms = np.clip(np.round(area / 28.0 + generator.normal(0.0, 0.8, rows)), 1, 8)
    year = np.floor(generator.uniform(1900, 2021, rows))
    distance = generator.gamma(2.0, 4.0, rows)
    floor = np.floor(generator.uniform(0, 8, rows))
    mean = area * (1.5 + 3.5 * np.exp(-distance / 6.0) + 0.01 * np.maximum(year - 1970, 0)) + 8.0 * rooms + 3.0 * floor
    deviation = 5.0 + 0.0022 * area**2
    price = mean + deviation * generator.standard_normal(rows)
    inputs = np.stack([area, rooms, year, distance, floor], axis=1)
    return {"inputs": inputs, "price": price, "mean": mean, "deviation": deviation}


def compare_prices(effort: Effort, seed: int, advance: Advance) -> tuple[list[Scores], dict[str, Any]]:
    """Compare intervals for new flats, from several tables of training rows; also return the first table's."""
    from bayesadam.tables.estimators.regressor import BayesianMLPRegressor

    scores: list[Scores] = []
    shown: dict[str, Any] = {}
    for table in range(effort.tables):
        generator = np.random.default_rng(seed_of(seed, 0, table))
        training, new = generate(effort.price_rows, generator), generate(NEW_FLATS, generator)
        data = training["inputs"], training["price"]

        def on_epoch(status: Any, table: int = table) -> None:
            advance("prices", table * status.epochs + status.epoch, effort.tables * status.epochs)

        options: dict[str, Any] = {**effort.estimator, "random_state": seed_of(seed, 1, table)}
        model = BayesianMLPRegressor(**options).fit(*data, on_epoch=on_epoch)
        intervals = {
            LINEAR: _linear(*data, new["inputs"]),
            QUANTILES: _boosting(*data, new["inputs"]),
            OURS: model.predict_interval(new["inputs"], COVERAGE).T,
            TRUTH: np.stack([new["mean"] + sign * NORMAL * new["deviation"] for sign in (-1, 1)]),
        }
        scores.append({name: score_interval(ends[0], ends[1], new) for name, ends in intervals.items()})
        shown = shown or {"training": training, "new": new, "intervals": intervals}
    advance("prices", 1, 1)
    return scores, shown


def score_interval(lower: Array, upper: Array, new: Mapping[str, Array]) -> dict[str, float]:
    """Score intervals, first by Gneiting and Raftery 2007, eq. 43; a fifth of the flats is small, and one is large."""
    price, area = new["price"], new["inputs"][:, 0]
    inside = (lower <= price) & (price <= upper)
    outside = np.maximum(lower - price, 0.0) + np.maximum(price - upper, 0.0)
    score = np.mean(upper - lower + 2.0 / (1.0 - COVERAGE) * outside)
    shares = {"covered": inside.mean(), "small": inside[area < 60.0].mean(), "large": inside[area > 170.0].mean()}
    return {name: float(v) for name, v in {"score": score, **shares, "width": (upper - lower).mean()}.items()}


def _linear(inputs: Array, price: Array, new: Array) -> Array:
    """Fit by least squares, with a normal error of one standard deviation for all rows."""
    from sklearn.linear_model import LinearRegression

    model = LinearRegression().fit(inputs, price)
    squares = np.square(price - model.predict(inputs)).sum() / (len(price) - inputs.shape[1] - 1)
    return np.stack([model.predict(new) + sign * NORMAL * np.sqrt(squares) for sign in (-1, 1)])


def _boosting(inputs: Array, price: Array, new: Array) -> Array:
    """Fit two quantiles by gradient boosting, whose size is chosen by cross-validation."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.metrics import make_scorer, mean_pinball_loss
    from sklearn.model_selection import GridSearchCV

    ends = []
    for level in (0.5 - 0.5 * COVERAGE, 0.5 + 0.5 * COVERAGE):
        model = HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=0)
        loss = make_scorer(mean_pinball_loss, greater_is_better=False, alpha=level)
        search = GridSearchCV(model, {"max_iter": [50, 100], "max_leaf_nodes": [6, 31]}, scoring=loss, cv=3)
        ends.append(search.fit(inputs, price).predict(new))
    return np.stack(ends)


def compare_digits(effort: Effort, seed: int, advance: Advance) -> tuple[list[Scores], dict[str, Any]]:
    """Compare predictions on several splits of the digits; also return what the figures show."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    repetitions, others = [], photographs()
    shown: dict[str, Any] = {"entropy": {ADAM: [], "BayesAdam": []}}
    for split in range(effort.splits):
        split_seed = seed_of(seed, 2, split)
        generator = torch.Generator().manual_seed(split_seed)
        order = torch.randperm(len(x), generator=generator)
        training, held, test = order.tensor_split([effort.digit_rows, effort.digit_rows + VALIDATION])
        shuffles = torch.rand(len(test), x.shape[1], generator=generator).argsort(1)
        groups = {DIGITS: x[test], PHOTOGRAPHS: others, SHUFFLED: x[test].gather(1, shuffles)}
        data = x[training], y[training]
        networks = [_adam(data, rate, effort.epochs, split_seed) for rate in RATES]
        adam = min(networks, key=lambda network: nn.functional.cross_entropy(network(x[held]), y[held]).item())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a network that has hardly been trained
            at: Any = calibrate(adam, (x[held], y[held]), likelihood=Categorical()).temperature
        network = _network(split_seed, 64, 128, nn.ReLU, 10)
        optimizer, start = _bayesadam(network, nn.functional.cross_entropy, data, BATCH_SIZE, effort.epochs, split_seed)
        q = optimizer.posterior(network)
        scores, entropy = {}, {}
        for name, net, temperature in ((ADAM, adam, 1.0), (SCALED, adam, float(at)), ("BayesAdam", network, None)):
            probs = {group: _probabilities(net, inputs, temperature, q) for group, inputs in groups.items()}
            entropy[name] = {group: torch.special.entr(p).sum(1) for group, p in probs.items()}
            right = probs[DIGITS].gather(1, y[test][:, None]).double().clamp_min(1e-30)
            scores[name] = {
                "accuracy": metrics.accuracy(probs[DIGITS], y[test]),
                "NLL": float(-right.log().mean()),
                "ECE": metrics.expected_calibration_error(probs[DIGITS], y[test]),
                **{o: metrics.ood_auroc(entropy[name][DIGITS], entropy[name][o]) for o in (PHOTOGRAPHS, SHUFFLED)},
            }
        repetitions.append(scores)
        for name, entropies in shown["entropy"].items():
            entropies.append(entropy[name])
        if not split:
            shown |= {"report": optimizer.report(), "posterior": q, "start": start}
        advance("digits", split + 1, effort.splits)
    return repetitions, shown


def photographs() -> Tensor:
    """Return grey 8 by 8 parts of scikit-learn's two photographs, with the contrast of the digits."""
    from sklearn.datasets import load_sample_images

    parts = []
    for image in load_sample_images().images:
        grey = torch.tensor(image, dtype=torch.float32).mean(-1)
        small = nn.functional.avg_pool2d(grey[None], 4)[0]
        parts.append(small.unfold(0, 8, 8).unfold(1, 8, 8).reshape(-1, 64))
    pixels = torch.cat(parts)
    least, most = pixels.amin(1, keepdim=True), pixels.amax(1, keepdim=True)
    return (pixels - least) / (most - least).clamp_min(1.0)


def _network(seed: int, inputs: int, units: int, activation: type[nn.Module], outputs: int) -> nn.Sequential:
    with seeded(seed, torch.device("cpu")):
        first, second = nn.Linear(inputs, units), nn.Linear(units, units)
        return nn.Sequential(first, activation(), second, activation(), nn.Linear(units, outputs))


def _train(net: nn.Module, loss: Loss, data: Data, size: int, epochs: int, seed: int, step: Callable[[], Any]) -> None:
    """Call ``step`` after computing the gradients of every minibatch; minibatches are the same for all optimisers."""
    x, y = data
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), size):
            net.zero_grad()
            loss(net(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            step()


def _adam(data: Data, rate: float, epochs: int, seed: int) -> nn.Sequential:
    """Train a network for digits by Adam, with BayesAdam's cosine schedule."""
    network = _network(seed, 64, 128, nn.ReLU, 10)
    optimizer = torch.optim.Adam(network.parameters(), lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * -(-len(data[0]) // BATCH_SIZE))

    def step() -> None:
        optimizer.step()
        schedule.step()

    _train(network, nn.functional.cross_entropy, data, BATCH_SIZE, epochs, seed, step)
    return network


def _bayesadam(
    network: nn.Module, loss: Loss, data: Data, size: int, epochs: int, seed: int
) -> tuple[BayesAdam, DiagonalGaussian]:
    """Train a network by BayesAdam with its defaults; also return the posterior from before the first step."""
    total = epochs * -(-len(data[0]) // size)
    weights = network.named_parameters()
    optimizer = BayesAdam(weights, num_data=len(data[0]), batch_size=size, total_steps=total, seed=seed)
    start = optimizer.posterior()
    optimizer.train()
    _train(network, loss, data, size, epochs, seed, optimizer.step)
    optimizer.eval()
    return optimizer, start


@torch.no_grad()
def _probabilities(network: nn.Module, x: Tensor, temperature: float | None, posterior: Any) -> Tensor:
    """Probabilities of a network at a temperature, or with ``None`` those of its posterior."""
    if temperature is not None:
        return (network(x) / temperature).softmax(1)  # type: ignore[no-any-return]
    prediction: Any = predict(network, posterior, x, likelihood=Categorical(), mc_samples=64)
    return prediction.probs  # type: ignore[no-any-return]


def compare_bands(effort: Effort, seed: int, advance: Advance) -> tuple[dict[str, Scores], dict[str, Any]]:
    """Fit the same data by the estimator, an ensemble with full covariances, and by one network with BayesAdam."""
    from bayesadam.tables.estimators.regressor import BayesianMLPRegressor

    generator, network_seed = torch.Generator().manual_seed(seed_of(seed, 3)), seed_of(seed, 4)
    x = torch.cat([low + (high - low) * torch.rand(40, generator=generator) for low, high in (LEFT, RIGHT)])
    y = torch.sin(2.5 * x) + NOISE * torch.randn(len(x), generator=generator)
    options: dict[str, Any] = {**effort.estimator, "random_state": network_seed}
    model = BayesianMLPRegressor(**options)
    model.fit(x[:, None].numpy(), y.numpy(), on_epoch=lambda s: advance("curve", s.epoch, s.epochs))
    advance("curve", 1, 1)
    network, likelihood = _network(network_seed, 1, 32, nn.Tanh, 1), Gaussian(NOISE**-2)
    optimizer, _ = _bayesadam(network, likelihood.nll, (x[:, None], y[:, None]), 16, effort.curve_epochs, network_seed)
    band = predict(network, optimizer.posterior(), GRID[:, None], likelihood=likelihood, mc_samples=64)
    predicted: dict[str, Any] = {OURS: model.predictive(GRID[:, None].numpy()), "BayesAdam": band}
    data = ((LEFT[0] <= GRID) & (LEFT[1] >= GRID)) | ((RIGHT[0] <= GRID) & (RIGHT[1] >= GRID))
    gap = (LEFT[1] < GRID) & (RIGHT[0] > GRID)
    where = {"at the data": data, "in the gap": gap, "beyond the ends": ~(data | gap)}
    bands: dict[str, Scores] = {}
    for name, pred in predicted.items():
        deviation = pred.epistemic.flatten().sqrt()
        inside = (pred.mean.flatten() - torch.sin(2.5 * GRID)).abs() <= NORMAL * deviation
        scores = {"deviation": deviation, "truth inside": inside.double()}
        bands[name] = {
            what: {place: float(v[mask].mean()) for place, mask in where.items()} for what, v in scores.items()
        }
    return bands, {"data": (x, y), "predictions": predicted}


def _draw(path: Path, panels: Mapping[str, Any], draw: Callable[..., Any], size: Any) -> None:
    """Write a figure with one panel for each of some names, which share an axis and a legend."""
    from matplotlib import pyplot

    shown = {name: value for name, value in panels.items() if name != TRUTH}
    figure, grid = pyplot.subplots(1, len(shown), figsize=size, sharey=True, squeeze=False, layout="constrained")
    for axes, (name, value) in zip(grid[0], shown.items(), strict=True):
        draw(axes, value)
        axes.set_title(name)
        axes.label_outer()
    handles = axes.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=len(handles[0]), frameon=False)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=150, facecolor="white")
    pyplot.close(figure)


def _draw_prices(new: Mapping[str, Array], axes: Any, ends: Array) -> None:
    """Draw the intervals of new flats by size, as differences from the expected price of the flat."""
    from bayesadam.plots import COLOURS

    area, mean, envelope = new["inputs"][:120, 0], new["mean"][:120], NORMAL * new["deviation"][:120]
    (lower, upper), price = ends[:, :120] - mean, new["price"][:120] - mean
    inside, order = (lower <= price) & (price <= upper), np.argsort(area)
    axes.vlines(area, lower, upper, color=COLOURS[0], alpha=0.35, lw=2, label="95% interval")
    for sign, label in ((-1, None), (1, "95% in truth")):
        axes.plot(area[order], sign * envelope[order], color="black", lw=1.2, ls="--", label=label)
    axes.scatter(area[inside], price[inside], s=9, color="black", zorder=3, label="price, inside")
    crosses = {"s": 34, "marker": "X", "color": COLOURS[1], "zorder": 4, "lw": 0, "label": "price, outside"}
    axes.scatter(area[~inside], price[~inside], **crosses)
    axes.set(xlabel="size (square metres)", ylabel="price minus its expectation")


def _draw_entropy(axes: Any, splits: Sequence[Mapping[str, Tensor]]) -> None:
    from bayesadam import plots

    groups = {group: torch.cat([entropy[group] for entropy in splits]) for group in splits[0]}
    plots.entropy_histogram(axes, groups, classes=10)


def _draw_band(data: Data, axes: Any, predicted: Any) -> None:
    from bayesadam import plots

    plots.regression_band(axes, GRID, predicted, data)
    axes.plot(GRID, torch.sin(2.5 * GRID), color=plots.COLOURS[1], ls="--", lw=1.5, label="true curve")
    axes.set(ylim=(-3.5, 3.5))


def _draw_weights(axes: Any, shown: Any) -> None:
    """Draw widths of all weights before and after training."""
    from bayesadam import plots

    for name, q, line, colour in (("after training", "posterior", "-", 0), ("at the start", "start", "--", 1)):
        widths = torch.cat([variance.flatten() for variance in shown[q].variance.values()]).sqrt().numpy()
        options: dict[str, Any] = {"histtype": "step", "ls": line, "lw": 1.8, "color": plots.COLOURS[colour]}
        bins, share = np.geomspace(0.8 * widths.min(), 1.2 * widths.max(), 60), np.full(len(widths), 100 / len(widths))
        axes.hist(widths, bins.tolist(), weights=share, label=name, **options)
    axes.set(xscale="log", xlabel="standard deviation of a weight", ylabel="% of the weights")
