import pickle
import warnings

import numpy as np
import pytest
import torch
from sklearn.base import clone

import bayesadam as ba
from bayesadam.scaling import column_scales
from bayesadam.sklearn import METHODS, BayesianMLPClassifier, BayesianMLPRegressor, load_estimator
from bayesadam.tables.estimators.ensemble import _moments

pytestmark = pytest.mark.usefixtures("few_trees")
QUICK = {"members": 4, "hidden": (20,), "epochs": 200, "lr": 0.03, "random_state": 0}


@pytest.fixture(scope="module")
def fitted(curve):
    return BayesianMLPRegressor(**QUICK).fit(*curve)


def test_it_knows_the_curve_and_its_noise(fitted):
    x = np.random.default_rng(5).uniform(-2.5, 2.5, (2_000, 2))
    truth = 5_000.0 + 1_000.0 * (np.sin(x[:, 0]) + 0.3 * x[:, 1])
    y = truth + 100.0 * np.random.default_rng(6).standard_normal(2_000)
    mean, std = fitted.predict(x, return_std=True)
    assert np.sqrt(np.mean((mean - truth) ** 2)) < 60.0
    assert np.mean((y - mean) ** 2 / std**2) == pytest.approx(1.0, abs=0.35)
    interval = fitted.predict_interval(x, 0.9)
    assert np.mean((interval[:, 0] <= y) & (y <= interval[:, 1])) == pytest.approx(0.9, abs=0.06)


def test_the_predictive_is_a_gaussian_in_the_targets_units(fitted, curve):
    pred = fitted.predictive(curve[0])
    mean, std = fitted.predict(curve[0], return_std=True)
    np.testing.assert_allclose(pred.mean.numpy(), mean)
    np.testing.assert_allclose(pred.variance.sqrt().numpy(), std)
    torch.testing.assert_close(pred.variance, pred.epistemic + pred.aleatoric)
    expected = torch.distributions.Normal(torch.tensor(mean), torch.tensor(std)).log_prob(torch.tensor(curve[1]))
    torch.testing.assert_close(pred.log_prob(torch.tensor(curve[1])), expected)
    np.testing.assert_allclose(fitted.predict_interval(curve[0], 0.8).T, pred.quantile([0.1, 0.9]).numpy())


def test_units_do_not_matter(curve, fitted):
    x, y = curve
    other = BayesianMLPRegressor(**QUICK).fit(1e4 * x - 3.0, 1e-3 * y + 7.0)
    mean, std = fitted.predict(x, return_std=True)
    other_mean, other_std = other.predict(1e4 * x - 3.0, return_std=True)
    np.testing.assert_allclose(other_mean, 1e-3 * mean + 7.0, rtol=5e-3)
    np.testing.assert_allclose(other_std, 1e-3 * std, rtol=0.05)


def test_calibration_is_by_rows_that_members_have_not_seen(curve):
    x, _ = curve
    noise = np.random.default_rng(3).standard_normal(len(x))  # nothing to be learned: only memorised
    options = {"members": 4, "hidden": (60,), "epochs": 400, "lr": 0.03, "random_state": 0, "early_stopping": False}
    model = BayesianMLPRegressor(**options).fit(x, noise)
    new = np.random.default_rng(4).uniform(-3.0, 3.0, (3_000, 2))
    mean, std = model.predict(new, return_std=True)
    z = (np.random.default_rng(7).standard_normal(3_000) - mean) / std
    assert np.mean(z**2) == pytest.approx(1.0, abs=0.4)
    raw = clone(model).set_params(calibrate=False).fit(x, noise)
    assert raw.calibration_["epistemic"].tolist() == raw.calibration_["aleatoric"].tolist() == [1.0]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns(method, curve):
    x, y = curve
    epochs = 400 if method in ("vadam", "vprop", "ivon", "vogn", "von", "bbb") else 150
    model = BayesianMLPRegressor(method, **{**QUICK, "epochs": epochs, "mc_samples": 4}).fit(x[:120], y[:120])
    assert model.score(x[120:], y[120:]) > 0.8
    _, std = model.predict(x, return_std=True)
    assert ((std > 0) & np.isfinite(std)).all()
    assert isinstance(model.posterior_, ba.Mixture)
    assert model.posterior_.match(model.network_)
    if method != "ensemble":
        assert (model.predictive(x).epistemic > 0).all()
    same = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(same.predict(x), model.predict(x))


