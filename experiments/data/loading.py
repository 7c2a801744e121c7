"""``load``, ``names`` and ``describe``, the functions of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.data.dataset import Dataset, Standardizer
from experiments.data.files import DOWNLOADS, fetch
from experiments.data.parsers import characters
from experiments.data.registry import REGISTRY, Entry


def names() -> list[str]:
    """Names of all data sets, sorted."""
    return sorted(REGISTRY)


def describe(name: str) -> str:
    """Return task, licence, origin, splits and files of a data set as a few lines of text.

    Raises:
        ValueError: The name is unknown.
    """
    entry = _entry(name)
    return "\n".join(
        [
            f"{name}: {entry.task}",
            f"  licence: {entry.licence}",
            f"  source: {entry.source}",
            f"  split: {_rule(entry)}",
            *(f"  file: {file}, {DOWNLOADS.get_url(file)}" for file in entry.files),
        ]
    )


def load(name: str, *, split: int | None = None, standardize: bool = False) -> Dataset:
    """Load a data set, from the folder ``BAYESADAM_DATA`` or by way of a download to the user's cache.

    Args:
        name: One of ``names()``, or the absolute path of a text in UTF-8, which is read as "text/war-and-peace" is.
        split: UCI sets have 20 published splits (protein 5) of 90% and 10%, counted from 0. For "usps/3-vs-5" and the
            LIBSVM sets it is the seed of a random division in halves (the odd row is tested on), for "sarcos-test" of
            90% and 10%. None: the published training and test parts if there are any, else all rows in the training
            part.
        standardize: Whether to standardise features and regression targets to mean 0 and standard deviation 1, by the
            statistics of the training part (divisor ``n - 1``, constant columns are only centred). The scalers are in
            the result.

    Raises:
        ValueError: The name is unknown, the split is out of range, text should be standardised, or a checksum is wrong.
        FileNotFoundError: The folder lacks a file.
    """
    entry = _entry(name)
    limit = entry.splits.count if entry.splits else 0
    if split is not None and not 0 <= split < limit:
        raise ValueError(f"split must be {_rule(entry)} for {name}, got {split!r}")
    if standardize and entry.task == "text":
        raise ValueError(f"standardize must be False for {name}, got {standardize!r}")
    table = entry.parse(*map(fetch, entry.files))
    if split is not None and entry.splits:
        train, test = entry.splits.rows(len(table.x), split)
        x_train, y_train, x_test, y_test = table.x[train], table.y[train], table.x[test], table.y[test]
    else:
        cut = table.num_train if table.num_train is not None else len(table.x)
        x_train, y_train, x_test, y_test = table.x[:cut], table.y[:cut], table.x[cut:], table.y[cut:]
    x_scaler = _scaler(x_train, standardize)
    y_scaler = _scaler(y_train, standardize and entry.task == "regression")
    return Dataset(
        name=name,
        task=entry.task,
        x_train=_tensor(x_train, x_scaler),
        y_train=_tensor(y_train, y_scaler),
        x_test=_tensor(x_test, x_scaler),
        y_test=_tensor(y_test, y_scaler),
        target_names=tuple(table.targets),
        x_scaler=x_scaler,
        y_scaler=y_scaler,
        split=split,
    )


def _entry(name: str) -> Entry:
    if Path(name).is_absolute():
        return Entry("text", characters, [name], "not known", "a file of the user")
    if name not in REGISTRY:
        raise ValueError(f"name must be one of {', '.join(names())}, got {name!r}")
    return REGISTRY[name]


def _rule(entry: Entry) -> str:
    return "None" if entry.splits is None else f"None or an integer in [0, {entry.splits.count})"


def _scaler(x: NDArray[Any], wanted: bool) -> Standardizer:
    return Standardizer.fit(torch.from_numpy(x)) if wanted else Standardizer.identity()


def _tensor(x: NDArray[Any], scaler: Standardizer) -> Tensor:
    """Scale numbers in their own precision and convert them to float32; labels remain int64."""
    tensor = torch.from_numpy(x)
    return scaler.transform(tensor).float() if tensor.is_floating_point() else tensor
