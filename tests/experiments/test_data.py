"""Data sets of the experiments: counts and splits as published, known values, and files that are wrong or missing."""

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_svmlight_file

from experiments import data
from experiments.data import files, parsers, registry

pytestmark = pytest.mark.nightly

FOLDER = os.environ.get("BAYESADAM_DATA")
needs_data = pytest.mark.skipif(not FOLDER, reason="needs the environment variable BAYESADAM_DATA: a folder of data")

# name: training rows, test rows, features, targets (0: labels), names of targets or classes
COUNTS = {
    "mnist": (60000, 10000, 784, 0, 10),
    "fashion-mnist": (60000, 10000, 784, 0, 10),
    "usps": (7291, 2007, 256, 0, 10),
    "usps/3-vs-5": (1540, 0, 256, 0, 2),
    "usps/3-vs-5-smooth": (1540, 0, 256, 0, 2),
    "libsvm/australian": (690, 0, 14, 0, 2),
    "libsvm/breast-cancer": (683, 0, 10, 0, 2),
    "bandits/mushroom": (8124, 0, 117, 0, 2),
    "bandits/statlog": (43500, 14500, 9, 0, 7),
    "bandits/adult": (30162, 15060, 92, 0, 14),
    "bandits/covertype": (92962, 0, 54, 0, 7),
    "bandits/jester": (19181, 0, 40, None, 0),
    "bandits/financial": (3713, 0, 21, None, 0),
    "jura": (259, 100, 4, 7, 7),
    "sarcos-test": (4449, 0, 21, 7, 7),
}

# name: rows of each class in all parts together
CLASS_COUNTS = {
    "usps/3-vs-5": [824, 716],
    "libsvm/australian": [383, 307],
    "bandits/mushroom": [3916, 4208],
    "bandits/covertype": [33894, 45328, 5721, 439, 1519, 2779, 3282],
}
UCI = {name: Path(entry.files[0]).parts[1] for name, entry in registry.REGISTRY.items() if name.startswith("uci/")}
UCI["uci/energy-2"] = "energy"


def test_a_text_by_its_path(tmp_path):
    (tmp_path / "own.txt").write_text("abcab\n", "utf-8")
    loaded = data.load(str(tmp_path / "own.txt"))
    assert loaded.target_names == ("\n", "a", "b", "c")
    assert (loaded.x_train.tolist(), loaded.y_train.tolist()) == ([1, 2, 3, 1, 2], [2, 3, 1, 2, 0])


@needs_data
@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    train, test, features, targets, names = COUNTS[name]
    loaded = data.load(name)
    assert (loaded.x_train.shape, loaded.x_test.shape) == ((train, features), (test, features))
    assert len(loaded.target_names) == names
    assert loaded.y.shape == ((train + test,) if targets == 0 else (train + test, targets or 0))
    assert loaded.y.dtype == (torch.int64 if targets == 0 else torch.float32)
    assert torch.isfinite(loaded.x).all()
    if targets == 0:
        assert len(torch.bincount(loaded.y)) == names
    if name in CLASS_COUNTS:
        assert torch.bincount(loaded.y).tolist() == CLASS_COUNTS[name]


@needs_data
def test_text():
    loaded = data.load("text/war-and-peace")
    text = (Path(FOLDER) / "text/warpeace_input.txt").read_bytes().decode()
    assert len(loaded.target_names) == 84
    letters = np.array(loaded.target_names)
    assert "".join(letters[loaded.x_train]) + letters[loaded.y_train[-1]] == text
    assert torch.equal(loaded.x_train[1:], loaded.y_train[:-1])
    assert set(data.names()) == {*COUNTS, *UCI, loaded.name, "year", "bandits/census"}


@needs_data
def test_known_values():
    assert "usps/zip.train.gz, https://hastie.su.domains/" in data.describe("usps")
    boston, adult = data.load("uci/boston"), data.load("bandits/adult")
    row = [0.00632, 18, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3, 396.9, 4.98, 24.0]
    assert [*boston.x[0].tolist(), *boston.y[0].tolist()] == torch.tensor(row).tolist()
    assert data.load("jura").y_test[0].tolist() == pytest.approx([1.57, 8.28, 37.12, 18.6, 18.6, 38.2, 65.2])
    assert data.load("usps").y_test[:2].tolist() == [9, 6]
    assert len(data.load("libsvm/breast-cancer", split=20).x_train) == 341
    assert data.load("mnist").x[0].view(28, 28)[5, 12:16].mul(255).round().tolist() == [3, 18, 18, 18]
    assert adult.target_names[adult.y[0]] == "Adm-clerical"
    assert adult.x[0, :6].tolist() == [39, 77516, 13, 2174, 0, 40]
    assert (adult.x[:, 6:].sum(1) == 8).all()  # one value of every word


