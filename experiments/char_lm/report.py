"""The page: our losses beside the published ones, and the perplexity and calibration of posteriors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.char_lm.figures import curves, passage
from experiments.char_lm.findings import differences, findings, trained
from experiments.char_lm.notes import CHOICES
from experiments.char_lm.settings import CHOSEN, LABELS, PUBLISHED, UNITS
from experiments.experiment import Report
from experiments.results import Result
from experiments.tables import Cell, Number, Table, published

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NETWORKS = {"lstm": "LSTM", "transformer": "transformer"}
READINGS = {
    "mean": "mean loss; variance 1 / s",
    "data": "mean loss; variance 1 / (N s)",
    "sum": "summed loss; variance 1 / s",
}


def report(results: Mapping[str, Result]) -> Report:
    """Return the report from the results of the finished units."""
    paper = _paper()
    tables = [
        _losses(results, paper, "lstm", "With the published settings, their decay scaled to the epochs run"),
        _losses(results, {}, "constant", "The same without decay, as in the first epochs of the published trainings"),
        *(_scores(results, network) for network in NETWORKS),
        _units(results),
        _search(results),
    ]
    figures: dict[str, Figure] = {}
    if any(key.startswith(("lstm-", "constant-", "transformer-")) for key in results):
        figures["curves"] = curves(results, paper)
    for network in NETWORKS:
        found = trained(results, network, "ivon").get(0, {})
        if "passage" in found:
            figures[f"uncertainty_{network}"] = passage(found["passage"], f"{NETWORKS[network]} trained by IVON")
    notes = findings(results, paper)
    return Report([table for table in tables if table.rows], figures, f"{notes}\n{CHOICES}" if notes else CHOICES)


def _paper() -> dict[str, float]:
    """Return the best test losses in the published figure, by our names of the methods."""
    numbers = published(Path(__file__).with_name("paper.csv"))
    rows = {name: numbers["war_and_peace", LABELS[name], "best_test_loss_nats_per_char"] for name in PUBLISHED}
    return {name: row.value.mean for name, row in rows.items() if row.value.mean is not None}


def _losses(results: Mapping[str, Result], paper: Mapping[str, float], prefix: str, title: str) -> Table:
    """Tabulate losses per character of the published methods, and VadaGrad's differences from each, paired by seed."""
    rows: list[list[Cell]] = []
    reference = trained(results, prefix, "vadagrad")
    for name in PUBLISHED:
        found = trained(results, prefix, name)
        if not found:
            continue
        both = differences(reference, found)
        last = [run["test"]["mean"]["nll"] for run in found.values()]
        row: list[Cell] = [LABELS[name], len(found), Number.of(last, decimals=3)]
        row += [Number.of((min(run["curve"]["test"]) for run in found.values()), decimals=3)]
        row += [Number.of(both, decimals=3) if both and name != "vadagrad" else None]
        if paper:
            row += [
                Number(paper[name], None, 4),
                Number(paper["vadagrad"] - paper[name], None, 4) if name != "vadagrad" else None,
            ]
        rows.append(row)
    header = ["method", "seeds", "test loss", "best test loss", "VadaGrad minus this"]
    header += ["published best, 200 epochs", "published VadaGrad minus this"] if paper else []
    epochs = _epochs(results, [f"{prefix}-{name}" for name in PUBLISHED])
    return Table(f"{title}: nats per character after {epochs} epochs, mean network", header, rows)


def _epochs(results: Mapping[str, Result], starts: Sequence[str]) -> str:
    found = {f"{r.config['epochs']:g}" for key, r in results.items() if key.rpartition("-")[0] in starts}
    return " or ".join(sorted(found)) or "no"


def _scores(results: Mapping[str, Result], network: str) -> Table:
    """Tabulate the perplexity and the calibration of the chosen methods."""
    rows: list[list[Cell]] = []
    reference = trained(results, network, "adamw")
    for name in CHOSEN[network]:
        found = trained(results, network, name)
        kinds = list(dict.fromkeys(kind for run in found.values() for kind in run["test"]))
        for kind in kinds:
            values = [run["test"][kind] for run in found.values()]
            shown = "mean network" if kind == "mean" else f"{kind.partition('-')[2]} samples"
            row: list[Cell] = [LABELS[name], "the weights" if name == "adamw" else shown, len(values)]
            for metric, digits in (("nll", 4), ("perplexity", 3), ("ece", 4)):
                row.append(Number.of((value[metric] for value in values), decimals=digits))
            row.append(Number.of((100.0 * value["accuracy"] for value in values), decimals=2))
            both = differences(found, reference, kind)
            row.append(Number.of(both, decimals=4) if both and name != "adamw" else None)
            rows.append(row)
    header = ["method", "prediction", "seeds", "NLL, nats", "perplexity", "ECE", "accuracy, %", "NLL minus AdamW's"]
    epochs = _epochs(results, [f"{network}-{name}" for name in CHOSEN[network]])
    return Table(f"{NETWORKS[network]}: test scores per character after {epochs} epochs", header, rows)


def _units(results: Mapping[str, Result]) -> Table:
    rows: list[list[Cell]] = []
    for unit in UNITS:
        if f"unit-{unit}" in results:
            found = results[f"unit-{unit}"].result
            loss = "diverged" if found["diverged"] is not None else Number(found["validation"], None, 3)
            widths = [Number(width) for width in found.get("widths", [None] * 3)]
            steps: list[Cell] = [found["steps"]]
            rows.append([READINGS[unit], *steps, loss, *widths])
    header = ["gradient of s; variance", "steps", "validation loss", "width, 1%", "50%", "99%"]
    return Table(
        "VadaGrad's `s0 = 1e-4` in three units, without decay; the lowest validation loss is chosen", header, rows
    )


def _search(results: Mapping[str, Result]) -> Table:
    rows: list[list[Cell]] = []
    for network, methods in CHOSEN.items():
        for name in methods:
            found = {k: r for k, r in results.items() if k.rpartition("-")[0] == f"search-{network}-{name}"}
            losses = {k: r.result["validation"] for k, r in found.items() if r.result["validation"] is not None}
            best = min(losses, key=lambda key: losses[key], default=None)
            for key, result in found.items():
                rate = f"{result.result['setting']['options']['lr']:g}"
                loss = Number(losses[key], None, 3) if key in losses else "diverged"
                rows.append([NETWORKS[network], LABELS[name], f"**{rate}**" if key == best else rate, loss])
    epochs = _epochs(results, [f"search-{network}-{name}" for network, names in CHOSEN.items() for name in names])
    header = ["network", "method", "learning rate", "validation loss"]
    return Table(f"Candidates after {epochs} epochs, the mean network's loss; the best in bold", header, rows)
