"""``bayesadam methods``."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from bayesadam.cli.mistakes import require

ADVICE = {
    "laplace": ("first, for any table", "Adam, and some seconds at the end"),
    "badam": ("laplace is too slow: many weights", "Adam"),
    "anchored": ("noise and prior are known; the most faithful", "Adam, and some seconds at the end"),
    "ensemble": ("to see what posteriors add to networks", "Adam"),
    "vadam": ("networks that are pruned later", "a sample per step"),
    "vprop": ("to compare with vadam", "a sample per step"),
    "ivon": ("classification with larger networks", "a sample per step"),
    "vogn": ("widths that do not depend on the batch", "a sample, and squares per example"),
    "von": ("the reference for small networks", "a sample, and second derivatives"),
    "bbb": ("pruning; the classic to compare with", "a sample, and twice the parameters"),
    "fawn-ropd": ("regression by predictive density", "ten times a sample per step, or more"),
    "fawn-vi": ("variational inference without sampling", "ten times a sample per step, or more"),
}
"""When to use each method, and its cost."""


def methods() -> None:
    """List the methods with a description, a recommendation of when to use them, and their cost."""
    require("sklearn")
    from bayesadam.sklearn import METHODS
    from bayesadam.sklearn.methods import method_named

    table = Table()
    for head in ("--method", "what it is", "when to take it", "cost"):
        table.add_column(head)
    for name in METHODS:
        table.add_row(name, method_named(name).about, *ADVICE[name])
    Console().print(table)
