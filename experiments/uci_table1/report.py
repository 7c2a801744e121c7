"""Table 1 and Fig. 4, ours beside the paper's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.experiment import Report
from experiments.results import Result
from experiments.tables import Cell, Number, Published, Table, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"vadam": "Vadam", "vprop": "Vprop"}
NOTES = """\
Test scores after 40 epochs, mean and standard error over the 20 published splits (population standard deviation over
the root of 20, as the authors' code has it). *Difference* is ours minus the paper's in units of the combined standard
error, the paper's rounding included as the variance of a uniform distribution; positive is better.

The paper's Vadam and BBVI log-likelihoods are **joint** over the test set, `log mean_s prod_i p(y_i | theta_s) / n`,
while its MC-dropout column is **pointwise**, `mean_i log mean_s p(y_i | theta_s)`. Both are here; the paper's number is
compared with our joint one. Vprop is in no table of the paper: its final RMSE is read off Fig. 4 of the authors' code.

What differs, and why:

* Tuned on the joint log-likelihood, concrete and wine give the paper's number to the second decimal, and their learning
  curves become the paper's: the pointwise tuning explains them. It chooses a higher noise precision, which is better
  pointwise and in RMSE, and worse joint.
* On energy the joint tuning is worse than the pointwise one even in joint log-likelihood: the validation score has two
  optima, at a noise precision near 15 and at the box's edge of e^5, and their order is a matter of the draw.
* **kin8nm**, 0.69 against 0.76, stays below. All splits choose the largest prior precision of the box, e^4: the
  posterior is too wide. Over the first 8 splits, no point of a grid (log prior precision -3, 0, 2, 4; log noise
  precision 1.8, 2.2, 2.6, 3.0) gives more than 0.72, at (4, 2.2). There, a minibatch of 64 gives 0.75, and one of 32
  (with 10 samples, as on the small sets) 0.78, since noisier gradients narrow the posterior; 1,000 evaluation samples
  in place of 100 add 0.02. So the paper's number is one that a smaller minibatch than the stated 128 gives.

Departures from the authors' code:

* The precisions are tuned on the pointwise log-likelihood of the folds, not on the joint one: that costs joint
  log-likelihood on the test set. Where it costs much, the third table has the same tuned on the joint one.
* Bayesian optimisation by Optuna's Gaussian process (Matern 5/2, log expected improvement) in place of `bayes_opt`
  0.6.0: 5 random and 25 guided candidates in the same box, one study per split. The seed of theirs was not fixed.
* Every split and fold has its own seed for weights, noise and order; theirs is 123 for all.
* `betas = (0.9, 0.99)` as in the code (the paper prints them exchanged), and the posterior starts at the prior, as the
  authors' README says (the paper's "initial precision 10" does not hold for Vadam).
"""


def report(results: Mapping[str, Result], datasets: Sequence[str]) -> Report:
    """From the finished units."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    tables = [_rmse(results, datasets, numbers, "vadam"), _log_likelihood(results, datasets, numbers, "vadam")]
    if any(key.startswith("vadam-joint-") for key in results):
        tables.append(_log_likelihood(results, datasets, numbers, "vadam-joint"))
    if any(key.startswith("vprop-") for key in results):
        tables.append(_rmse(results, datasets, numbers, "vprop"))
    return Report(tables, {"learning-curves": _curves(results, datasets, numbers)} if results else {}, NOTES)


Numbers = Mapping[tuple[str, str, str], Published]


def _values(result: Result, metric: str, decimals: int | None = None) -> Number:
    return Number.of([split[metric] for split in result.result["splits"]], ddof=0, decimals=decimals)


