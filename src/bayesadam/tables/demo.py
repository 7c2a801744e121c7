"""The demo shows in a minute what a posterior adds: on prices whose noise grows, on images of digits, and on a curve
with a gap in its data.

The library's methods have their default settings. The others are tuned: boosting by cross-validation, Adam by its
learning rate and temperature.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bayesadam import metrics
from bayesadam.anchored import anchored_ensemble
from bayesadam.calibration import calibrate
from bayesadam.ensembles import train_ensemble
from bayesadam.files import whole_file, write_json
from bayesadam.functional.generators import seeded
from bayesadam.likelihoods import Categorical, Gaussian
from bayesadam.optim import BayesAdam
from bayesadam.predictive import predict

Array = NDArray[Any]
Scores = dict[str, dict[str, float]]
"""Scores by method, and by name of the score."""
Advance = Callable[[str, int, int], None]
"""A function of the current work, the number of steps done, and the number of all steps."""

COVERAGE, NORMAL, NEW_FLATS = 0.95, 1.959963984540054, 2000
COLUMNS = ("area", "rooms", "year", "km_to_centre", "floor")
OURS, LINEAR, QUANTILES, TRUTH = "BayesianMLPRegressor", "linear model", "quantile boosting", "the truth"
RATES, BATCH_SIZE, VALIDATION = (1e-3, 3e-3, 1e-2), 32, 200
"""Adam's learning rates, and how many images choose one of them and the temperature; BayesAdam does without."""
BAYESADAM, SCALED = "BayesAdam", "Adam, scaled"
ANCHORED, DEEP = "anchored ensemble", "five Adam networks"
LEFT, RIGHT, NOISE = (-2.0, -0.5), (0.8, 2.0), 0.1
"""Where the curve has data, and the standard deviation of their noise; it is looked at in [-3, 3]."""