@needs_data
@pytest.mark.parametrize("name", UCI)
def test_rows_and_splits_of_uci_are_the_published_ones(name):
    if name == "uci/energy-2":
        pytest.importorskip("openpyxl", reason="openpyxl, which reads the workbook, is not installed")
    folder, loaded, splits = Path(FOLDER) / "uci" / UCI[name], data.load(name), registry.REGISTRY[name].splits
    index = {path.stem: np.loadtxt(path, ndmin=1).astype(int) for path in folder.glob("index_*.txt")}
    table = np.loadtxt(folder / "data.txt").astype(np.float32)
    np.testing.assert_array_equal(loaded.x, table[:, index["index_features"]])
    np.testing.assert_array_equal(loaded.y[:, :1], table[:, index["index_target"]])
    assert loaded.y.shape[1] == len(loaded.target_names) == (2 if name.endswith("-2") else 1)
    assert splits.count == int(float((folder / "n_splits.txt").read_text()))
    for split in range(splits.count):
        for part, ours in zip(("train", "test"), splits.rows(len(table), split), strict=True):
            np.testing.assert_array_equal(ours, index[f"index_{part}_{split}"])


@needs_data
def test_smoothed_digits_are_those_of_libsvm():
    x, y = load_svmlight_file(str(Path(FOLDER) / "usps/usps.t.bz2"), n_features=256)
    rows = np.isin(y, (4, 6))  # the labels of LIBSVM are 1 to 10
    smooth = data.load("usps/3-vs-5-smooth").x_train[-rows.sum() :]
    np.testing.assert_allclose(smooth, x[rows].toarray(), atol=0.002)


@needs_data
def test_standardised_by_training_statistics_only():
    raw, scaled = data.load("uci/naval-2", split=1), data.load("uci/naval-2", split=1, standardize=True)
    for part, scaler in (("x", scaled.x_scaler), ("y", scaled.y_scaler)):
        train, test = (getattr(raw, f"{part}_{which}").double() for which in ("train", "test"))
        std = train.std(0)
        std[train.amin(0) == train.amax(0)] = 1.0
        torch.testing.assert_close(scaler.mean, train.mean(0), rtol=1e-6, atol=0)
        torch.testing.assert_close(scaler.std, std, rtol=1e-5, atol=0)  # with the divisor n - 1: 5e-5 away from n
        expected = ((test - train.mean(0)) / std).float()
        torch.testing.assert_close(getattr(scaled, f"{part}_test"), expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(scaled.y_scaler.inverse(scaled.y_test), raw.y_test)
    assert scaled.x_scaler.std[[8, 11]].tolist() == [1.0, 1.0]  # constant columns


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("boston", {}, "name must be one of .*uci/boston"),
        ("uci/protein", {"split": 5}, r"split must be None or an integer in \[0, 5\) for uci/protein, got 5"),
        ("mnist", {"split": 0}, "split must be None for mnist, got 0"),
        ("text/war-and-peace", {"standardize": True}, "standardize must be False for text/war-and-peace"),
    ],
)
def test_wrong_arguments(name, options, message):
    with pytest.raises(ValueError, match=message):
        data.load(name, **options)


def test_files_of_a_folder_are_checked(tmp_path, monkeypatch):
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="put the file from https://raw.githubusercontent.com/.* there"):
        data.load("uci/boston")
    path = tmp_path / "uci" / "bostonHousing" / "data.txt"
    path.parent.mkdir(parents=True)
    path.write_text("1 2 3")
    with pytest.raises(ValueError, match="must have the sha256 of the published file, got"):
        data.load("uci/boston")


def test_files_without_a_checksum_must_have_the_published_shape(tmp_path, monkeypatch):
    monkeypatch.setenv(files.VARIABLE, str(tmp_path))
    with pytest.raises(FileNotFoundError, match="put the file from https://archive.ics.uci.edu/.*00203/Year"):
        data.load("year")
    path = tmp_path / "bandits" / "census" / "USCensus1990.data.txt"
    path.parent.mkdir(parents=True)
    path.write_text("caseid,dOccup,iSex\n1,0,1\n2,3,0\n3,0,0\n")
    with pytest.raises(ValueError, match=r"must have 2,458,285 rows and 69 columns, got \(3, 3\)"):
        data.load("bandits/census")
    monkeypatch.setattr(parsers, "_CENSUS", (3, 3))
    monkeypatch.setattr(parsers, "_CENSUS_ROWS", 3)
    loaded = data.load("bandits/census")
    assert (loaded.target_names, sorted(loaded.y.tolist())) == (("0", "3"), [0, 0, 1])
    assert torch.equal(loaded.x.sum(0), torch.tensor([2.0, 1.0]))
    year = tmp_path / "uci-extra" / "year" / "YearPredictionMSD.txt.zip"
    year.parent.mkdir(parents=True)
    with zipfile.ZipFile(year, "w") as archive:
        archive.writestr("YearPredictionMSD.txt", "2001,0.5,1\n1999,-1,2\n")
    monkeypatch.setattr(parsers, "_YEAR", (2, 3))
    assert data.load("year").y.tolist() == [[2001.0], [1999.0]]


@needs_data
def test_shuttle_compressed_and_not(tmp_path):
    pytest.importorskip("unlzw3", reason="unlzw3, which reads .Z files, is not installed")
    path = Path(FOLDER) / "bandits/shuttle/shuttle.trn"
    assert parsers._uncompressed(path.with_suffix(".trn.Z")) == path.read_text().splitlines()
