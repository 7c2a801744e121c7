"""Data sets: offline in a folder, counts as published; downloads are tried against a server on this machine."""

import bz2
import functools
import gzip
import hashlib
import http.server
import io
import os
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from bayesadam import data
from bayesadam.data import formats, registry, tables
from bayesadam.data.files import File, read

FOLDER = os.environ.get("BAYESADAM_DATA")
needs_data = pytest.mark.skipif(not FOLDER, reason="needs the environment variable BAYESADAM_DATA: a folder of data")

# name: training rows, test rows, features, targets (0: labels), names of targets or classes
COUNTS = {
    "uci/boston": (506, 0, 13, 1, 1),
    "uci/concrete": (1030, 0, 8, 1, 1),
    "uci/energy": (768, 0, 8, 1, 1),
    "uci/energy-2": (768, 0, 8, 2, 2),
    "uci/kin8nm": (8192, 0, 8, 1, 1),
    "uci/naval": (11934, 0, 16, 1, 1),
    "uci/naval-2": (11934, 0, 16, 2, 2),
    "uci/power": (9568, 0, 4, 1, 1),
    "uci/protein": (45730, 0, 9, 1, 1),
    "uci/wine": (1599, 0, 11, 1, 1),
    "uci/yacht": (308, 0, 6, 1, 1),
    "mnist": (60000, 10000, 784, 0, 10),
    "fashion-mnist": (60000, 10000, 784, 0, 10),
    "usps": (7291, 2007, 256, 0, 10),
    "usps/3-vs-5": (1540, 0, 256, 0, 2),
    "libsvm/usps-test": (2007, 0, 256, 0, 10),
    "libsvm/australian": (690, 0, 14, 0, 2),
    "libsvm/breast-cancer": (683, 0, 10, 0, 2),
    "bandits/mushroom": (8124, 0, 117, 0, 2),
    "bandits/statlog": (43500, 14500, 9, 0, 7),
    "bandits/adult": (30162, 15060, 92, 0, 14),
    "bandits/covertype": (92962, 0, 54, 0, 7),
    "bandits/jester": (19181, 0, 40, None, 0),
    "bandits/financial": (3713, 0, 21, None, 0),
    "bandits/census-scrap": (221, 0, 320, 0, 9),
    "jura": (259, 100, 4, 7, 7),
    "sarcos-test": (4449, 0, 21, 7, 7),
}

# name: rows of each class in all parts together
CLASS_COUNTS = {
    "fashion-mnist": [7000] * 10,
    "usps/3-vs-5": [824, 716],
    "libsvm/australian": [383, 307],
    "libsvm/breast-cancer": [444, 239],
    "bandits/mushroom": [3916, 4208],
    "bandits/covertype": [33894, 45328, 5721, 439, 1519, 2779, 3282],
}

# name: folder, splits, training rows, test rows
SPLITS = {
    "uci/boston": ("bostonHousing", 20, 455, 51),
    "uci/concrete": ("concrete", 20, 927, 103),
    "uci/energy": ("energy", 20, 691, 77),
    "uci/energy-2": ("energy", 20, 691, 77),
    "uci/kin8nm": ("kin8nm", 20, 7373, 819),
    "uci/naval": ("naval-propulsion-plant", 20, 10741, 1193),
    "uci/naval-2": ("naval-propulsion-plant", 20, 10741, 1193),
    "uci/power": ("power-plant", 20, 8611, 957),
    "uci/protein": ("protein-tertiary-structure", 5, 41157, 4573),
    "uci/wine": ("wine-quality-red", 20, 1439, 160),
    "uci/yacht": ("yacht", 20, 277, 31),
}

# name: training rows, test rows of any split
DIVIDED = {
    "usps/3-vs-5": (770, 770),
    "libsvm/usps-test": (1003, 1004),
    "libsvm/australian": (345, 345),
    "libsvm/breast-cancer": (341, 342),
    "sarcos-test": (4004, 445),
}


def one_line(error):
    return "\n" not in str(error.value)


def content(path):
    return (Path(FOLDER) / path).read_bytes()


def digest(raw):
    return hashlib.sha256(raw).hexdigest()


# Every data set, from a folder


def test_every_set_is_counted():
    assert data.names() == sorted([*COUNTS, "text/war-and-peace"])


