import json

import numpy as np
import pandas as pd
import pytest

from bayesadam.files import write_json
from bayesadam.sklearn import METHODS, BayesianMLPClassifier, BayesianMLPRegressor, load_estimator

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


def test_several_targets_noise_and_conformal_scores(curve, tmp_path):
    x, y = curve
    model = BayesianMLPRegressor(heteroscedastic=True, **TINY).fit(x, np.stack([y, -y], 1))
    model.conformalize(x, np.stack([y, -y], 1)).save(tmp_path)
    read = load_estimator(tmp_path)
    np.testing.assert_array_equal(read.predict_interval(x, conformal=True), model.predict_interval(x, conformal=True))


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
    write_json(path, {**json.loads(text), "version": 3})
    with pytest.raises(ValueError, match=r"model\.json must be of version 2 \(update bayesadam\?\), got 3"):
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
        with pytest.raises(ValueError, match=r"^X must be near what it was in training, got .* in row 4, column 1$"):
            kind("ensemble", **TINY).fit(x[5:] * 1e-3, y[5:]).predict(x)
    y = np.array(curve[1])
    y[3] = large
    with pytest.raises(ValueError, match=r"^y must be finite \(below 1e\+38\), got .* at \(3,\)$"):
        BayesianMLPRegressor("ensemble", **TINY).fit(curve[0], y)


def test_a_generator_cannot_be_saved(curve, tmp_path):
    model = BayesianMLPRegressor(**{**TINY, "random_state": np.random.RandomState(0)}).fit(*curve)
    with pytest.raises(ValueError, match="random_state must be numbers, text or None to be saved"):
        model.save(tmp_path)
    assert not list(tmp_path.iterdir())
