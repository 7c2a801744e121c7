"""The page: our Fig. 2b beside that of the paper."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from experiments.experiment import Report
from experiments.logistic_regression import paper, plots
from experiments.logistic_regression.comparison import Comparison, quantiles, values
from experiments.results import Result
from experiments.tables import Cell, Number, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {
    "mf-exact": ("MF-Exact", "MF-Exact", "MF-Exact"),
    "von": ("VON", "VON", ""),
    "vogn-1": ("VOGN-1", "VOGN", "VOGN-1"),
    "vadam-matlab": ("Vadam,\nMATLAB step", "Vadam, MATLAB step", "Vadam M=64"),
    "vadam": ("Vadam", "Vadam", ""),
}
"""Label, colour, and name in the paper, by unit."""

METRICS = {
    "negative_elbo": "negative ELBO per point (nats)",
    "log_loss": "test log-loss (nats)",
    "symmetric_kl": "symmetric KL to MF-Exact (nats)",
}

BIAS = -0.5 * math.log(Comparison.BIAS) / 770
"""Term that the authors' code omits from the negative ELBO per point: the log-determinant of the bias's prior."""

NOTES = """\
Twenty random halves of the 1,540 images, 770 to train and 770 to test; 256 pixels as shipped and a bias; prior
precision 25, on the bias 1e-5. MF-Exact is the optimum of the mean-field evidence lower bound, by L-BFGS on a bound
that quadrature makes exact to rounding, so a symmetric KL of 0 is the best that any method can reach. All three metrics
are exact integrals; nothing is sampled.

**Two Vadams.** The paper's numbers are those of the authors' MATLAB code, whose step is not the paper's: it divides by
`sqrt(s/N)` where Fig. 1, line 8, has `sqrt(s)`, and its posterior takes a bias-corrected `s`
(`experiments/logistic_regression/matlab.py`). *Vadam, MATLAB step* is that; *Vadam* is the paper's, and the library's.

What to make of it:

* VON with exact Hessians on full batches reaches the optimum: symmetric KL 0.03 in the median, 0.08 at most, where the
  paper's methods have 8 and 26. It wants falling rates, 0.05 / (1 + t/1000) here for `lr` and `1 - b2`; at a constant
  0.1 it diverges (symmetric KL above 1,500 after 1,500 steps). It has 20,000 steps; mean and precision are averaged
  over the last fifth.
* The order of the paper is found again in all three metrics, and its distances from MF-Exact in test log-loss, 0.005
  for VOGN-1 and Vadam. In symmetric KL, VOGN-1 and the MATLAB step have 1.6 and 1.3 times the published medians, with
  overlapping boxes. Their splits are not known, which may be a part of it; the rest we cannot explain.
* With the paper's step the posterior is about twice as far from MF-Exact; in test log-loss that costs 0.002 nats.

Departures, and choices where the sources differ:

* The real 3s and 5s: 1,540 images, as in the authors' code. The paper's 1,781 are the number of 2s and 4s, which a
  LIBSVM file labels 3 and 5.
* Prior precision 1e-5 on the bias, as in the code; the paper has 25 for all. The code leaves `-0.5 log 1e-5` out of the
  negative ELBO, 0.0075 per point for every method; so do table and figure (`results` have it in).
* `momentum` 0.9 for VOGN and Vadam, as in the code.
* The posterior starts at precision 26, the prior's plus the `S = I` of the code, on the bias as on the pixels (the code
  has 1 there; MATLAB's step here too). At the end at most 1.4% of it is left.
* Steps are rounded up to whole thousands.
"""


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    return Report([_table(results)], {"box-plots": _figure(results)}, NOTES)


def _shown(result: Result, metric: str) -> list[float]:
    """Return the values of a metric as defined in the paper."""
    return [value - (BIAS if metric == "negative_elbo" else 0.0) for value in values(result, metric)]


def _table(results: Mapping[str, Result]) -> Table:
    rows: list[list[Cell]] = []
    for key, (label, _, published) in METHODS.items():
        if (result := results.get(key)) is None:
            continue
        row: list[Cell] = [label.replace("\n", " ")]
        for metric in METRICS:
            _, median, _ = quantiles(_shown(result, metric))
            digits = 4 if metric != "symmetric_kl" else 3 if median < 1 else 1
            theirs = paper.box("usps_3v5", published, metric).get("med")
            row += [Number(median, None, digits), Number(theirs, None, digits)]
        low, _, high = quantiles(_shown(result, "symmetric_kl"))
        rows.append([*row, f"{low:.3g} to {high:.3g}"])
    header = ["method", "negative ELBO", "paper", "log-loss", "paper", "symmetric KL", "paper", "ours, quartiles"]
    return Table("Medians over the splits, in nats; ELBO and log-loss per point", header, rows)


def _figure(results: Mapping[str, Result]) -> Figure:
    """Plot our boxes, which are filled, and those of the paper, which are hollow."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axis, (metric, label) in zip(figure.subplots(1, len(METRICS)), METRICS.items(), strict=True):
        shown = [key for key in METHODS if not (metric == "symmetric_kl" and key == "mf-exact")]
        for place, key in enumerate(shown):
            _, colour, published = METHODS[key]
            box = paper.box("usps_3v5", published, metric)
            if key in results:
                left = place - 0.2 if box else place
                plots.ours(axis, left, _shown(results[key], metric), plots.COLOURS[colour])
            plots.theirs(axis, place + 0.2, box)
        axis.set_xticks(range(len(shown)), [METHODS[key][0] for key in shown], fontsize=8)
        axis.set_xlim(-0.6, len(shown) - 0.4)
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
        if metric == "symmetric_kl":
            axis.set_yscale("log")
    legend = [
        Patch(facecolor="0.8", edgecolor="0.3", label="ours, one dot per split"),
        Line2D([], [], color=plots.GREY, marker="s", markersize=10, mfc="none", linestyle="", label="paper"),
    ]
    figure.legend(handles=legend, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
    return figure