@needs_data
@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    train, test, features, targets, names = COUNTS[name]
    loaded = data.load(name)
    assert loaded.x_train.shape == (train, features)
    assert loaded.x_test.shape == (test, features)
    assert loaded.x.shape == (train + test, features)
    assert loaded.x_train.dtype == loaded.x_test.dtype == torch.float32
    assert len(loaded.feature_names) in (0, features)
    assert len(loaded.target_names) == names
    for rows, y in ((train, loaded.y_train), (test, loaded.y_test), (train + test, loaded.y)):
        assert y.shape == ((rows,) if targets == 0 else (rows, targets or 0))
        assert y.dtype == (torch.int64 if targets == 0 else torch.float32)
    if targets == 0:
        assert loaded.y.min() >= 0
        assert loaded.y.max() < names
    assert torch.isfinite(loaded.x).all()
    assert torch.isfinite(loaded.y).all()


@needs_data
@pytest.mark.parametrize("name", CLASS_COUNTS)
def test_class_counts(name):
    assert torch.bincount(data.load(name).y).tolist() == CLASS_COUNTS[name]


@needs_data
def test_shuttle_class_counts():
    assert torch.bincount(data.load("bandits/statlog").y_train).tolist() == [34108, 37, 132, 6748, 2458, 6, 11]


@needs_data
def test_text():
    loaded = data.load("text/war-and-peace")
    raw = content("text/warpeace_input.txt")
    text = raw.decode("utf-8")
    assert (len(raw), len(set(raw)), len(set(text))) == (3_258_246, 87, 84)
    assert len(loaded.target_names) == 84
    assert "".join(loaded.target_names[i] for i in loaded.x_train[:1000]) == text[:1000]
    assert "".join(loaded.target_names[i] for i in loaded.y_train[-1000:]) == text[-1000:]
    assert loaded.x_train.shape == loaded.y_train.shape == (len(text) - 1,)
    assert torch.equal(loaded.x_train[1:], loaded.y_train[:-1])
    loaded.x_train[1] = -1
    assert loaded.y_train[0] >= 0


@needs_data
def test_adult_has_all_rows_before_unknown_values_are_dropped():
    for path, rows, junk in (("adult.data", 32561, 0), ("adult.test", 16281, 1)):
        assert len(formats.lines(content(f"bandits/adult/{path}"))) == rows + junk
    assert not [name for name in data.load("bandits/adult").feature_names if name.endswith((".", "?"))]


@needs_data
def test_values_of_known_rows():
    boston = data.load("uci/boston")
    assert (
        boston.x_train[0].tolist()
        == torch.tensor([0.00632, 18, 2.31, 0, 0.538, 6.575, 65.2, 4.09, 1, 296, 15.3, 396.9, 4.98]).tolist()
    )
    assert boston.y_train[:2].tolist() == [[24.0], pytest.approx([21.6])]
    jura = data.load("jura")
    assert jura.x_train[0].tolist() == pytest.approx([2.386, 3.077, 3, 3])
    assert jura.y_test[0].tolist() == pytest.approx([1.57, 8.28, 37.12, 18.6, 18.6, 38.2, 65.2])
    usps = data.load("usps")
    assert usps.y_train[:2].tolist() == [6, 5]
    assert usps.y_test[:2].tolist() == [9, 6]
    naval = data.load("uci/naval-2")
    assert naval.y_train.amin(0).tolist() == pytest.approx([0.95, 0.975])
    assert data.load("libsvm/usps-test").y_train[0] == 9
    adult = data.load("bandits/adult")
    assert adult.target_names[adult.y_train[0]] == "Adm-clerical"
    assert {adult.feature_names[i] for i in adult.x_train[0, 6:].nonzero().flatten() + 6} == {
        "workclass=State-gov",
        "education=Bachelors",
        "marital-status=Never-married",
        "relationship=Not-in-family",
        "race=White",
        "sex=Male",
        "native-country=United-States",
        "income=<=50K",
    }


@needs_data
def test_images_are_scaled_to_the_unit_interval():
    mnist = data.load("mnist")
    assert mnist.x_train.min() == 0
    assert mnist.x_train.max() == 1
    assert mnist.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    assert mnist.x_train[0].reshape(28, 28)[5, 12:16].mul(255).round().tolist() == [3, 18, 18, 18]


