"""Saved estimators: what is read predicts the same, and damage is found, also that which has a digest."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest

from bayesadam.files import DamagedFile, write_json
from bayesadam.sklearn import METHODS, BayesianMLPClassifier, BayesianMLPRegressor, load_estimator
from bayesadam.tables.estimators import storage
from bayesadam.tables.estimators.network import perceptron
from bayesadam.tables.runs.run_folder import load_run

pytestmark = pytest.mark.usefixtures("few_trees")
TINY = {"members": 3, "hidden": (6, 4), "epochs": 5, "mc_samples": 4, "random_state": 0}


@pytest.mark.parametrize("method", METHODS)
def test_what_is_read_predicts_the_same(method, curve, blobs, tmp_path):
    x, y = pd.DataFrame(curve[0], columns=["a", "b"]), curve[1]
    regressor = BayesianMLPRegressor(method, **TINY).fit(x, y)
    regressor.save(tmp_path / "regressor")
    read = load_estimator(tmp_path / "regressor")
    np.testing.assert_array_equal(read.predict(x, True), regressor.predict(x, True))
    assert read.feature_names_in_.tolist() == ["a", "b"]
    assert read.get_params() == regressor.get_params()
    classifier = BayesianMLPClassifier(method, **TINY).fit(*blobs)
    classifier.save(tmp_path / "classifier")
    read = load_estimator(tmp_path / "classifier")
    np.testing.assert_array_equal(read.predict_proba(blobs[0]), classifier.predict_proba(blobs[0]))
    np.testing.assert_array_equal(read.classes_, classifier.classes_)
    assert {path.name for path in (tmp_path / "classifier").iterdir()} == {"posterior.safetensors", "model.json"}


@pytest.mark.parametrize("labels", [[-1, 2], [True, False], ["0.5", "1.5"]])
def test_labels_keep_their_type(labels, blobs, tmp_path):
    model = BayesianMLPClassifier("ensemble", **TINY).fit(blobs[0], np.array(labels)[np.arange(150) % 2])
    model.save(tmp_path)
    found = load_estimator(tmp_path).predict(blobs[0])
    assert found.dtype == model.predict(blobs[0]).dtype == np.array(labels).dtype
    assert set(found.tolist()) <= set(labels)


def test_several_targets_noise_and_left_out_rows(curve, tmp_path):
    x, y = curve
    loud = y + np.abs(x[:, 0]) * 300.0 * np.random.default_rng(0).standard_normal(len(y))
    model = BayesianMLPRegressor(noise="input", **{**TINY, "lr": 0.1, "epochs": 60}).fit(x, np.stack([loud, -y], 1))
    assert "input" in model.noise_
    model.save(tmp_path)
    read = load_estimator(tmp_path)
    assert read.noise_ == model.noise_
    np.testing.assert_allclose(read.predict(3.0 * x, True), model.predict(3.0 * x, True), rtol=1e-6)
    for method in ("bayes", "cross"):
        intervals = [one.predict_interval(x, 0.9, method=method) for one in (read, model)]
        np.testing.assert_allclose(*intervals, rtol=1e-6)
    for name, values in read.history_.items():
        np.testing.assert_allclose(values, model.history_[name], rtol=5.1e-6)


def test_numbers_of_numpy(blobs, tmp_path):
    options = {**TINY, "hidden": (np.int64(6), np.int32(4)), "calibrate": np.bool_(True)}
    BayesianMLPClassifier("ensemble", **options).fit(*blobs).save(tmp_path)
    assert load_estimator(tmp_path).hidden == (6, 4)


def test_a_generator_cannot_be_saved(curve, tmp_path):
    model = BayesianMLPRegressor(**{**TINY, "random_state": np.random.RandomState(0)}).fit(*curve)
    with pytest.raises(ValueError, match="random_state must be numbers, text or None to be saved"):
        model.save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def fitted(curve, blobs, tmp_path_factory):
    folder, (x, y) = tmp_path_factory.mktemp("fitted"), curve
    for name, seed in (("old", 0), ("new", 1)):
        BayesianMLPRegressor("ensemble", **{**TINY, "random_state": seed}).fit(x, y).save(folder / name)
    table = pd.DataFrame({"north": x[:, 0], "side": np.where(x[:, 1] > 0, "east", "west")})
    BayesianMLPRegressor("ensemble", target_transform="quantile", **TINY).fit(table, y).save(folder / "table")
    BayesianMLPClassifier("ensemble", **TINY).fit(*blobs).save(folder / "classes")
    return folder


@pytest.fixture
def folder(fitted, tmp_path):
    return shutil.copytree(fitted, tmp_path, dirs_exist_ok=True)


def test_saving_was_stopped_between_the_two_files(folder):
    """All of the old or all of the new, at any moment."""
    here, new = shutil.copytree(folder / "old", folder / "here"), folder / "new"
    shutil.copy(new / "model.json", here / ".model.json.next")
    assert load_estimator(here).random_state == 0
    shutil.copy(new / "posterior.safetensors", here / "posterior.safetensors")
    assert load_estimator(here).random_state == 1
    (here / "model.json").unlink()  # as where there was none before
    assert load_estimator(here).random_state == 1
    load_estimator(here).save(here)
    assert sorted(path.name for path in here.iterdir()) == ["model.json", "posterior.safetensors"]


@pytest.mark.parametrize("name", ["model.json", "posterior.safetensors"])
def test_files_of_two_estimators(folder, name):
    shutil.copy(folder / "new" / name, folder / "old" / name)
    with pytest.raises(DamagedFile, match=r"^model\.json must belong to posterior\.safetensors, got that of another"):
        load_estimator(folder / "old")


def test_damaged_files(folder):
    path, posterior = folder / "old" / "model.json", folder / "old" / "posterior.safetensors"
    text = path.read_text()
    for broken in ("", text[:100], "[]", '{"version": []}', text.replace("6", "7", 1)):
        path.write_text(broken)
        with pytest.raises(DamagedFile, match=r"model\.json must be what save\(\) wrote|digest"):
            load_estimator(folder / "old")
    write_json(path, {**json.loads(text), "version": storage.VERSION + 1})
    with pytest.raises(
        DamagedFile, match=r"model\.json must be what save\(\) wrote, got .* \(its version is 2, not 1\)"
    ):
        load_estimator(folder / "old")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        load_estimator(folder / "old")
    path.write_text(text)
    posterior.write_bytes(posterior.read_bytes()[:-50])
    with pytest.raises(DamagedFile, match="posterior file"):
        load_estimator(folder / "old")


CHANGES = [
    ("old", lambda told: told["params"].update(noise=-1.0)),
    ("old", lambda told: told["params"].update(hidden=None)),
    ("old", lambda told: told.update(kind="Other")),
    ("old", lambda told: told["companions"][0].update(kind="other")),
    ("old", lambda told: told["params"].update(hidden=[30_000, 30_000])),
    ("old", lambda told: told["params"].update(mc_samples=10**9)),
    ("old", lambda told: told["inputs"].update(std=[1.0])),
    ("old", lambda told: told["inputs"].update(std=["1.0", "2.0"])),
    ("old", lambda told: told["calibration"].update(weights=[[1.0], [1.0]])),
    ("old", lambda told: told["likelihoods"].pop()),
    ("old", lambda told: told["left_out"].update(folds=[7] * len(told["left_out"]["folds"]))),
    ("old", lambda told: told["companions"][0].update(column=[2] * len(told["companions"][0]["column"]))),
    ("table", lambda told: told["encoder"]["columns"][0].update(missing=10**9)),
    ("table", lambda told: told["encoder"]["columns"][1].update(levels=["east", 3])),
    ("table", lambda told: told["encoder"].update(names=None)),
    ("table", lambda told: told["encoder"].update(columns=[{"kind": "colour"}])),
    ("table", lambda told: told["transforms"][0].update(name="cube")),
]


@pytest.mark.parametrize(("name", "change"), CHANGES)
def test_values_that_make_no_estimator(name, change, folder, monkeypatch):
    """They are found before there is a network of another size."""

    def made(inputs, hidden, *others):
        if sum(hidden) > 100:
            pytest.fail("there was memory for a network of another size than the posterior's")
        return perceptron(inputs, hidden, *others)

    monkeypatch.setattr("bayesadam.tables.estimators.base.perceptron", made)
    path = folder / name / "model.json"
    told = json.loads(path.read_text())
    change(told)
    write_json(path, told)
    with pytest.raises(DamagedFile):
        load_estimator(folder / name)


def test_labels_have_the_length_that_they_need(folder):
    path = folder / "classes" / "model.json"
    told, expected = json.loads(path.read_text()), load_estimator(folder / "classes").classes_
    told["classes"]["dtype"] = "<U1000000"
    write_json(path, told)
    found = load_estimator(folder / "classes").classes_
    assert found.dtype == expected.dtype
    assert found.tolist() == expected.tolist()


def test_the_posterior_of_another_run_with_a_right_digest(folder):
    path = folder / "classes" / "model.json"
    shutil.copy(folder / "old" / "posterior.safetensors", folder / "classes")
    told, other = (json.loads((folder / name / "model.json").read_text()) for name in ("classes", "old"))
    write_json(path, {**told, "posterior": other["posterior"]})
    with pytest.raises(DamagedFile, match=r"its network must have the weights of its posterior, got hidden=\(6, 4\)"):
        load_estimator(folder / "classes")


def test_a_device_that_is_not_here(folder):
    path = folder / "old" / "model.json"
    told = json.loads(path.read_text())
    told["params"]["device"] = "abacus"
    write_json(path, told)
    with pytest.raises(ValueError, match="^device must be one that PyTorch can use, got 'abacus'"):
        load_estimator(folder / "old")
    for read in (load_estimator(folder / "old", device="cpu"), load_run(folder / "old")):
        assert read.device == "cpu"
