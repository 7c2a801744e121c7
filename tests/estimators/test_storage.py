import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from bayesadam.files import DamagedFile, write_json
from bayesadam.sklearn import METHODS, BayesianMLPClassifier, BayesianMLPRegressor, load_estimator

VERSION_1 = Path(__file__).parent / "version_1"
TINY = {"members": 3, "hidden": (6, 4), "epochs": 5, "mc_samples": 4, "random_state": 0}


@pytest.mark.parametrize("method", METHODS)
def test_what_is_read_predicts_the_same(method, curve, blobs, tmp_path):
    x, y = pd.DataFrame(curve[0], columns=["a", "b"]), curve[1]
    regressor = BayesianMLPRegressor(method, **TINY).fit(x, y)
    regressor.save(tmp_path / "regressor")
    read = load_estimator(tmp_path / "regressor")
    for ours, theirs in zip(read.predict(x, True), regressor.predict(x, True), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert read.feature_names_in_.tolist() == ["a", "b"]
    assert read.get_params() == regressor.get_params()
    classifier = BayesianMLPClassifier(method, **TINY).fit(*blobs)
    classifier.save(tmp_path / "classifier")
    read = load_estimator(tmp_path / "classifier")
    np.testing.assert_array_equal(read.predict_proba(blobs[0]), classifier.predict_proba(blobs[0]))
    np.testing.assert_array_equal(read.classes_, classifier.classes_)
    assert {path.name for path in (tmp_path / "classifier").iterdir()} == {"posterior.safetensors", "model.json"}


@pytest.mark.parametrize("labels", [[1, 2], [True, False], [0.5, 1.5], ["yes", "no"]])
def test_labels_keep_their_type(labels, blobs, tmp_path):
    x = blobs[0]
    y = np.array(labels)[np.arange(150) % 2]
    if y.dtype == float:
        y = y.astype(object).astype(str)
    model = BayesianMLPClassifier("ensemble", **TINY).fit(x, y)
    model.save(tmp_path)
    assert load_estimator(tmp_path).predict(x).dtype == model.predict(x).dtype


def test_several_targets_noise_and_cross_intervals(curve, tmp_path):
    x, y = curve
    loud = y + np.abs(x[:, 0]) * 300.0 * np.random.default_rng(0).standard_normal(len(y))
    both = np.stack([loud, -y], 1)
    model = BayesianMLPRegressor(noise="input", **{**TINY, "lr": 0.1, "epochs": 60}).fit(x, both)
    assert "input" in model.noise_
    model.save(tmp_path)
    read = load_estimator(tmp_path)
    assert read.noise_ == model.noise_
    np.testing.assert_allclose(read.predict(3.0 * x, True), model.predict(3.0 * x, True), rtol=1e-6)
    for method in ("bayes", "cross"):
        intervals = [one.predict_interval(x, 0.9, method=method) for one in (read, model)]
        np.testing.assert_allclose(*intervals, rtol=1e-6)


def test_history_is_kept_to_six_digits(curve, tmp_path):
    model = BayesianMLPRegressor(noise="constant", **TINY).fit(*curve)
    model.save(tmp_path)
    for name, values in load_estimator(tmp_path).history_.items():
        np.testing.assert_allclose(values, model.history_[name], rtol=5.1e-6)
    assert (tmp_path / "model.json").stat().st_size < 6_000


def test_it_goes_on_learning(curve, tmp_path):
    x, y = curve
    model = BayesianMLPRegressor("vadam", **TINY).fit(x, y)
    model.save(tmp_path)
    read = load_estimator(tmp_path)
    read.partial_fit(x[:50], y[:50])
    model.partial_fit(x[:50], y[:50])
    np.testing.assert_allclose(read.predict(x), model.predict(x))


def test_numbers_of_numpy(blobs, tmp_path):
    options = {**TINY, "hidden": (np.int64(6), np.int32(4)), "calibrate": np.bool_(True)}
    model = BayesianMLPClassifier("ensemble", **options).fit(*blobs)
    model.save(tmp_path)
    read = load_estimator(tmp_path)
    assert read.hidden == (6, 4)
    np.testing.assert_array_equal(read.predict_proba(blobs[0]), model.predict_proba(blobs[0]))


def test_damaged_files(curve, tmp_path):
    BayesianMLPRegressor(**TINY).fit(*curve).save(tmp_path)
    path = tmp_path / "model.json"
    text = path.read_text()
    for broken in ("", text[:100], "[]", '{"version": []}'):
        path.write_text(broken)
        with pytest.raises(ValueError, match=r"model\.json must be what save\(\) wrote"):
            load_estimator(tmp_path)
    write_json(path, {**json.loads(text), "version": 2})
    with pytest.raises(DamagedFile, match=r"model\.json must be what save\(\) wrote, .*version is 2, not 1"):
        load_estimator(tmp_path)
    path.write_text(json.dumps({name: value for name, value in json.loads(text).items() if name != "digest"}))
    with pytest.raises(DamagedFile, match="it has no digest"):
        load_estimator(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        load_estimator(tmp_path)
    path.write_text(text)
    posterior = tmp_path / "posterior.safetensors"
    posterior.write_bytes(posterior.read_bytes()[:-50])
    with pytest.raises(ValueError, match="posterior file"):
        load_estimator(tmp_path)


@pytest.mark.parametrize("large", [1e200, -2e38])
def test_numbers_that_single_precision_does_not_have(large, curve, blobs):
    for kind, (x, y) in ((BayesianMLPRegressor, curve), (BayesianMLPClassifier, blobs)):
        model = kind("ensemble", **TINY).fit(x, y)
        x = np.array(x, dtype=np.float64)
        x[4, 1] = large
        for call in (lambda x=x, model=model: model.predict(x), lambda x=x, y=y, model=model: model.fit(x, y)):
            with pytest.raises(ValueError, match=r"^X must be finite \(below 1e\+38\), got .* at \(4, 1\)$"):
                call()
        x[4, 1] = np.sign(large) * 9e37  # and so does a deviation of this size
        with pytest.raises(ValueError, match=r"^X must be near the training inputs, got .* in row 4, column 1$"):
            kind("ensemble", **TINY).fit(x[5:] * 1e-3, y[5:]).predict(x)
    y = np.array(curve[1])
    y[3] = large
    with pytest.raises(ValueError, match=r"^y must be finite \(below 1e\+38\), got .* at \(3,\)$"):
        BayesianMLPRegressor("ensemble", **TINY).fit(curve[0], y)


def test_a_device_without_numbers(curve):
    with pytest.raises(
        ValueError, match=r"^device must be one that PyTorch can use, got 'meta' \(it holds no numbers\)$"
    ):
        BayesianMLPRegressor(**TINY, device="meta").fit(*curve)


@pytest.fixture(scope="module")
def fitted(curve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    for name, seed in (("old", 0), ("new", 1)):
        BayesianMLPRegressor("ensemble", **{**TINY, "random_state": seed}).fit(*curve).save(folder / name)
    return folder


class TestTwoFiles:
    """Saving over another estimator: all of the old or all of the new, at any moment."""

    @pytest.fixture
    def both(self, fitted, tmp_path):
        shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)
        shutil.copytree(fitted / "old", tmp_path / "here")
        return tmp_path

    def test_stopped_between_the_two(self, both):
        here, new = both / "here", both / "new"
        shutil.copy(new / "model.json", here / ".model.json.next")
        assert load_estimator(here).random_state == 0
        shutil.copy(new / "posterior.safetensors", here / "posterior.safetensors")
        assert load_estimator(here).random_state == 1
        (here / "model.json").unlink()  # as where there was none before
        assert load_estimator(here).random_state == 1
        load_estimator(here).save(here)
        assert sorted(path.name for path in here.iterdir()) == ["model.json", "posterior.safetensors"]

    @pytest.mark.parametrize("name", ["model.json", "posterior.safetensors"])
    def test_swapped(self, both, name):
        shutil.copy(both / "new" / name, both / "here" / name)
        with pytest.raises(
            DamagedFile, match=r"^model\.json must belong to posterior\.safetensors, got that of another"
        ):
            load_estimator(both / "here")

    @pytest.mark.parametrize(
        "change",
        [
            {"inputs": {"mean": [0.0, 0.0], "std": [1.0, 0.0]}},
            {"inputs": {"mean": [0.0], "std": [1.0]}},
            {"targets": {"mean": [0.0], "std": [0.0]}},
            {"calibration": {"epistemic": [1.0], "aleatoric": [-1.0]}},
            {"calibration": {"epistemic": [1.0, 2.0], "aleatoric": [1.0]}},
            {"likelihoods": [{"log_noise_precision": [1.0]}]},
            {"likelihoods": [{}] * 3},
            {"left_out": {"members": [[0]], "folds": [1], "scores": [[1.0]]}},
            {"epochs": -1},
            {"epochs": 2.5},
            {"stopped": "never"},
            {"several": 1},
            {"feature_names": ["a"]},
            {"calibration": {"epistemic": [1.0]}},
            {"noise": []},
            {"noise": [{"linear": [0.0]}]},
            {"noise": [3]},
            {"reach": {"square": -1.0, "rows": 10.0}},
            {"reach": {"square": 1.0}},
            {"params": {"hidden": [6, 4], "noise": -1.0}},
            {"kind": "BayesianMLPClassifier"},
            {"kind": "Other"},
        ],
    )
    def test_values_that_make_no_estimator(self, both, change):
        """Also where a digest says that this was written."""
        path = both / "here" / "model.json"
        write_json(path, {**json.loads(path.read_text()), **change})
        with pytest.raises(DamagedFile, match=r"^model\.json must be what save\(\) wrote, got "):
            load_estimator(both / "here")

    @pytest.mark.parametrize("hidden", [[10**9, 10**9], [10**30], [6] * 1000, [6], [0], None])
    def test_networks_that_are_not_those_of_the_posterior_are_not_made(self, both, hidden):
        path = both / "here" / "model.json"
        record = json.loads(path.read_text())
        write_json(path, {**record, "params": {**record["params"], "hidden": hidden}})
        with pytest.raises(DamagedFile, match=r"^model\.json must be what save\(\) wrote, got "):
            load_estimator(both / "here")


def test_the_format_is_stable():
    """Files that the first reader of format 1 has to read, with the predictions of the estimator that wrote them."""
    expected = json.loads((VERSION_1 / "predictions.json").read_text())
    read = load_estimator(VERSION_1)
    mean, std = read.predict(expected["rows"], return_std=True)
    np.testing.assert_allclose(mean, expected["mean"], rtol=1e-4)
    np.testing.assert_allclose(std, expected["std"], rtol=1e-4)
    cross = read.predict_interval(expected["rows"], 0.8, method="cross")
    np.testing.assert_allclose(cross, expected["cross"], rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda part: {"coefficient": [[1.0]]}, "coefficient of the linear part must be finite numbers in order"),
        (
            lambda part: {"column": [4 + column for column in part["column"]]},
            "pieces of the linear part must belong to inputs",
        ),
        (lambda part: {"low": part["high"]}, "pieces of the linear part must belong to inputs and have low < high"),
    ],
)
def test_regressions_that_are_none(change, message, blobs, tmp_path):
    BayesianMLPClassifier("ensemble", **TINY).fit(*blobs).save(tmp_path)
    told = json.loads((tmp_path / "model.json").read_text())
    told["linear"][1] |= change(told["linear"][1])
    write_json(tmp_path / "model.json", told)
    with pytest.raises(DamagedFile, match=message):
        load_estimator(tmp_path)


def test_a_generator_cannot_be_saved(curve, tmp_path):
    model = BayesianMLPRegressor(**{**TINY, "random_state": np.random.RandomState(0)}).fit(*curve)
    with pytest.raises(ValueError, match="random_state must be numbers, text or None to be saved"):
        model.save(tmp_path)
    assert not list(tmp_path.iterdir())