class TestNoise:
    @pytest.fixture
    def loud(self):
        """The noise is 0.1 left of 0 and 0.8 right of it; of a second target it is 0.4 everywhere."""
        generator = np.random.default_rng(2)
        x = generator.uniform(-2.0, 2.0, (600, 1))
        noise = np.stack([np.where(x[:, 0] > 0, 0.8, 0.1), np.full(600, 0.4)], 1)
        return x, x + noise * generator.standard_normal((600, 2))

    @pytest.mark.parametrize("method", ["laplace", "vadam"])
    def test_that_depends_on_the_input(self, method, loud):
        x, y = loud
        model = BayesianMLPRegressor(method, **{**QUICK, "epochs": 500}).fit(x, y[:, 0])
        assert model.noise_ == "input"
        _, std = model.predict([[-1.0], [1.0]], return_std=True)
        assert std[0] == pytest.approx(0.1, rel=0.5)
        assert std[1] == pytest.approx(0.8, rel=0.3)

    def test_does_not_touch_the_mean(self, loud):
        x, y = loud[0], loud[1][:, 0]
        options = {**QUICK, "epochs": 50, "target_transform": "none"}
        models = [BayesianMLPRegressor(noise=noise, **options).fit(x, y) for noise in ("constant", "auto", "input")]
        assert [model.noise_ for model in models] == ["constant", "input", "input"]
        for model in models[1:]:
            np.testing.assert_array_equal(model.predict(x), models[0].predict(x))
        aleatoric = models[0].predictive(x).aleatoric
        assert aleatoric.max() == aleatoric.min()

    def test_that_is_known(self, loud, tmp_path):
        x, y = loud[0], 1_000.0 * loud[1]
        model = BayesianMLPRegressor("laplace", noise=400.0, **QUICK).fit(x, y)
        assert model.noise_ == ["known", "known"]
        assert model.set_params(noise="constant").noise_ == ["known", "known"]  # that of the fit
        model.set_params(noise=400.0)
        np.testing.assert_allclose(model.predictive(x).aleatoric, 160_000.0, rtol=1e-5)
        assert model.calibration_["aleatoric"].tolist() == [1.0, 1.0]
        assert (model.calibration_["epistemic"] != 1.0).all()
        for member in model._likelihoods:
            np.testing.assert_allclose(member.noise_precision, (model._y_std / 400.0) ** 2, rtol=1e-5)


@pytest.mark.parametrize("calibrate", [True, False])
@pytest.mark.parametrize("method", ["laplace", "ensemble"])
def test_uncertainty_grows_without_bound_away_from_the_data(method, calibrate, curve):
    model = BayesianMLPRegressor(method, **{**QUICK, "epochs": 60, "mc_samples": 4}, calibrate=calibrate).fit(*curve)
    for direction in ([1.0, 0.0], [0.6, -0.8]):
        std = model.predict(np.array([0.0, 30.0, 100.0, 3e4, 9e4])[:, None] * direction, return_std=True)[1]
        assert (std[1:] > 1.3 * std[0]).all()
        assert std[3] > 10.0 * std[2]
        assert std[4] == pytest.approx(3.0 * std[3], rel=0.2)


