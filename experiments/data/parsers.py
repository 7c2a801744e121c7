"""Conversion of the files of each data set to a table, with codes of classes."""

from __future__ import annotations

import gzip
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.ndimage import gaussian_filter
from sklearn.datasets import load_svmlight_file

Floats = NDArray[np.float64]

_COVERTYPE_LOW = np.array([1859, 0, 0, 0, -173, 0, 0, 0, 0, 0])
_COVERTYPE_HIGH = np.array([3858, 360, 66, 1397, 601, 7117, 254, 254, 254, 7173])
_ADULT = (
    "age workclass fnlwgt education education-num marital-status occupation relationship race sex capital-gain "
    "capital-loss hours-per-week native-country income"
).split()
_ADULT_NUMBERS = "age fnlwgt education-num capital-gain capital-loss hours-per-week".split()
_NO_RATING, _NUM_JOKES = 99, 40
_YEAR, _CENSUS = (515_345, 91), (2_458_285, 69)
"""Published numbers of rows and columns of files without a known checksum."""
_CENSUS_ROWS = 100_000


@dataclass(frozen=True)
class Table:
    """All rows of a data set, the published training part first.

    Attributes:
        x: Features; see ``Dataset`` for shapes.
        y: Targets, or labels from 0.
        targets: Names of the columns of ``y``, or of the classes.
        num_train: Rows of the published training part; ``None`` if there is no such part.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    targets: Sequence[str] = ()
    num_train: int | None = None


def regression(path: Path, *, features: int, targets: Sequence[str]) -> Table:
    """Numbers split at white space: features, then targets; further columns are left out."""
    return _regression([np.loadtxt(path)], features, targets)


def energy(path: Path, *, features: int, targets: Sequence[str]) -> Table:
    """The publisher's workbook, rounded to the two decimals of uci/energy; it has empty rows and columns."""
    sheet = pd.read_excel(path).dropna(how="all").dropna(how="all", axis=1)
    return _regression([np.ascontiguousarray(sheet, dtype=float).round(2)], features, targets)


def jura(*paths: Path, features: int, targets: Sequence[str]) -> Table:
    """Comma-separated with a header and row names: prediction set (trained on), then validation set."""
    parts = [np.loadtxt(path, delimiter=",", skiprows=1)[:, 1:] for path in paths]
    return _regression(parts, features, targets)


def sarcos(path: Path, *, features: int, targets: Sequence[str]) -> Table:
    """A MATLAB matrix."""
    return _regression([loadmat(path)["sarcos_inv_test"]], features, targets)


def year(path: Path, *, num_train: int) -> Table:
    """Comma-separated numbers in an archive, the year first: published training, then test part."""
    data = _complete(pd.read_csv(path, header=None), path, _YEAR).to_numpy(float, copy=True)
    return Table(data[:, 1:], data[:, :1], ["year"], num_train)


def census(path: Path) -> Table:
    """Codes with a header, of which a random sample of rows is kept; the occupation is the class."""
    data = _complete(pd.read_csv(path, dtype="int64"), path, _CENSUS).sample(_CENSUS_ROWS, random_state=0)
    classes, y = np.unique(data.pop("dOccup").to_numpy(), return_inverse=True)
    return Table(_one_hot(data.drop(columns="caseid").astype(str)), y.astype(np.int64), list(map(str, classes)))


def _complete(data: pd.DataFrame, path: Path, shape: tuple[int, int]) -> pd.DataFrame:
    if data.shape != shape:
        raise ValueError(f"{path} must have {shape[0]:,} rows and {shape[1]} columns, got {data.shape}")
    return data


def _regression(parts: Sequence[Floats], features: int, targets: Sequence[str]) -> Table:
    data = np.concatenate(parts)
    num_train = len(parts[0]) if len(parts) > 1 else None
    return Table(data[:, :features], data[:, features : features + len(targets)], targets, num_train)


def images(*paths: Path, classes: Sequence[str]) -> Table:
    """Training images and labels, test images and labels, in IDX format: pixels scaled to [0, 1], flattened."""
    train, train_labels, test, test_labels = map(_idx, paths)
    pixels = np.concatenate([train, test]).reshape(len(train) + len(test), -1)
    y = np.concatenate([train_labels, test_labels]).astype(np.int64)
    return Table(np.divide(pixels, 255, dtype=np.float32), y, classes, len(train))