@needs_data
def test_3_vs_5_takes_the_real_digits():
    usps, pair = data.load("usps"), data.load("usps/3-vs-5")
    assert torch.equal(pair.x_train[pair.y_train == 0], usps.x[usps.y == 3])
    assert torch.equal(pair.x_train[pair.y_train == 1], usps.x[usps.y == 5])


# Files that can stand for each other


@needs_data
@pytest.mark.parametrize(
    "name", [name for name, entry in registry.REGISTRY.items() if any(len(choices) > 1 for choices in entry.files)]
)
def test_publishers_format_and_the_derived_file_give_the_same_table(name):
    entry = registry.REGISTRY[name]
    first, last = (entry.parse(*(read([choices[i]]) for choices in entry.files)) for i in (0, -1))
    assert entry.files[0][-1].url
    np.testing.assert_array_equal(first.x, last.x)
    np.testing.assert_array_equal(first.y, last.y)


@needs_data
def test_unix_compress():
    assert formats.unpack(content("bandits/shuttle/shuttle.trn.Z")) == content("bandits/shuttle/shuttle.trn")


@needs_data
def test_energy_has_the_rows_of_the_single_target_set():
    one, two = data.load("uci/energy", split=7), data.load("uci/energy-2", split=7)
    assert torch.equal(one.x_train, two.x_train)
    assert torch.equal(one.y_test[:, 0], two.y_test[:, 0])


@needs_data
def test_matlab_reader_agrees_with_scipy():
    scipy_io = pytest.importorskip("scipy.io", reason="the reference reader is scipy's")
    raw = content("sarcos/sarcos_inv_test.mat")
    np.testing.assert_array_equal(formats.mat5(raw), scipy_io.loadmat(io.BytesIO(raw))["sarcos_inv_test"])


# Splits


@needs_data
@pytest.mark.parametrize("name", SPLITS)
def test_uci_splits_are_the_published_ones(name):
    folder, count, num_train, num_test = SPLITS[name]
    published = Path(FOLDER) / "uci" / folder
    splits = registry.REGISTRY[name].splits
    assert splits.count == count == int(float((published / "n_splits.txt").read_text()))
    for split in range(count):
        parts = [np.loadtxt(published / f"index_{part}_{split}.txt").astype(int) for part in ("train", "test")]
        assert [len(part) for part in parts] == [num_train, num_test]
        for ours, theirs in zip(splits.rows(num_train + num_test, split), parts, strict=True):
            np.testing.assert_array_equal(ours, theirs)


@needs_data
@pytest.mark.parametrize("name", [name for name in SPLITS if name not in ("uci/energy-2", "uci/naval-2")])
def test_uci_columns_and_rows_of_a_split(name):
    published = Path(FOLDER) / "uci" / SPLITS[name][0]
    features, target = (np.loadtxt(published / f"index_{part}.txt", ndmin=1) for part in ("features", "target"))
    table = np.loadtxt(published / "data.txt")
    rows = np.loadtxt(published / "index_test_3.txt").astype(int)
    loaded = data.load(name, split=3)
    np.testing.assert_array_equal(loaded.x_test, table[rows][:, features.astype(int)].astype(np.float32))
    np.testing.assert_array_equal(loaded.y_test, table[rows][:, target.astype(int)].astype(np.float32))
    assert loaded.split == 3


@needs_data
@pytest.mark.parametrize(("name", "split"), [*((name, 2) for name in SPLITS), *((name, 20) for name in DIVIDED)])
def test_a_split_partitions_the_rows(name, split):
    whole, parts = data.load(name), data.load(name, split=split)
    assert (len(parts.x_train), len(parts.x_test)) == (SPLITS[name][2:] if name in SPLITS else DIVIDED[name])

    def rows(loaded):
        table = np.column_stack([loaded.x, loaded.y])
        return table[np.lexsort(table.T)]

    np.testing.assert_array_equal(rows(parts), rows(whole))