@pytest.mark.parametrize("method", ["laplace", "vadam"])
def test_double_precision_as_default(method, curve, tmp_path, set_default_dtype):
    """The networks are in single precision all the same."""
    options = {**QUICK, "epochs": 5, "hidden": (4,), "mc_samples": 2}
    expected = BayesianMLPRegressor(method, **options).fit(*curve).predict(curve[0], return_std=True)
    set_default_dtype(torch.float64)
    model = BayesianMLPRegressor(method, **options).fit(*curve)
    model.save(tmp_path)
    found = [m.predict(curve[0], return_std=True) for m in (model, load_estimator(tmp_path))]
    assert all(value.dtype == torch.float32 for value in model.network_.state_dict().values())
    for parts in found:
        np.testing.assert_allclose(parts, expected, rtol=1e-3)


def test_rows_of_little_weight_neither_stop_the_training_nor_set_the_scales(curve):
    x, y = curve
    junk = np.random.default_rng(4).normal(9_000.0, 3_000.0, len(x))
    both, weight = np.concatenate([y, junk]), np.repeat([1.0, 1e-6], len(x))
    options = {**QUICK, "members": 6}
    good = BayesianMLPRegressor(**options).fit(x, y)
    model = BayesianMLPRegressor(**options).fit(np.concatenate([x, x + 50.0]), both, weight)
    np.testing.assert_allclose(model._x_mean, x.mean(0), atol=1e-3)
    np.testing.assert_allclose(model._x_std, x.std(0), rtol=1e-3)
    np.testing.assert_allclose(model._y_mean, y.mean(), rtol=1e-3)
    np.testing.assert_allclose(model._y_std, y.std(), rtol=1e-3)
    new = np.random.default_rng(5).uniform(-2.5, 2.5, (500, 2))
    truth = 5_000.0 + 1_000.0 * (np.sin(new[:, 0]) + 0.3 * new[:, 1])
    error, least = (np.sqrt(np.mean((m.predict(new) - truth) ** 2)) for m in (model, good))
    assert error < 2.0 * least


def test_scales_and_errors_of_weighted_rows_are_those_of_repeated_rows(curve, fitted):
    x, y = curve
    times = np.arange(160) % 4
    repeated = np.repeat(x, times, axis=0)
    np.testing.assert_allclose(column_scales(x, times), column_scales(repeated, None), rtol=1e-12)
    center, targets = torch.from_numpy(x[:, :1]), torch.from_numpy(y[:, None])
    repeated = torch.arange(160).repeat_interleave(torch.from_numpy(times))
    expected = fitted._held_out_error(center[repeated], targets[repeated], None)
    assert fitted._held_out_error(center, targets, torch.from_numpy(times).double()) == pytest.approx(expected)


def test_draws(fitted):
    x = np.zeros((2, 2))
    draws = fitted.sample_y(x, 20_000, random_state=3)
    mean, std = fitted.predict(x, return_std=True)
    np.testing.assert_allclose(draws.mean(1), mean, atol=4 * std[0] / 20_000**0.5)
    np.testing.assert_allclose(draws.std(1), std, rtol=0.03)
    np.testing.assert_array_equal(draws, fitted.sample_y(x, 20_000, random_state=3))


def test_groups(curve):
    x, _ = curve
    copies, groups = np.repeat(x, 8, axis=0), np.repeat(np.arange(len(x)), 8)
    product = 200.0 * x[:, 0] * x[:, 1]  # for which the regressions beside the networks are of no use
    noisy = np.repeat(product + 500.0 * np.random.default_rng(9).standard_normal(len(x)), 8)
    options = {**QUICK, "hidden": (60,), "epochs": 400, "early_stopping": False}
    honest = BayesianMLPRegressor(**options).fit(copies, noisy, groups=groups)
    with pytest.warns(UserWarning, match=f"{7 * len(x):,} of {8 * len(x):,} rows are copies of others"):
        fooled = BayesianMLPRegressor(**options).fit(copies, noisy)
    assert honest.predict(x, return_std=True)[1].mean() > 1.2 * fooled.predict(x, return_std=True)[1].mean()