def _idx(path: Path) -> NDArray[np.uint8]:
    """An array of bytes in its own shape."""
    content = gzip.decompress(path.read_bytes())
    num_axes = content[3]
    shape = struct.unpack_from(f">{num_axes}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * num_axes).reshape(shape)


def usps(*paths: Path) -> Table:
    """Training and test digits: the digit, then 256 grey values in [-1, 1]."""
    parts = [np.loadtxt(path) for path in paths]
    data = np.concatenate(parts)
    return Table(data[:, 1:], data[:, 0].astype(np.int64), list("0123456789"), len(parts[0]))


def usps_3_vs_5(*paths: Path) -> Table:
    """All 3s (label 0) and 5s (label 1) of the training, then of the test digits."""
    table = usps(*paths)
    rows = (table.y == 3) | (table.y == 5)
    return Table(table.x[rows], (table.y[rows] == 5).astype(np.int64), ["3", "5"])


def usps_3_vs_5_smooth(*paths: Path) -> Table:
    """The 3s and 5s, smoothed by a Gaussian with a standard deviation of 0.75 pixels, as in LIBSVM's USPS files."""
    table = usps_3_vs_5(*paths)
    images = table.x.reshape(-1, 16, 16)
    smooth = gaussian_filter(images, sigma=0.75, radius=2, axes=(1, 2), mode="constant", cval=-1.0)
    return Table(smooth.reshape(table.x.shape), table.y, table.targets)


def signs(path: Path, *, features: int, classes: Sequence[str]) -> Table:
    """LIBSVM text with labels -1 (to 0) and +1 (to 1)."""
    x, y = load_svmlight_file(str(path), n_features=features)
    return Table(x.toarray(), (y.astype(np.int64) + 1) // 2, classes)


def mushroom(path: Path) -> Table:
    """One-hot letters, ``?`` being one of them; label 1 is edible."""
    data = pd.read_csv(path, header=None, dtype=str)
    return Table(_one_hot(data.drop(columns=0)), (data[0] == "e").to_numpy(np.int64), ["poisonous", "edible"])


def shuttle(*paths: Path, classes: Sequence[str]) -> Table:
    """Numbers split at white space, the class (from 1) last: training, then test part."""
    parts = [np.loadtxt(_uncompressed(path)) for path in paths]
    data = np.concatenate(parts)
    return Table(data[:, :-1], data[:, -1].astype(np.int64) - 1, classes, len(parts[0]))


def _uncompressed(path: Path) -> list[str]:
    """Lines of a text, which may be in the format of Unix ``compress``."""
    if path.suffix != ".Z":
        return path.read_text().splitlines()
    try:
        from unlzw3 import unlzw  # type: ignore[import-not-found,unused-ignore]
    except ModuleNotFoundError:
        raise ModuleNotFoundError(
            f"unlzw3 must be installed to read {path}: pip install unlzw3, or run `uncompress` in a folder with all "
            "files that BAYESADAM_DATA names"
        ) from None
    text: bytes = unlzw(path.read_bytes())
    return text.decode().splitlines()


def covertype(path: Path, *, classes: Sequence[str]) -> Table:
    """UCI's integers; the first ten columns of the file are scaled to [0, 1], which is undone here."""
    data = np.loadtxt(path, delimiter=",", skiprows=1)
    data[:, :10] = np.round(_COVERTYPE_LOW + data[:, :10] * (_COVERTYPE_HIGH - _COVERTYPE_LOW))
    return Table(data[:, :-1], data[:, -1].astype(np.int64) - 1, classes)


def adult(*paths: Path) -> Table:
    """Rows with an unknown value are dropped; words become one-hot, the occupation is the class.

    The test part starts with a line that is no row and ends each income with a full stop.
    """
    read = {"names": _ADULT, "skipinitialspace": True, "comment": "|", "na_values": "?"}
    parts = [pd.read_csv(path, **read).dropna() for path in paths]
    data = pd.concat(parts, ignore_index=True)
    data["income"] = data["income"].str.rstrip(".")
    classes, y = np.unique(data.pop("occupation").to_numpy(str), return_inverse=True)
    x = np.concatenate([data[_ADULT_NUMBERS].to_numpy(float), _one_hot(data.drop(columns=_ADULT_NUMBERS))], axis=1)
    return Table(x, y.astype(np.int64), classes.tolist(), len(parts[0]))


def _one_hot(words: pd.DataFrame) -> Floats:
    """Indicators of every value of every column, values sorted."""
    indicators: Floats = pd.get_dummies(words, dtype=float).to_numpy(copy=True)
    return indicators


def jester(path: Path) -> Table:
    """Ratings in [-10, 10] of the 40 most rated jokes, in joke order, by the users who rated all of them."""
    with zipfile.ZipFile(path) as archive, archive.open("jester-data-1.csv") as file:
        ratings = np.loadtxt(file, delimiter=",")[:, 1:]
    counts = (ratings != _NO_RATING).sum(axis=0)
    jokes = np.sort(np.argsort(-counts, kind="stable")[:_NUM_JOKES])
    ratings = ratings[:, jokes][(ratings[:, jokes] != _NO_RATING).all(axis=1)]
    return Table(ratings, np.empty((len(ratings), 0)))


def financial(path: Path) -> Table:
    """Daily price differences of 21 stocks, whose names are the header."""
    x = np.loadtxt(path, skiprows=1)
    return Table(x, np.empty((len(x), 0)))


def characters(path: Path) -> Table:
    """Codes of all characters but the last, and of their successors; the byte order mark and CR count as characters."""
    points = np.frombuffer(path.read_bytes().decode("utf-8").encode("utf-32-le"), "<u4")
    alphabet = np.flatnonzero(np.bincount(points))
    codes = np.searchsorted(alphabet, points)
    return Table(codes[:-1], codes[1:].copy(), list(map(chr, alphabet)))