@needs_data
def test_seeded_splits_are_reproducible_and_differ():
    first, again, other = (data.load("libsvm/australian", split=split).x_train for split in (1, np.int64(1), 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("split", [-1, 20, 0.0, "3", True])
def test_split_out_of_range(split):
    with pytest.raises(ValueError, match=r"split must be None or an integer in \[0, 20\) for uci/boston, got") as error:
        data.load("uci/boston", split=split)
    assert one_line(error)


def test_protein_has_five_splits():
    with pytest.raises(ValueError, match=r"split must be None or an integer in \[0, 5\) for uci/protein, got 5"):
        data.load("uci/protein", split=5)


@pytest.mark.parametrize("name", ["mnist", "usps", "bandits/jester", "text/war-and-peace"])
def test_no_split_where_none_is_defined(name):
    with pytest.raises(ValueError, match=f"split must be None for {name}, got 0"):
        data.load(name, split=0)


# Standardisation


@needs_data
@pytest.mark.parametrize("name", ["uci/boston", "uci/naval-2", "jura"])
def test_standardised_by_training_statistics_only(name):
    split = 1 if name in SPLITS else None
    raw, scaled = data.load(name, split=split), data.load(name, split=split, standardize=True)
    for part, scaler in (("x", scaled.x_scaler), ("y", scaled.y_scaler)):
        train = getattr(raw, f"{part}_train").double().numpy()
        for column in range(train.shape[1]):
            mean = sum(train[:, column]) / len(train)
            std = (sum((value - mean) ** 2 for value in train[:, column]) / (len(train) - 1)) ** 0.5
            if len(set(train[:, column])) == 1:
                std = 1.0
            assert scaler.mean[column].item() == pytest.approx(mean, rel=1e-6)
            assert scaler.std[column].item() == pytest.approx(std, rel=1e-4)
            test = (getattr(raw, f"{part}_test")[:, column].double() - mean) / std
            torch.testing.assert_close(getattr(scaled, f"{part}_test")[:, column].double(), test, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(
            getattr(scaled, f"{part}_train").mean(0), torch.zeros(train.shape[1]), rtol=0, atol=1e-5
        )


@needs_data
def test_constant_columns_are_only_centred():
    naval = data.load("uci/naval", split=0, standardize=True)
    assert naval.x_scaler.std[[8, 11]].tolist() == [1.0, 1.0]
    assert naval.x_train[:, [8, 11]].abs().max() < 1e-12
    assert naval.x_train.std(0)[[i for i in range(16) if i not in (8, 11)]].sub(1).abs().max() < 1e-4


@needs_data
def test_labels_are_not_standardised():
    australian = data.load("libsvm/australian", split=1, standardize=True)
    assert set(australian.y_train.tolist()) == {0, 1}
    assert torch.equal(australian.y_scaler.inverse(torch.ones(3)), torch.ones(3))


def test_scaler_of_rounded_constants_and_of_one_row():
    column = torch.full((1000, 1), 0.998, dtype=torch.float64)
    assert data.Standardizer.fit(column).std.item() == 1.0
    assert data.Standardizer.fit(torch.ones(1, 2)).std.tolist() == [1.0, 1.0]
    with pytest.raises(ValueError, match=r"x must have at least one row, got shape \(0, 2\)"):
        data.Standardizer.fit(torch.ones(0, 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scaler_inverse(dtype):
    x = torch.tensor([[1.0, -200.0], [2.0, 100.0], [4.0, 0.0]], dtype=dtype)
    scaler = data.Standardizer.fit(x)
    assert scaler.std.tolist() == pytest.approx([(7 / 3) ** 0.5, (210000 / 9) ** 0.5])
    assert scaler.transform(x).dtype == scaler.inverse(x).dtype == dtype
    torch.testing.assert_close(scaler.inverse(scaler.transform(x)), x)
    identity = data.Standardizer.identity()
    assert torch.equal(identity.inverse(identity.transform(x)), x)


def test_text_is_not_standardised():
    with pytest.raises(ValueError, match=r"standardize must be False for text/war-and-peace, got True"):
        data.load("text/war-and-peace", standardize=True)


# Names


@pytest.mark.parametrize(
    ("name", "close"), [("uci/bostn", "uci/boston"), ("boston", "uci/boston"), ("MNIST", None), ("mnits", "mnist")]
)
def test_unknown_name_suggests_close_ones(name, close):
    with pytest.raises(ValueError, match=rf"name must be one of bayesadam.data.names\(\), got '{name}'") as error:
        data.load(name)
    assert one_line(error)
    assert close is None or f"did you mean '{close}'" in str(error.value)


@pytest.mark.parametrize("alias", registry.ALIASES)
def test_alias_names_a_set(alias):
    assert data.describe(alias) == data.describe(registry.ALIASES[alias])


@needs_data
def test_load_by_folder_name():
    assert data.load("uci/bostonHousing").name == "uci/boston"


@pytest.mark.parametrize("name", registry.REGISTRY)
def test_describe(name):
    text = data.describe(name)
    entry = registry.REGISTRY[name]
    assert text.startswith(f"{name}: {entry.task}")
    assert entry.licence in text
    assert entry.source in text
    for choices in entry.files:
        assert any(file.url for file in choices)
        for file in choices:
            assert file.path in text
            assert file.url is None or file.url.endswith(Path(file.path).name)
            assert all(len(bytes.fromhex(sha256)) == 32 for sha256 in file.sha256)


@needs_data
def test_repr_has_shapes_not_numbers():
    assert repr(data.load("uci/yacht", split=0)) == (
        "Dataset('uci/yacht', regression, split=0, x_train=(277, 6), y_train=(277, 1), x_test=(31, 6), y_test=(31, 1))"
    )


# Publishers' formats, in small


def test_packed_files():
    raw = b"1 2\n3 4\n"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as handle:
        handle.writestr("data.csv", raw)
    for packed in (raw, gzip.compress(raw), bz2.compress(raw), archive.getvalue()):
        assert formats.unpack(packed) == raw


def test_uncompress_a_code_that_is_not_yet_in_the_table():
    codes = [ord("a"), 257, 258, ord("b")]
    packed = sum(code << 9 * i for i, code in enumerate(codes)).to_bytes(5, "little")
    assert formats.unpack(b"\x1f\x9d\x90" + packed) == b"aaaaaab"


def test_libsvm_text_with_empty_lines_and_missing_indices():
    rows = formats.lines(b"-1 1:0.5 3:-2 \r\n\r\n+1 2:1e-1\r\n")
    x, y = formats.libsvm(rows, 3)
    assert x.tolist() == [[0.5, 0, -2], [0, 0.1, 0]]
    assert y.tolist() == [-1, 1]


def test_adult_junk_line_full_stops_and_unknown_values():
    train = b"39, Private, Sales, <=50K\n50, ?, Sales, >50K\n20, State-gov, Tech, >50K\n\n"
    test = b"|1x3 Cross validator\n25, Private, Tech, <=50K.\n"
    table = tables.adult(
        train, test, columns=["age", "work", "occupation", "income"], numeric=["age"], label="occupation"
    )
    assert table.features == ("age", "work=Private", "work=State-gov", "income=<=50K", "income=>50K")
    assert table.x.tolist() == [[39, 1, 0, 1, 0], [20, 0, 1, 0, 1], [25, 1, 0, 1, 0]]
    assert (table.y.tolist(), table.targets, table.num_train) == ([0, 1, 1], ("Sales", "Tech"), 2)


def test_text_counts_the_byte_order_mark_and_carriage_returns():
    table = tables.characters("\ufeffab\r\né".encode())
    assert table.targets == ("\n", "\r", "a", "b", "é", "\ufeff")
    assert table.x.tolist() == [5, 2, 3, 1, 0]
    assert table.y.tolist() == [2, 3, 1, 0, 4]


# Missing and damaged files


def test_folder_must_exist(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESADAM_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(FileNotFoundError, match=r"BAYESADAM_DATA\) must be an existing folder, got .*nowhere") as error:
        data.load("mnist")
    assert one_line(error)


def test_missing_file_says_what_to_do(tmp_path):
    message = r"yacht/data.txt must exist: put the file from https://\S+ there, or unset BAYESADAM_DATA"
    with pytest.raises(FileNotFoundError, match=message) as error:
        data.load("uci/yacht", root=tmp_path)
    assert one_line(error)


def test_missing_file_without_an_address(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"a.txt must exist: the file has no public address, so copy it"
    ) as error:
        read([File("a.txt", ("0" * 64,))], tmp_path)
    assert one_line(error)


@needs_data
def test_wrong_checksum(tmp_path):
    path = tmp_path / "uci/yacht/data.txt"
    path.parent.mkdir(parents=True)
    path.write_bytes(content("uci/yacht/data.txt"))
    assert len(data.load("uci/yacht", root=tmp_path).x) == 308
    path.write_bytes(path.read_bytes().replace(b"-2.3", b"-2.4", 1))
    message = r"yacht/data.txt must have sha256 00dfecc0\w+, got \w{64}: replace it by the file from https://\S+$"
    with pytest.raises(ValueError, match=message) as error:
        data.load("uci/yacht", root=tmp_path)
    assert one_line(error)


def test_a_second_digest_is_accepted_in_a_folder(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"repacked")
    assert read([File("a.txt", ("0" * 64, digest(b"repacked")))], tmp_path) == b"repacked"


def test_argument_goes_before_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("BAYESADAM_DATA", str(tmp_path / "nowhere"))
    (tmp_path / "a.txt").write_bytes(b"a")
    assert read([File("a.txt", (digest(b"a"),))], tmp_path) == b"a"


# Downloads


def test_without_pooch(monkeypatch):
    monkeypatch.delenv("BAYESADAM_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "bayesadam\[data\]", or set BAYESADAM_DATA') as error:
        data.load("mnist")
    assert one_line(error)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    requests: list[str] = []  # noqa: RUF012

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.requests.append(self.path)
        super().do_GET()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder, the address that serves it, the requests made, and the (empty) cache."""
    pooch = pytest.importorskip("pooch", reason="downloads need the extra bayesadam[data]")
    pooch.get_logger().setLevel("WARNING")
    monkeypatch.delenv("BAYESADAM_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(pooch, "os_cache", lambda name: tmp_path / "cache" / name)
    monkeypatch.setattr(_Quiet, "requests", [])
    public = tmp_path / "public"
    public.mkdir()
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(public)))
    thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
    thread.start()
    yield public, f"http://127.0.0.1:{httpd.server_port}", _Quiet.requests, tmp_path / "cache" / "bayesadam"
    httpd.shutdown()
    thread.join()
    httpd.server_close()


def test_download_once_then_from_the_cache(server, monkeypatch):
    public, url, requests, cache = server
    raw = b"".join(b"%d 2 3 4 5 6 0.5\n" % i for i in range(10))
    (public / "data.txt").write_bytes(raw)
    entry = registry.REGISTRY["uci/yacht"]
    files = [[File("uci/yacht/data.txt", (digest(raw),), f"{url}/data.txt")]]
    monkeypatch.setitem(registry.REGISTRY, "uci/yacht", replace(entry, files=files))
    for _ in range(2):
        loaded = data.load("uci/yacht", split=4)
        assert (loaded.x_train.shape, loaded.y_test.tolist()) == ((9, 6), [[0.5]])
    assert requests == ["/data.txt"]
    assert (cache / "uci/yacht/data.txt").read_bytes() == raw
    (cache / "uci/yacht/data.txt").write_bytes(raw[:-1])
    with pytest.raises(ValueError, match=r"cache/\S+ must have sha256 \w+, got \w+: replace it by the file from http"):
        data.load("uci/yacht")


def test_download_takes_the_first_file_with_an_address(server):
    public, url, requests, _ = server
    (public / "b.txt").write_bytes(b"b")
    choices = [File("a.txt", (digest(b"a"),)), File("b.txt", (digest(b"b"),), f"{url}/b.txt")]
    assert read(choices) == b"b"
    assert requests == ["/b.txt"]


def test_a_download_with_wrong_bytes_leaves_nothing_behind(server):
    public, url, _, cache = server
    (public / "a.txt").write_bytes(b"tampered")
    file = File("some/a.txt", (digest(b"published"), digest(b"tampered")), f"{url}/a.txt")
    with pytest.raises(
        ValueError, match=r"a.txt must have sha256 \w{64}, got other bytes: try again, or download it"
    ) as error:
        read([file])
    assert one_line(error)
    assert not [path for path in cache.rglob("*") if path.is_file()]


def test_an_address_that_fails(server):
    _, url, _, cache = server
    file = File("some/a.txt", (digest(b"a"),), f"{url}/a.txt")
    with pytest.raises(
        OSError, match=r"a.txt must be reachable, got 404 .*: download it yourself and put it at"
    ) as error:
        read([file])
    assert one_line(error)
    error.value.__cause__.response.close()  # pooch leaves its connection open
    assert not [path for path in cache.rglob("*") if path.is_file()]