def run(
    folder: Path,
    *,
    seed: int,
    advance: Advance,
    repetitions: int = 4,
    price_rows: int = 400,
    digit_rows: int = 1000,
    epochs: int = 30,
    curve_steps: int = 2000,
    estimator: Mapping[str, int] | None = None,
    processes: int = -1,
) -> dict[str, list[Scores]]:
    """Train everything; write ``metrics.json``, ``prices.csv`` and ``prices.png`` into an existing folder.

    Args:
        folder: Folder of the results.
        seed: Seed of data, networks and noise. The same seed gives the same numbers.
        advance: Function that is called during the training.
        repetitions: Number of tables of prices, and of splits of the digits, at least 2.
        price_rows: Number of training rows of each table.
        digit_rows: Number of training images.
        epochs: Number of epochs of the networks for digits.
        curve_steps: Number of steps of the networks for the curve.
        estimator: Arguments that shorten the estimator's training.
        processes: Number of processes that train at the same time, each with one thread; -1: one for every processor.

    Returns:
        The contents of ``metrics.json``: the scores of every table of prices, every split of the digits, and every
        sample of the curve.
    """
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=processes, return_as="generator")  # results do not depend on the number of processes
    seeds = range(seed, seed + repetitions)
    tables = [generate_table(price_rows, seed, table) for table in range(repetitions)]
    calls = [
        *(
            delayed(with_one_thread)(price_intervals, *table, random_state=each, **(estimator or {}))
            for table, each in zip(tables, seeds, strict=True)
        ),
        *(delayed(with_one_thread)(compare_digits, digit_rows, epochs, each) for each in seeds),
        *(delayed(with_one_thread)(compare_bands, curve_steps, each) for each in seeds),
    ]
    results = []
    for number, result in enumerate(parallel(calls)):
        results.append(result)
        what = ("prices", "digits", "curve")[number // repetitions]
        advance(what, number % repetitions + 1, repetitions)
    intervals, digits, curves = (results[first : first + repetitions] for first in range(0, len(results), repetitions))
    prices = [
        {name: score_interval(ends[0], ends[1], new) for name, ends in found.items()}
        for found, (_, new) in zip(intervals, tables, strict=True)
    ]
    training, new = tables[0]
    with whole_file(folder / "prices.csv") as path:
        rows = np.column_stack([training["inputs"], training["price"]])
        np.savetxt(path, rows, "%.2f", delimiter=",", header=",".join((*COLUMNS, "price")), comments="")
    _draw(folder / "prices.png", new, intervals[0])
    record = {"prices": prices, "digits": digits, "curve": curves}
    write_json(folder / "metrics.json", {"seed": seed, **record}, digest=False, indent=2)
    return record


def with_one_thread(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function in a process whose computations have one thread."""
    from bayesadam.tables.estimators.threads import threads_for

    with threads_for(0):
        return function(*args, **options)


def generate_table(rows: int, seed: int, table: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Generate the training rows and the new flats of a table."""
    generator = np.random.default_rng([seed, table])
    return generate(rows, generator), generate(NEW_FLATS, generator)


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


def price_intervals(training: Mapping[str, Array], new: Mapping[str, Array], **options: Any) -> dict[str, Array]:
    """Return lower and upper ends, ``(2, N)``, of the 95% intervals of every method for new flats."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import LinearRegression
    from sklearn.metrics import make_scorer, mean_pinball_loss
    from sklearn.model_selection import GridSearchCV

    from bayesadam.tables.estimators.regressor import BayesianMLPRegressor

    inputs, price = training["inputs"], training["price"]
    linear = LinearRegression().fit(inputs, price)
    error = np.sqrt(np.square(price - linear.predict(inputs)).sum() / (len(price) - inputs.shape[1] - 1))
    ends = []
    for level in (0.5 - 0.5 * COVERAGE, 0.5 + 0.5 * COVERAGE):
        model = HistGradientBoostingRegressor(loss="quantile", quantile=level, random_state=0)
        loss = make_scorer(mean_pinball_loss, greater_is_better=False, alpha=level)
        search = GridSearchCV(model, {"max_iter": [50, 100], "max_leaf_nodes": [6, 31]}, scoring=loss, cv=3)
        ends.append(search.fit(inputs, price).predict(new["inputs"]))
    ours = BayesianMLPRegressor(**options).fit(inputs, price)
    signs = NORMAL * np.array([[-1.0], [1.0]])
    return {
        LINEAR: linear.predict(new["inputs"]) + signs * error,
        QUANTILES: np.stack(ends),
        OURS: ours.predict_interval(new["inputs"], COVERAGE).T,
        TRUTH: new["mean"] + signs * new["deviation"],
    }


def score_interval(lower: Array, upper: Array, new: Mapping[str, Array]) -> dict[str, float]:
    """Score intervals, first by Gneiting and Raftery 2007, eq. 43; a fifth of the flats is small, and one is large."""
    price, area = new["price"], new["inputs"][:, 0]
    inside = (lower <= price) & (price <= upper)
    outside = np.maximum(lower - price, 0.0) + np.maximum(price - upper, 0.0)
    score = np.mean(upper - lower + 2.0 / (1.0 - COVERAGE) * outside)
    shares = {"covered": inside.mean(), "small": inside[area < 60.0].mean(), "large": inside[area > 170.0].mean()}
    return {name: float(v) for name, v in {"score": score, **shares, "width": (upper - lower).mean()}.items()}


def compare_digits(rows: int, epochs: int, seed: int) -> Scores:
    """Compare predictions of digits, and the entropies of digits with those of photographs."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    training, held, test = order.tensor_split([rows, rows + VALIDATION])
    data, groups = (x[training], y[training]), (x[test], photographs())
    adams = [_network(seed) for _ in RATES]
    for network, rate in zip(adams, RATES, strict=True):
        adam = torch.optim.Adam(network.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(adam, epochs * -(-rows // BATCH_SIZE))
        _train(network, data, epochs, seed, adam.step, schedule.step)
    best = min(adams, key=lambda network: nn.functional.cross_entropy(network(x[held]), y[held]).item())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a network that has hardly been trained
        temperature: Any = calibrate(best, (x[held], y[held]), likelihood=Categorical()).temperature
    network, total = _network(seed), epochs * -(-rows // BATCH_SIZE)
    optimizer = BayesAdam(
        network.named_parameters(), num_data=rows, batch_size=BATCH_SIZE, total_steps=total, seed=seed
    )
    optimizer.train()
    _train(network, data, epochs, seed, optimizer.step)
    optimizer.eval()
    with torch.no_grad():
        logits = [best(inputs) for inputs in groups]
    ours: list[Any] = [
        predict(network, optimizer.posterior(network), inputs, likelihood=Categorical(), mc_samples=64)
        for inputs in groups
    ]
    probs = {
        "Adam": [each.softmax(1) for each in logits],
        SCALED: [(each / float(temperature)).softmax(1) for each in logits],
        BAYESADAM: [pred.probs for pred in ours],
    }
    return {name: _scores_of_digits(of_digits, of_others, y[test]) for name, (of_digits, of_others) in probs.items()}


def _scores_of_digits(probs: Tensor, others: Tensor, labels: Tensor) -> dict[str, float]:
    right = probs.gather(1, labels[:, None]).double().clamp_min(1e-30)
    entropy, entropy_of_others = (torch.special.entr(each).sum(1) for each in (probs, others))
    return {
        "accuracy": metrics.accuracy(probs, labels),
        "NLL": float(-right.log().mean()),
        "ECE": metrics.expected_calibration_error(probs, labels),
        "photographs": metrics.ood_auroc(entropy, entropy_of_others),
    }


def compare_bands(steps: int, seed: int) -> Scores:
    """How often the curve is inside of the 95% band of networks: at the data, in the gap and beyond the ends."""
    generator = torch.Generator().manual_seed(seed)
    parts = [low + (high - low) * torch.rand(40, 1, generator=generator) for low, high in (LEFT, RIGHT)]
    x, grid = torch.cat(parts), torch.linspace(-3.0, 3.0, 301)[:, None]
    y = torch.sin(2.5 * x) + NOISE * torch.randn(x.shape, generator=generator)
    likelihood = Gaussian(NOISE**-2)

    def network() -> nn.Sequential:
        return nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))

    def bayesadam() -> tuple[nn.Module, Any]:
        trained = network()
        plan: dict[str, Any] = {"num_data": len(x), "batch_size": len(x), "total_steps": steps}
        optimizer = BayesAdam(trained.named_parameters(), **plan, seed=seed)
        for _ in range(steps):
            with optimizer.sampled_params():
                optimizer.zero_grad()
                likelihood(trained(x), y).backward()
            optimizer.step()
        return trained, optimizer.posterior()

    def deep() -> tuple[nn.Module, Any]:
        options: dict[str, Any] = {"epochs": steps, "batch_size": len(x), "seed": seed, "progress": False}
        return network(), train_ensemble(network, (x, y), likelihood=likelihood, method="adam", lr=0.01, **options)

    def anchored() -> tuple[nn.Module, Any]:
        options: dict[str, Any] = {"steps": steps, "prior_precision": 0.01, "seed": seed, "progress": False}
        return network(), anchored_ensemble(network, (x, y), likelihood=likelihood, **options)

    is_data = ((grid > LEFT[0]) & (grid < LEFT[1])) | ((grid > RIGHT[0]) & (grid < RIGHT[1]))
    is_gap = (grid > LEFT[1]) & (grid < RIGHT[0])
    places = {"at the data": is_data, "in the gap": is_gap, "beyond": ~(is_data | is_gap)}
    scores: Scores = {}
    for name, train in {BAYESADAM: bayesadam, DEEP: deep, ANCHORED: anchored}.items():
        start = time.process_time()
        with seeded(seed, torch.device("cpu")):
            model, posterior = train()
        pred: Any = predict(model, posterior, grid, likelihood=likelihood, mc_samples=64)
        inside = (pred.mean - torch.sin(2.5 * grid)).abs() <= NORMAL * pred.epistemic.sqrt()
        scores[name] = {place: float(inside[mask].float().mean()) for place, mask in places.items()}
        scores[name]["seconds"] = time.process_time() - start
    return scores


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


def _network(seed: int) -> nn.Sequential:
    with seeded(seed, torch.device("cpu")):
        first, second, last = nn.Linear(64, 128), nn.Linear(128, 128), nn.Linear(128, 10)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last)


def _train(network: nn.Module, data: tuple[Tensor, Tensor], epochs: int, seed: int, *steps: Callable[[], Any]) -> None:
    """Call ``steps`` after computing the gradients of every minibatch; minibatches are the same for all optimisers."""
    x, y = data
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), BATCH_SIZE):
            network.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            for step in steps:
                step()


def _draw(path: Path, new: Mapping[str, Array], intervals: Mapping[str, Array]) -> None:
    """Draw the intervals of new flats by size, as differences from the expected price of the flat."""
    from matplotlib.figure import Figure

    from bayesadam.plots import COLOURS

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    shown = {name: ends for name, ends in intervals.items() if name != TRUTH}
    area, mean = new["inputs"][:120, 0], new["mean"][:120]
    price, order = new["price"][:120] - mean, np.argsort(area)
    for axes, (name, ends) in zip(figure.subplots(1, len(shown), sharey=True), shown.items(), strict=True):
        lower, upper = ends[:, :120] - mean
        inside = (lower <= price) & (price <= upper)
        axes.vlines(area, lower, upper, color=COLOURS[0], alpha=0.35, lw=2, label="95% interval")
        axes.plot(area[order], (intervals[TRUTH][:, :120] - mean)[:, order].T, "k--", lw=1.2)
        axes.plot(area[inside], price[inside], "k.", label="price, inside")
        axes.plot(area[~inside], price[~inside], "X", color=COLOURS[1], label="price, outside")
        axes.set(title=name, xlabel="size (square metres)")
    axes.legend(frameon=False)
    with whole_file(path) as temporary:
        figure.savefig(temporary, dpi=150, format="png")
