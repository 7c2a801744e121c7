"""The published settings, the candidates for other settings, and the lengths of the trainings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PROTOCOL: Mapping[str, Any] = {"held_out": 0.1, "published_epochs": 200, "records": 2}
"""``records`` is the number of records of the curve per epoch."""

NETWORKS: Mapping[str, Mapping[str, Any]] = {
    "lstm": {
        "network": "lstm",
        "sizes": {"embedding": 64, "hidden": 128, "layers": 2},
        "batch_size": 50,
        "length": 50,
        "clamp": 5.0,
    },
    "transformer": {
        "network": "transformer",
        "sizes": {"width": 64, "heads": 4, "layers": 2, "length": 64},
        "batch_size": 32,
        "length": 64,
        "clamp": None,
    },
}
"""torch-rnn's defaults (the paper does not describe its network), and a small transformer."""

EPOCHS = {"lstm": 2, "transformer": 2}
SEARCH_EPOCHS = 0.5
SEEDS = {"published": 3, "constant": 3, "lstm": 1, "transformer": 3}
"""Numbers of seeds. ``constant`` means the published methods without decay, as in the first 40 published epochs."""
SAMPLES = (8, 32)
PASSAGE = 400

Setting = Mapping[str, Any]


def _published(method: str, decay_every: int, **options: Any) -> Setting:
    return {"method": method, "decay": "steps", "decay_every": decay_every, "options": options}


PUBLISHED: Mapping[str, Setting] = {
    "vadagrad": _published("vadagrad", 40, lr=0.0075, beta=0.5, s0=1e-4),
    "sgd": _published("sgd", 80, lr=0.5),
    "adagrad": _published("adagrad", 80, lr=0.025, beta=0.5),
    "adam": _published("adam", 40, lr=0.0012, betas=[0.9, 0.999]),
}
"""Khan et al. 2018, Table 4. The unit of VadaGrad's ``s0`` and the network are not published."""

UNITS = ("mean", "data", "sum")
"""Possible units of ``s0 = 1e-4``: the squared gradient of the mean loss with ``sigma^2 = 1 / s`` (``"mean"``) or
``sigma^2 = 1 / (N s)`` (``"data"``), or that of the loss summed over the text with ``sigma^2 = 1 / s`` (``"sum"``). The
unit is chosen by the validation loss, like a learning rate.
"""


def _chosen(method: str, *rates: float, **options: Any) -> Sequence[Setting]:
    return [{"method": method, "decay": "cosine", "options": {"lr": rate, **options}} for rate in rates]


CHOSEN: Mapping[str, Mapping[str, Sequence[Setting]]] = {
    "lstm": {
        "ivon": _chosen("ivon", 0.1, 0.3, 1.0),
        "adamw": _chosen("adamw", 0.002, 0.005, 0.01),
        "vadam": _chosen("vadam", 0.002, 0.005, 0.01),
    },
    "transformer": {
        "ivon": _chosen("ivon", 0.3, 1.0, 0.1),
        "adamw": _chosen("adamw", 0.001, 0.003, 0.01),
    },
}
"""Candidates by network and method. All other hyper-parameters have the defaults of the library."""

LABELS = {
    "vadagrad": "VadaGrad",
    "sgd": "SGD",
    "adagrad": "AdaGrad",
    "adam": "Adam",
    "ivon": "IVON",
    "adamw": "AdamW",
    "vadam": "Vadam",
}
"""Names of the methods in tables and figures."""