@pytest.mark.parametrize(
    ("targets", "warns"), [([0, 1, 5], True), ([0, 1, 0], False), ([0, 1, 2.5], False), ([90, 10, 95], False)]
)
def test_small_whole_targets_may_be_counts(targets, warns):
    x = np.arange(60.0).reshape(-1, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        BayesianMLPRegressor(members=1, epochs=1).fit(x, np.array(targets * 20))
    assert any("negative_binomial" in str(one.message) for one in caught) == warns


def test_counts_are_calibrated(tmp_path):
    """The variance of the outputs is far too large without calibration; it must not inflate the predicted means."""
    generator = np.random.default_rng(0)
    x, new = generator.uniform(-2.0, 2.0, (2, 200, 4))
    y, target = (
        generator.poisson(generator.gamma(2.0, 1.5 * np.exp(0.8 * np.sin(2.0 * rows[:, 0]) + 0.5 * rows[:, 1])))
        for rows in (x, new)
    )
    options = {**QUICK, "likelihood": "negative_binomial"}
    model = BayesianMLPRegressor(**options).fit(x, y)
    plain = BayesianMLPRegressor(**options, calibrate=False).fit(x, y)
    assert model.calibration_["epistemic"][0] < 0.6
    assert 0.0 < model.calibration_["error"][0] < 1.0
    assert plain.calibration_ == {"epistemic": [1.0], "aleatoric": [1.0], "error": [0.0], "weights": [[1.0]]}
    nll, before = (-float(m.predictive(new).log_prob(torch.tensor(target)).mean()) for m in (model, plain))
    assert nll < before - 0.01
    assert model.predict(x).mean() == pytest.approx(y.mean(), rel=0.1)
    np.testing.assert_allclose(model.predict(new), plain.predict(new), rtol=1e-6)  # whatever the variance is
    model.save(tmp_path)
    np.testing.assert_array_equal(load_estimator(tmp_path).predict(new), model.predict(new))


def test_a_single_group_leaves_nothing_out(curve):
    x, y = curve
    model = BayesianMLPRegressor(**QUICK).fit(x, y, groups=["a"] * len(x))
    assert model.target_transform_ == "none"
    assert (model.predict(x, return_std=True)[1] > 0).all()


@pytest.mark.parametrize("method", ["laplace", "vadam"])
def test_predictions_are_finite_or_refused_far_away(method, curve):
    model = BayesianMLPRegressor(method, **{**QUICK, "epochs": 20}, activation="relu").fit(*curve)
    mean, std = model.predict(np.full((1, 2), 1e14), return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()
    for far in (1e16, -1e37):
        with pytest.raises(ValueError, match=r"^X must be near the training inputs, got .* in row 0, column 0$"):
            model.predict(np.full((1, 2), far))


def test_targets_of_tiny_spread(curve):
    x, y = curve
    target = 1e6 + 1e-10 * y / np.abs(y).max()
    model = BayesianMLPRegressor(**QUICK, target_transform="yeo-johnson")
    mean, std = model.fit(x, target).predict(x, return_std=True)
    assert mean == pytest.approx(1e6, rel=1e-9)
    assert np.isfinite(std).all()
    mean, std = BayesianMLPRegressor(**QUICK).fit(x, target).predict(x, return_std=True)
    assert mean == pytest.approx(1e6, abs=0.02)  # without a transform they count as constant, with the unit 1
    assert np.isfinite(std).all()


def test_status_after_every_epoch(curve):
    seen = []
    model = BayesianMLPRegressor(**{**QUICK, "epochs": 50}).fit(*curve, on_epoch=seen.append)
    assert [status.epoch for status in seen] == list(range(1, 51))
    assert {status.epochs for status in seen} == {50}
    assert seen[-1].loss < seen[0].loss
    assert seen[-1].held_out_nll < seen[0].held_out_nll
    assert 5.0 < seen[-1].held_out_nll < 8.5  # log of an error of some 100 to 500
    assert model.history_["loss"].shape == model.history_["held_out_nll"].shape == (4, 50)
    assert np.nanmean(model.history_["held_out_nll"][:, -1]) == pytest.approx(seen[-1].held_out_nll)
    recorded = np.flatnonzero(np.isfinite(model.history_["held_out_nll"]).any(0)) + 1
    assert recorded.tolist() == [*range(1, 11), 13, 17, 23, 30, 39, 50]  # on any machine


def test_the_training_ends_when_the_error_rises_three_times_in_a_row(curve, monkeypatch):
    """Epochs 10, 13, 17, 23, 30, 39, 51 and 67 are looked at; three times the best epoch, 30, would be 90."""
    errors = iter([*[0.0] * 9, 1.0, 1.1, 1.2, 1.1, 0.5, 0.6, 0.7, 0.8])
    monkeypatch.setattr(BayesianMLPRegressor, "_held_out_error", lambda *_: next(errors))
    model = BayesianMLPRegressor(**{**QUICK, "epochs": 200}).fit(*curve)
    assert (model.stopped_, model.epochs_) == ("early", 30)
    assert np.isfinite(model.history_["loss"]).any(0).sum() == 67


def test_predictions_of_the_rows_left_out(curve):
    """With one member that leaves rows out they are its predictions; the calibration is that of the ensemble."""
    x, y = curve
    model = BayesianMLPRegressor(**{**QUICK, "members": 1}, noise="constant", target_transform="none").fit(x, y)
    rows, pred = model.left_out_
    assert 0 < len(rows) <= 0.2 * len(x)
    whole = model.predictive(x[rows])
    if len(model.calibration_["weights"]) == 1:
        np.testing.assert_allclose(pred.mean, whole.mean, rtol=1e-5)
        np.testing.assert_allclose(pred.variance, whole.variance, rtol=1e-5)
    several = BayesianMLPRegressor(**QUICK).fit(x, y)
    rows, pred = several.left_out_
    np.testing.assert_array_equal(rows, np.arange(len(x)))
    error, seen = (float(np.mean((p.mean.numpy() - y) ** 2)) for p in (pred, several.predictive(x)))
    assert error > seen


def test_only_the_ratios_of_weights_matter_and_left_out_rows_are_those_given(curve):
    x, y = curve
    weight = np.where(np.arange(len(x)) % 4 == 1, 0.0, 1.0 + np.arange(len(x)) % 3)
    options = {**QUICK, "epochs": 20}
    usual, *others = (BayesianMLPRegressor(**options).fit(x, y, scale * weight) for scale in (1.0, 1e-200, 1e200))
    for other in others:
        np.testing.assert_allclose(other.predict(x), usual.predict(x), rtol=1e-6)
    np.testing.assert_array_equal(usual.left_out_[0], np.flatnonzero(weight))
    classifier = BayesianMLPClassifier(members=2, epochs=5, random_state=0).fit(x, y > np.median(y), weight)
    assert (weight[classifier.left_out_[0]] > 0).all()


def test_networks_that_do_not_fit_into_the_memory(curve, monkeypatch):
    monkeypatch.setattr("bayesadam.tables.encoder.memory.available_memory", lambda: 9_000)
    with pytest.raises(MemoryError, match=r"^training 2 networks of 401 weights would take .*: use fewer members"):
        BayesianMLPRegressor(hidden=(100,), members=2, epochs=1).fit(*curve)
    BayesianMLPRegressor(hidden=(50,), members=2, epochs=1).fit(*curve)


def test_an_interrupted_fit_keeps_what_it_has(curve):
    def stop(status):
        if status.epoch == 150:
            raise KeyboardInterrupt

    model = BayesianMLPRegressor(**QUICK)
    with pytest.warns(UserWarning, match="training was interrupted"):
        model.fit(*curve, on_epoch=stop)
    assert model.interrupted_
    assert 50 < model.epochs_ <= 150
    assert model.score(*curve) > 0.9
    assert not BayesianMLPRegressor(**{**QUICK, "epochs": 5}).fit(*curve).interrupted_


def test_a_time_budget_is_kept(curve):
    options = {"members": 4, "calibrate": False, "random_state": 0}
    model, seen = BayesianMLPRegressor("vadam", epochs=100_000, time_budget=1.0, **options), []
    model.fit(*curve, on_epoch=seen.append)
    assert all(status.seconds <= 1.0 for status in seen[:-1])  # only the last epoch ends later
    assert model.stopped_ == "time"
    assert 1 <= model.epochs_ <= seen[-1].epoch
    assert np.isfinite(model.predict(curve[0])).all()
    plenty, unlimited = (
        BayesianMLPRegressor(epochs=20, time_budget=budget, **options).fit(*curve) for budget in (1e4, None)
    )
    np.testing.assert_array_equal(plenty.predict(curve[0]), unlimited.predict(curve[0]))


def test_a_time_budget_ends_within_a_pass_over_the_rows():
    x = np.random.default_rng(0).standard_normal((3_000, 2))
    model = BayesianMLPRegressor(members=2, hidden=(4,), epochs=1_000, batch_size=2, time_budget=0.3, calibrate=False)
    seen = []
    model.fit(x, x[:, 0], on_epoch=seen.append)
    assert seen[0].epochs == 7_500  # of 100 of its 750 steps
    assert all(status.seconds <= 0.3 for status in seen[:-1])
    assert model.stopped_ == "time"


@pytest.mark.parametrize(("options", "epochs"), [({}, 30), ({"noise": 1.0}, 60), ({"epochs": 5}, 5)])
def test_default_steps(options, epochs, curve, monkeypatch):
    monkeypatch.setattr(BayesianMLPRegressor, "default_steps", 30)
    model = BayesianMLPRegressor(members=2, hidden=(2,), early_stopping=False, **options).fit(*curve)
    assert model.epochs_ == epochs


def test_early_stopping_by_rows_left_out(curve):
    x, _ = curve
    generator = np.random.default_rng(3)
    noisy = x[:, 0] + 3.0 * generator.standard_normal(len(x))
    options = {"members": 6, "hidden": (60,), "epochs": 600, "random_state": 0, "calibrate": False}
    model = BayesianMLPRegressor(**options).fit(x, noisy)
    assert model.epochs_ < 400
    assert np.isfinite(model.history_["loss"][:, model.epochs_ - 1]).all()
    assert np.isnan(model.history_["loss"][:, -1]).all()  # it was not trained to the end
    whole = BayesianMLPRegressor(**{**options, "early_stopping": False}).fit(x, noisy)
    assert whole.epochs_ == 600
    new = np.random.default_rng(4).uniform(-3.0, 3.0, (1_000, 2))
    error, overfitted = (np.mean((m.predict(new) - new[:, 0]) ** 2) for m in (model, whole))
    assert error < 0.6 * overfitted


def test_no_warnings_on_odd_tables():
    """They would be errors."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((12, 3))
    x[:, 1] = 5.0
    constant = BayesianMLPRegressor(epochs=20, random_state=0).fit(x, np.full(12, 3.0))
    mean, std = constant.predict(x, return_std=True)
    np.testing.assert_allclose(mean, 3.0, atol=0.5)
    assert np.isfinite(std).all()
    BayesianMLPRegressor(members=1, epochs=5).fit(x[:2], [1.0, 2.0]).predict(x)


def test_variance_of_members_and_between_them():
    """Of those members that are there for a row, by the unbiased estimate; that of a single one is its own."""
    parts = np.zeros((3, 3, 2, 1))
    parts[0, :, :, 0] = [[1.0, 5.0], [2.0, 7.0], [6.0, 100.0]]
    parts[1, :, :, 0] = [[1.0, 4.0], [2.0, 50.0], [3.0, 60.0]]
    there = np.array([[[1], [1]], [[1], [0]], [[1], [0]]], dtype=bool)
    center, found, *_ = _moments(parts, there)
    assert center[:, 0].tolist() == [3.0, 5.0]
    assert found[:, 0] == pytest.approx([9.0, 4.0])