def _rmse(results: Mapping[str, Result], datasets: Sequence[str], numbers: Numbers, method: str) -> Table:
    """Beside Table 1, which has two decimals and no Vprop, and the last points of Fig. 4."""
    rows: list[list[Cell]] = []
    for dataset in datasets:
        if (result := results.get(f"{method}-{dataset}")) is None:
            continue
        ours, read = _values(result, "rmse"), numbers[dataset, METHODS[method], "test_RMSE@epoch40"].value
        figure = Number(read.mean, read.error)
        if method == "vprop":
            rows.append([dataset, ours, figure, _difference(ours, figure, -1)])
        else:
            table = _printed(numbers[dataset, METHODS[method], "test_RMSE"])
            rows.append([dataset, ours, table, figure, _difference(ours, table, -1)])
    header = ["data", "ours", "paper, Table 1", "paper, Fig. 4", "difference"]
    if method == "vprop":
        header.remove("paper, Table 1")
    return Table(f"{METHODS[method]}: test RMSE", header, rows)


def _log_likelihood(results: Mapping[str, Result], datasets: Sequence[str], numbers: Numbers, method: str) -> Table:
    rows: list[list[Cell]] = []
    for dataset in datasets:
        if (result := results.get(f"{method}-{dataset}")) is None:
            continue
        pointwise, joint = (_values(result, name, 2) for name in ("log_likelihood", "joint_log_likelihood"))
        theirs = _printed(numbers[dataset, "Vadam", "test_loglik"])
        rows.append([dataset, pointwise, joint, theirs, _difference(joint, theirs, 1)])
    tuned = "tuned on the joint one, as the paper" if method == "vadam-joint" else "tuned on the pointwise one"
    header = ["data", "ours, pointwise", "ours, joint", "paper, joint", "difference"]
    return Table(f"Vadam: test log-likelihood in nats per point, {tuned}", header, rows)


def _printed(number: Published) -> Number:
    """As Table 1 prints it."""
    return Number(number.value.mean, number.value.error, 2)


def _difference(ours: Number, theirs: Number, sign: int) -> Number:
    """How much better we are, in combined standard errors."""
    assert ours.mean is not None
    assert theirs.mean is not None
    rounding = 0.0 if theirs.decimals is None else 10.0**-theirs.decimals / math.sqrt(12)
    error = math.sqrt((ours.error or 0.0) ** 2 + (theirs.error or 0.0) ** 2 + rounding**2)
    return Number(sign * (ours.mean - theirs.mean) / error, None, 1)


def _curves(results: Mapping[str, Result], datasets: Sequence[str], numbers: Numbers) -> Figure:
    """Fig. 4: test RMSE by epoch; bands are one standard error, circles are the paper's curves, digitised."""
    from matplotlib.figure import Figure

    columns = min(4, len(datasets))
    lines = math.ceil(len(datasets) / columns)
    figure = Figure(figsize=(3.1 * columns, 2.7 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis in axes[len(datasets) :]:
        axis.remove()
    for axis, dataset in zip(axes, datasets, strict=False):
        floor, ceiling = math.inf, 0.0
        for colour, (method, name) in zip(("tab:blue", "tab:orange"), METHODS.items(), strict=True):
            result = results.get(f"{method}-{dataset}")
            if result is not None:
                mean = result.result["curves"]["rmse"]
                error = result.result["curves_standard_error"]["rmse"]
                epochs = range(1, len(mean) + 1)
                axis.plot(epochs, mean, color=colour, label=f"{name}, ours")
                low, high = ([m + s * e for m, e in zip(mean, error, strict=True)] for s in (-1, 1))
                axis.fill_between(epochs, low, high, color=colour, alpha=0.25, linewidth=0)
                floor, ceiling = min(floor, *low), max(ceiling, high[min(2, len(high) - 1)])
            points = sorted(
                (float(metric.partition("@epoch")[2]), number.value.mean)
                for (data, by, metric), number in numbers.items()
                if data == dataset and by == name and metric.startswith("test_RMSE@epoch")
            )
            axis.plot(*zip(*points, strict=True), "o", color=colour, markersize=3, mfc="none", label=f"{name}, paper")
        axis.set_title(dataset)
        if ceiling > 0:
            axis.set_ylim(0.8 * floor, 1.1 * ceiling)
    for axis in axes[-columns:]:
        axis.set_xlabel("epoch")
    for axis in axes[::columns]:
        axis.set_ylabel("test RMSE")
    axes[0].legend(fontsize=7)
    return figure
