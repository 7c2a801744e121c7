"""Curves of the test loss, and a piece of text in the colours of its uncertainty."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from experiments.char_lm.settings import LABELS
from experiments.results import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {
    "vadagrad": "#D55E00",
    "sgd": "#0072B2",
    "adagrad": "#009E73",
    "adam": "0.35",
    "ivon": "#D55E00",
    "adamw": "0.35",
    "vadam": "#CC79A7",
}
COLUMNS = 80


def curves(results: Mapping[str, Result], paper: Mapping[str, float]) -> Figure:
    """Plot test losses by epoch, one line per seed, and a grey band from the lowest to the highest published loss."""
    from matplotlib.figure import Figure

    panels = {
        "published": ("decay scaled to the epochs run", "lstm", ("vadagrad", "sgd", "adagrad", "adam")),
        "constant": ("no decay", "constant", ("vadagrad", "sgd", "adagrad", "adam")),
        "lstm": ("rates chosen on validation", "lstm", ("ivon", "adamw", "vadam")),
        "transformer": ("transformer, rates chosen on validation", "transformer", ("ivon", "adamw")),
    }
    starts = {key.rpartition("-")[0] for key in results}
    shown = [panel for panel in panels.values() if any(f"{panel[1]}-{name}" in starts for name in panel[2])]
    figure = Figure(figsize=(3.6 * len(shown) + 0.6, 4.0), layout="constrained")
    axes = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axis, (title, prefix, methods) in zip(axes, shown, strict=True):
        _lines(axis, results, prefix, methods)
        if methods[0] in paper:
            label = "published best, 200 epochs"
            axis.axhspan(min(paper.values()), max(paper.values()), color="0.8", label=label)
        axis.set_title(title if prefix == "transformer" else f"LSTM, {title}", fontsize=9.5)
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=9)
    axes[0].set_ylabel("test loss of the mean network (nats per character)")
    axes[0].set_ylim(1.2, 3.2)
    return figure


def _lines(axis: Axes, results: Mapping[str, Result], prefix: str, methods: Sequence[str]) -> None:
    end = 0.0
    for name in methods:
        label = LABELS[name]
        for key, result in results.items():
            if key.rpartition("-")[0] == f"{prefix}-{name}":
                curve = result.result["curve"]
                axis.plot(curve["epoch"], curve["test"], ".-", color=COLOURS[name], label=label, linewidth=1.4)
                label, end = "_", max(end, curve["epoch"][-1])
    axis.set_xlim(0, end * 1.03)


def passage(found: Mapping[str, Any], title: str) -> Figure:
    """Show a piece of the test text twice, coloured by the entropy and by the mutual information with the weights."""
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    text = found["text"]
    places, row, column = [], 0, 0
    for character in text:
        places.append((row, column))
        row, column = (row + 1, 0) if character == "\n" or column + 1 == COLUMNS else (row, column + 1)
    lines = 1 + max(place[0] for place in places)
    figure = Figure(figsize=(12.0, 1.3 + 0.5 * lines), layout="constrained")
    panels = {
        "entropy of the average over samples (nats)": found["samples_entropy"],
        "of it about the weights: mutual information (nats)": found["mutual_information"],
    }
    for axis, (label, values) in zip(figure.subplots(2, 1), panels.items(), strict=True):
        norm = Normalize(0.0, sorted(values)[int(0.99 * (len(values) - 1))])
        grid = [[float("nan")] * COLUMNS for _ in range(lines)]
        for (row, column), character, value in zip(places, text, values, strict=True):
            grid[row][column] = value
            shown = {"\r": "", "\n": "\u21b5"}.get(character, character)
            dark = norm(value) > 0.6
            kind = {"ha": "center", "va": "center", "family": "monospace", "fontsize": 8.5}
            axis.text(column, row, shown, color="white" if dark else "black", **kind)
        image = axis.imshow(grid, cmap="YlOrBr", norm=norm, aspect="auto", interpolation="nearest")
        axis.set_axis_off()
        figure.colorbar(image, ax=axis, pad=0.01, extend="max")
        axis.set_title(f"{title}: {label}", fontsize=10, loc="left")
    return figure
