"""The page: our Fig. 3 beside that of the paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.experiment import Report
from experiments.logistic_regression.plots import COLOURS
from experiments.results import Result
from experiments.tables import Cell, Number, Published, Table, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {"bbb": "BBVI", "vadam": "Vadam", "vogn": "VOGN"}
"""Names of the methods in the paper. For a method without results, only the published curve is shown."""

NOTES = """\
A network of one hidden layer of 64 ReLU on Australian credit, 345 points to train and 345 to test. A single evaluation
has 10 posterior samples and is noisy. Each seed is therefore smoothed by a running median over 100 iterations, and
lines are medians of these over 10 seeds. Circles are the same running median in the authors' stored runs, which have
one seed each. BBVI is Bayes by Backprop: a Gaussian prior, the divergence in closed form, `sigma = log(1 + e^rho)`, and
Adam on `mu` and `rho`. The axis is logarithmic, so that the whole curve of BBVI is visible; the axis in the paper ends
at 2.

The plotted loss is **joint** over the test set, `-log2 mean_s prod_i p(y_i | theta_s) / n`, as in the authors' code;
the table also has the **pointwise** loss, `-mean_i log2 mean_s p(y_i | theta_s)`. The joint loss is practically that of
the best of the 10 samples, and the pointwise loss that of their average. The two differ as long as the posterior is
wide.

What to make of it:

* All numbers of the paper are reproduced to 0.02 bits for Vadam and VOGN, and to 0.05 bits for BBVI. On (1, 1) this
  agreement is closer than the noise of the evaluation: with three other draws of the noise, BBVI had 2.88 to 3.66
  instead of 3.10 at iteration 1000, and 1.84 to 2.12 instead of 1.77 at iteration 5000. With 16 samples it had 0.74 to
  0.76 instead of 0.75 at iteration 5000.
* BBVI is much slower on minibatches of one: with 16 samples it reaches the loss of Vadam's iteration 850 after 5000
  iterations, and with one sample it does not reach it. Its standard deviations start at 1 and hardly decrease: after
  5000 iterations one in twenty is below 0.84 on (1, 1), 0.59 on (1, 16) and 0.51 on (128, 16). Vadam computes them from
  a running average of squares, and one in twenty is below 0.08 on (1, 1). The medians are above 0.8 in all four cases.
* On (128, 16) the paper's Vadam starts faster than BBVI but ends with a higher loss. This is not due to chance in its
  single run: our medians cross several times from iteration 3370 to 4300, and at the end Vadam is above BBVI in 9 of 10
  seeds, and 0.11 to 0.20 bits above VOGN in all seeds. The square of the mean gradient of a large minibatch is far
  below the mean of the squares, so that the posterior stays too wide. In the pointwise loss this costs only 0.04 bits.
* VOGN, whose curvature does not depend on the size of the minibatch, is the fastest of the three methods in all panels.
  On (128, 16) it ends 0.04 to 0.20 bits below BBVI in all seeds.

Departures from the authors' code:

* Their division of the data is stored in a separate file, and the LIBSVM file has another order. Here every seed has
  its own random division, so that the bands also include the variation between divisions.
* Minibatches are drawn with replacement. Theirs are consecutive parts of a shuffled epoch, of which the last is
  smaller.
* There is an evaluation every 10 iterations. Theirs is after every iteration, so that their "median of the last 100" is
  over 100 evaluations.
* All seeds are evaluated with the same noise, which is drawn anew for every evaluation. Its fluctuations are therefore
  the same in all seeds: they are not averaged out over seeds, and the bands do not include them.
* VOGN has no momentum, as in the code (the paper prints 0.9).
"""

Numbers = Mapping[tuple[str, str, str], Published]


def report(results: Mapping[str, Result], settings: Sequence[tuple[int, int]]) -> Report:
    """Return the report from the results of the finished units."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    return Report([_table(results, settings, numbers)], {"curves": _figure(results, settings, numbers)}, NOTES)


def _paper(numbers: Numbers, size: int, samples: int, name: str) -> dict[int, float]:
    """Return the published medians of the last 100 evaluations, by iteration."""
    start = "test_log2loss_median_of_last100@iter"
    return {
        int(metric.removeprefix(start)): row.value.mean
        for (setting, method, metric), row in numbers.items()
        if setting == f"M={size},S={samples}" and method == name and metric.startswith(start)
        if row.value.mean is not None
    }


def _ours(result: Result, metric: str, iteration: int) -> Number:
    curves, every = result.result[metric], result.config["every"]
    place = iteration // every - 1
    return Number(curves["median"][place] if place < len(curves["median"]) else None, None, 2)


def _table(results: Mapping[str, Result], settings: Sequence[tuple[int, int]], numbers: Numbers) -> Table:
    rows: list[list[Cell]] = []
    for size, samples in settings:
        for key, name in METHODS.items():
            theirs = _paper(numbers, size, samples, name)
            result = results.get(f"{key}-m{size}-s{samples}")
            row: list[Cell] = [f"{size}, {samples}", name]
            for iteration in (1000, 5000):
                row += [
                    None if result is None else _ours(result, "joint", iteration),
                    Number(theirs.get(iteration), None, 2),
                    None if result is None else _ours(result, "pointwise", iteration),
                ]
            rows.append(row)
    header = ["M, S", "method", "at 1000: joint", "paper", "pointwise", "at 5000: joint", "paper", "pointwise"]
    return Table("Test loss in bits per point: median of the last 100 iterations, median over the seeds", header, rows)


def _figure(results: Mapping[str, Result], settings: Sequence[tuple[int, int]], numbers: Numbers) -> Figure:
    """Plot the medians and the 10% to 90% bands of our seeds, and the paper's single runs as dots with circles."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axes = figure.subplots(1, len(settings), sharey=True, squeeze=False)[0]
    ticks = (0.4, 0.5, 0.6, 0.8, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    for axis, (size, samples) in zip(axes, settings, strict=True):
        for key, name in METHODS.items():
            result = results.get(f"{key}-m{size}-s{samples}")
            if result is not None:
                curves, every = result.result["joint"], result.config["every"]
                iterations = range(every, every * len(curves["median"]) + 1, every)
                axis.plot(iterations, curves["median"], color=COLOURS[name], linewidth=1.8)
                axis.fill_between(
                    iterations, curves["low"], curves["high"], color=COLOURS[name], alpha=0.2, linewidth=0
                )
            theirs = sorted(_paper(numbers, size, samples, name).items())
            axis.plot(*zip(*theirs, strict=True), "o:", color=COLOURS[name], markersize=4, mfc="white", linewidth=1.2)
        axis.set_title(f"minibatch {size}, {samples} sample{'s' if samples > 1 else ''}", fontsize=10)
        axis.set_xlabel("iteration")
        axis.set_xlim(0, 5100)
        axis.set_yscale("log")
        axis.set_ylim(0.4, 6.0)
        axis.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.minorticks_off()
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("test loss (bits per point, joint)")
    legend: list[Line2D | Patch] = [
        Line2D([], [], color=COLOURS[name], linewidth=2, label=name) for name in METHODS.values()
    ]
    legend += [
        Patch(color="0.5", alpha=0.4, label="10 to 90% of our seeds"),
        Line2D([], [], color="0.3", marker="o", linestyle=":", markersize=4, mfc="white", label="paper, one run"),
    ]
    figure.legend(handles=legend, loc="outside upper center", ncols=len(legend), frameon=False, fontsize=9)
    return figure
