"""The splits of the data sets with several targets."""

from __future__ import annotations

import torch

import bayesadam as ba
from experiments.uci_table1.protocol import Part

PLACES = 2
"""Number of Jura's first features, the coordinates. The other features are codes of land use and rock."""


def parts(dataset: str, count: int) -> list[Part]:
    """Return the first splits. "jura" is Jura's published split; "jura-random" are random 90/10 splits of its rows."""
    if dataset == "jura":
        data = ba.data.load("jura")
        return [Part.of((data.x_train[:, :PLACES], data.y_train), (data.x_test[:, :PLACES], data.y_test))]
    if dataset == "jura-random":
        data = ba.data.load("jura")
        return [_divided(data, split) for split in range(count)]
    found = []
    for split in range(count):
        data = ba.data.load(dataset, split=split)
        found.append(Part.of((data.x_train, data.y_train), (data.x_test, data.y_test)))
    return found


def _divided(data: ba.data.Dataset, seed: int) -> Part:
    order = torch.randperm(len(data.x), generator=torch.Generator().manual_seed(seed))
    train, test = order[: round(0.9 * len(order))], order[round(0.9 * len(order)) :]
    x = data.x[:, :PLACES]
    return Part.of((x[train], data.y[train]), (x[test], data.y[test]))
