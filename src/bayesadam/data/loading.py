"""``load``, ``names`` and ``describe``, the public functions of this package."""

from __future__ import annotations

import difflib
import os
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bayesadam.data.dataset import Dataset, Standardizer
from bayesadam.data.files import read
from bayesadam.data.registry import REGISTRY, Entry


def names() -> list[str]:
    """Names of all data sets, sorted."""
    return sorted(REGISTRY)


def describe(name: str) -> str:
    """Return task, licence, origin, splits and files of a data set as a few lines of text.

    Raises:
        ValueError: The name is unknown.
    """
    entry = _find(name)
    return "\n".join(
        [
            f"{name}: {entry.task}",
            f"  licence: {entry.licence}",
            f"  source: {entry.source}",
            f"  split: {_rule(entry)}",
            *(f"  file: {file.path}, {file.url}" for file in entry.files),
        ]
    )


def load(
    name: str, *, split: int | None = None, standardize: bool = False, root: str | os.PathLike[str] | None = None
) -> Dataset:
    """Load a data set, from a folder or by way of a download to the user's cache.

    Args:
        name: One of ``names()``.
        split: UCI sets have 20 published splits (protein 5) of 90% and 10%, counted from 0. For "usps/3-vs-5" and the
            LIBSVM sets it is the seed of a random division in halves (the odd row is tested on), for "sarcos-test" of
            90% and 10%. None: the published training and test parts if there are any, else all rows in the training
            part.
        standardize: Whether to standardise features and regression targets to mean 0 and standard deviation 1, by the
            statistics of the training part (divisor ``n - 1``, constant columns are only centred). The scalers are in
            the result.
        root: Folder with the files; default the environment variable ``BAYESADAM_DATA``; without it, files are
            downloaded once to the user's cache (needs ``bayesadam[data]``).

    Raises:
        ValueError: The name is unknown, the split is out of range, text should be standardised, or a checksum is wrong.
        FileNotFoundError: The folder lacks a file.
        ModuleNotFoundError: A download is needed and pooch is not installed.
        OSError: The download failed.
    """
    entry = _find(name)
    limit = entry.splits.count if entry.splits else 0
    if split is not None and not (_is_integer(split) and 0 <= split < limit):
        raise ValueError(f"split must be {_rule(entry)} for {name}, got {split!r}")
    if standardize and entry.task == "text":
        raise ValueError(f"standardize must be False for {name}, got {standardize!r}")
    table = entry.parse(*(read(file, root) for file in entry.files))
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
        feature_names=table.features,
        target_names=table.targets,
        x_scaler=x_scaler,
        y_scaler=y_scaler,
        split=split,
        licence=entry.licence,
        source=entry.source,
    )


def _find(name: str) -> Entry:
    if name not in REGISTRY:
        close = difflib.get_close_matches(str(name), REGISTRY, n=3, cutoff=0.5)
        hint = f", did you mean {' or '.join(map(repr, close))}?" if close else ""
        raise ValueError(f"name must be one of bayesadam.data.names(), got {name!r}{hint}")
    return REGISTRY[name]


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _rule(entry: Entry) -> str:
    if entry.splits is None:
        return "None"
    return f"None or an integer in [0, {entry.splits.count})"


def _scaler(x: NDArray[Any], wanted: bool) -> Standardizer:
    return Standardizer.fit(torch.from_numpy(x)) if wanted else Standardizer.identity()


def _tensor(x: NDArray[Any], scaler: Standardizer) -> Tensor:
    """Scale numbers in their own precision and convert them to float32; labels remain int64."""
    tensor = torch.from_numpy(x)
    return scaler.transform(tensor).float() if tensor.is_floating_point() else tensor
