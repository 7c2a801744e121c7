"""The experiments of Bayer et al. 2015, made short."""

import csv
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from experiments import report as pages
from experiments import runner
from experiments.fawn.numbers import in_errors, mean_and_sd, standard_error
from experiments.fawn.scores import predictive, sampled, scores
from experiments.fawn.training import CURVE, Member, decay, fit, minibatches
from experiments.fawn_histogram.comparison import statistics
from experiments.fawn_histogram.experiment import FawnHistogram
from experiments.fawn_multioutput.covariance import together
from experiments.fawn_multioutput.data import parts as multioutput_parts
from experiments.fawn_multioutput.experiment import FawnMultioutput
from experiments.fawn_multioutput.report import correlations
from experiments.fawn_uci import gp
from experiments.fawn_uci.experiment import FawnUCI
from experiments.fawn_uci.report import reached
from experiments.results import Store, finished
from experiments.tables import Number
from experiments.uci_table1.protocol import Part
from scipy import stats
from torch import nn

import bayesadam as ba

DATA = os.environ.get("BAYESADAM_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="needs BAYESADAM_DATA: the data sets")
HERE = Path(__file__).parents[1] / "experiments"

CONFIG = {
    "weights": "gaussian",
    "objective": "ropd",
    "hidden": 7,
    "batch_size": 16,
    "lr": 0.01,
    "initial_std": 0.1,
    "noise_sd": 0.3,
    "mc_samples": 2_000,
    "seed": 0,
    "iterations": 40,
}


def silent(done, total, note=""):
    pass


def part(seed, outputs=1, size=50):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size + 12, 3, generator=generator)
    y = 5.0 + 3.0 * x[:, :1].sin() + x[:, 1:2] * torch.arange(1.0, outputs + 1)
    y = y + 0.3 * torch.randn(y.shape, generator=generator)
    return Part.of((x[:size], y[:size]), (x[size:], y[size:]))


def short(cls, at, **options):
    class Short(cls):
        @property
        def folder(self):
            return at

    return Short(**options)


def run(experiment):
    summary = runner.run(experiment, jobs=1, runs=experiment.folder / "runs")
    assert summary.failed == {}
    assert summary.not_finite == {}
    return finished(experiment.units(), Store.of(experiment, experiment.folder / "runs"))


def rows(found, title):
    return next(table.rows for table in found.tables if table.title.startswith(title))


@pytest.fixture(scope="module")
def case():
    given = part(1, 2)
    config = {**CONFIG, "covariance": True}
    (fitted,), _ = fit([given], [0], config, silent)
    return given, fitted, config


@pytest.fixture(scope="module")
def uci(tmp_path_factory):
    options = {"iterations": 60, "splits": 2, "restarts": 0, "mc_samples": 5}
    experiment = short(FawnUCI, tmp_path_factory.mktemp("uci"), datasets=("wine", "yacht"), **options)
    return experiment, run(experiment)


@pytest.fixture(scope="module")
def multioutput(tmp_path_factory):
    options = {"iterations": 60, "splits": 2, "mc_samples": 5}
    experiment = short(FawnMultioutput, tmp_path_factory.mktemp("mo"), datasets=("energy", "jura"), **options)
    return experiment, run(experiment)


class TestTraining:
    @pytest.mark.parametrize(
        ("weights", "objective", "outputs", "covariance"),
        [("gaussian", "ropd", 2, True), ("gaussian", "vi", 2, False), ("bernoulli", "ropd", 1, False)],
    )
    def test_side_by_side_is_one_by_one_by_the_public_loss(self, weights, objective, outputs, covariance):
        config = {**CONFIG, "weights": weights, "objective": objective, "covariance": covariance}
        many = [part(seed, outputs) for seed in range(3)]
        found, curves = fit(many, [3, 4, 5], config, silent)
        for given, seed, fitted, curve in zip(many[:2], [3, 4], found[:2], curves[:2], strict=True):
            (alone,), _ = fit([given], [seed], config, silent)
            losses = self.reference(given, seed, config)
            net, likelihood = losses.pop(), losses.pop()
            for other, noise in ((alone.posterior, alone.likelihood), (net.posterior(), likelihood)):
                for name, mean in fitted.posterior.mean.items():
                    torch.testing.assert_close(mean, other.mean[name], rtol=2e-4, atol=2e-5)
                    torch.testing.assert_close(
                        fitted.posterior.variance[name], other.variance[name], rtol=5e-4, atol=1e-7
                    )
                torch.testing.assert_close(
                    fitted.likelihood.noise_precision.flatten(),
                    noise.noise_precision.detach().flatten(),
                    rtol=1e-4,
                    atol=0,
                )
            pieces = np.array(losses).reshape(CURVE, -1).mean(1)
            assert curve == pytest.approx(pieces.tolist(), rel=1e-4)

    def reference(self, given, seed, config):
        """One network, with ``fawn_loss`` and torch's own scheduler: losses, then likelihood and network."""
        x, y = given.train
        generator = torch.Generator().manual_seed(seed)
        model = nn.Sequential(nn.Linear(3, 7), nn.ReLU(), nn.Linear(7, y.shape[1]))
        with torch.no_grad():
            for layer in (model[0], model[2]):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator) / layer.in_features**0.5)
                layer.bias.zero_()
        net = ba.fawn(model, weights=config["weights"], initial_std=0.1, covariance=config["covariance"])
        likelihood = ba.Gaussian(torch.full((y.shape[1],), 1 / 0.09), learned=True)
        learned = [p for p in [*net.parameters(), *likelihood.parameters()] if p.requires_grad]
        optimizer = torch.optim.Adam(learned, lr=0.01)
        steps = config["iterations"]
        scheduler = torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda t: 1.0 if 2 * t < steps else (1 + math.cos(math.pi * (2 * t / steps - 1))) / 2
        )
        order, losses = torch.Generator().manual_seed(seed), []
        while len(losses) < steps:
            permutation = torch.randperm(50, generator=order)
            for batch in (permutation[:16], permutation[16:32], permutation[32:48]):
                if len(losses) == steps:
                    break
                optimizer.zero_grad()
                loss = net.loss(x[batch], y[batch], likelihood=likelihood, num_data=50, objective=config["objective"])
                loss.backward()
                optimizer.step()
                scheduler.step()
                losses.append(loss.item())
        return [*losses, likelihood, net]

    def test_parameters_are_drawn_as_the_paper_says_if_that_is_asked_for(self):
        options = {"weights": "bernoulli", "scales": "inputs", "hidden": 400, "drawn_std": 0.2}
        net = Member(20, 1, 3, {**CONFIG, **options}).net
        for scale, logit in (net.weights._of(name) for name in ("0.weight", "2.weight")):
            assert scale.shape == (1, logit.shape[1])
            assert abs(logit.mean().item()) < 4 * 0.2 / logit.numel() ** 0.5
            assert logit.std().item() == pytest.approx(0.2, rel=4 / (2 * logit.numel()) ** 0.5)

    def test_a_minibatch_larger_than_the_data_is_all_of_them(self):
        chosen = next(minibatches(10, 128, [0, 1]))
        assert chosen.shape == (2, 10)
        assert all(sorted(line) == list(range(10)) for line in chosen.tolist())
        assert chosen[0].tolist() != chosen[1].tolist()

    def test_an_epoch_has_no_row_twice(self):
        stream = minibatches(50, 16, [7])
        seen = torch.cat([next(stream)[0] for _ in range(3)]).tolist()
        assert len(set(seen)) == 48

    def test_the_step_size_decays_in_the_second_half(self):
        assert [decay(done) for done in (0.0, 0.49, 0.75)] == pytest.approx([1.0, 1.0, 0.5])
        assert decay(1.0) == pytest.approx(0.0, abs=1e-15)

    def test_a_loss_that_is_not_finite_is_an_error(self):
        given = part(0)
        given.train[1][3] = math.nan
        with pytest.raises(FloatingPointError, match="loss must be finite"):
            fit([given], [0], CONFIG, silent)


class TestScores:
    def by_hand(self, given, fitted):
        """Mean and covariance of every held-out point in original units, noise included, from the paper's formulas."""
        q = fitted.posterior
        mean = {name: value.double().numpy() for name, value in q.mean.items()}
        var = {name: value.double().numpy() for name, value in q.variance.items()}
        x = given.x.double().numpy()
        noise = 1.0 / fitted.likelihood.noise_precision.double().numpy().flatten()
        scale, shift = given.scaler.std.numpy(), given.scaler.mean.numpy()
        centers, covariances = [], []
        for point in x:
            m = mean["0.weight"] @ point + mean["0.bias"]
            s = np.sqrt(var["0.weight"] @ point**2 + var["0.bias"])
            a = m / s
            first = m * stats.norm.cdf(a) + s * stats.norm.pdf(a)
            second = (m**2 + s**2) * stats.norm.cdf(a) + m * s * stats.norm.pdf(a)
            w = mean["2.weight"]
            covariance = (w * (second - first**2)) @ w.T
            covariance += np.diag(var["2.weight"] @ second + var["2.bias"] + noise)
            centers.append(shift + scale * (w @ first + mean["2.bias"]))
            covariances.append(covariance * np.outer(scale, scale))
        return np.array(centers), np.array(covariances), noise, scale

    def test_scores_and_covariances_are_those_by_hand(self, case):
        given, fitted, config = case
        centers, covariances, noise, scale = self.by_hand(given, fitted)
        y = given.y.double().numpy()
        full = -np.mean(
            [stats.multivariate_normal(m, c).logpdf(t) for m, c, t in zip(centers, covariances, y, strict=True)]
        )
        sds = np.sqrt(np.diagonal(covariances, axis1=1, axis2=2))
        single = -stats.norm(centers, sds).logpdf(y).sum(1).mean()
        rmse = np.sqrt(np.mean((centers - y) ** 2))
        assert abs(full - single) > 0.01  # else the two are not told apart
        own = scores(fitted, given, config)
        assert own["nll"] == pytest.approx(full, rel=1e-4)
        assert scores(fitted, given, {**config, "covariance": False})["nll"] == pytest.approx(single, rel=1e-4)
        assert own["rmse"] == pytest.approx(rmse, rel=1e-4)
        np.testing.assert_allclose(own["noise_sd"], np.sqrt(noise) * scale, rtol=1e-4)
        assert float(own["sd"]) ** 2 == pytest.approx(np.mean(sds**2), rel=1e-4)
        share = 1 - np.mean(noise * scale**2) / np.mean(sds**2)
        assert float(own["epistemic"]) == pytest.approx(share, rel=1e-3)
        found = together(fitted, given)
        assert found["nll_together"] == pytest.approx(full, rel=1e-4)
        assert found["nll_independent"] == pytest.approx(single, rel=1e-4)
        assert float(found["log_scale"]) == pytest.approx(np.log(scale).sum(), rel=1e-6)
        np.testing.assert_allclose(found["predicted"], covariances.mean(0) / np.outer(scale, scale), rtol=1e-3)
        residual = (y - centers) / scale
        np.testing.assert_allclose(found["observed"], residual.T @ residual / len(residual), rtol=1e-3)

    def test_sampling_agrees(self, case):
        given, fitted, config = case
        found = scores(fitted, given, config)
        assert found["sampled_nll"] == pytest.approx(found["nll"], abs=0.1)
        assert found["sampled_rmse"] == pytest.approx(found["rmse"], rel=0.03)
        # Whole networks, by the library: the same mixture with more variance of its own.
        drawn = ba.predict(
            fitted.model, fitted.posterior, given.x, likelihood=fitted.likelihood, mc_samples=4_000, seed=1
        ).rescale(given.scaler.mean, given.scaler.std)
        mixture = sampled(fitted, given, 2_000, 0)
        assert ba.metrics.nll(drawn, given.y) == pytest.approx(ba.metrics.nll(mixture, given.y), abs=0.02)
        torch.testing.assert_close(drawn.mean, mixture.mean, rtol=0, atol=0.1)
        torch.testing.assert_close(drawn.variance, mixture.variance, rtol=0.2, atol=0)

    def test_what_is_compared_is_without_noise(self, case):
        given, fitted, _ = case
        moments = predictive(fitted, given)
        assert (moments.epistemic < moments.variance).all()


class TestGaussianProcess:
    def test_it_is_that_of_scikit_learn(self):
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

        given = part(2, size=40)
        process = gp.Process(*given.train)
        theta = torch.tensor([0.3, -0.2, 0.9, 0.4, -0.7, 0.2, -1.5], dtype=torch.float64)
        a, b, c, noise = theta[3:].exp().tolist()
        kernel = ConstantKernel(a) * RBF(theta[:3].exp().numpy()) + ConstantKernel(b) * DotProduct(math.sqrt(c))
        regressor = GaussianProcessRegressor(kernel + WhiteKernel(noise), alpha=0.0, optimizer=None)
        regressor.fit(*(values.double().numpy() for values in given.train))
        value, slope = process.log_marginal_likelihood(theta)
        theirs, slopes = regressor.log_marginal_likelihood(regressor.kernel_.theta, eval_gradient=True)
        assert value.item() == pytest.approx(theirs, rel=1e-10)
        # Their order: smooth, lengths, linear, the root of the constant, noise.
        mine = slope[[3, 0, 1, 2, 4, 5, 6]].numpy() * [1, 1, 1, 1, 1, 2, 1]
        np.testing.assert_allclose(mine, slopes, rtol=1e-8)
        mean, variance = process.predict(theta, given.x)
        want, sd = regressor.predict(given.x.double().numpy(), return_std=True)
        np.testing.assert_allclose(mean[:, 0], want, rtol=1e-8)
        np.testing.assert_allclose(variance[:, 0], sd**2, rtol=1e-8)

    def test_the_best_start_is_taken_and_scored_in_original_units(self):
        given = part(2, size=40)
        (found,) = gp.gp([given], {"restarts": 2, "seed": 0}, silent)
        assert len(found["log_marginal_likelihoods"]) == 3
        process, theta = gp.Process(*given.train), torch.as_tensor(found["hyperparameters"])
        value, slope = process.log_marginal_likelihood(theta)
        assert value.item() == pytest.approx(max(found["log_marginal_likelihoods"]), rel=1e-9)
        inside = [low < t < high for t, (low, high) in zip(theta.tolist(), process.bounds, strict=True)]
        assert slope[inside].abs().max() < 0.05
        mean, variance = process.predict(theta, given.x)
        scale = given.scaler.std
        density = stats.norm(given.scaler.mean + scale * mean, scale * variance.sqrt()).logpdf(given.y.double())
        assert found["nll"] == pytest.approx(-density.mean(), rel=1e-8)


class TestNumbers:
    def test_deviations_and_errors(self):
        found = mean_and_sd([1.0, 2.0, 4.0], 3)
        assert (found.mean, found.error) == pytest.approx((7 / 3, math.sqrt(7 / 3)))
        assert standard_error([1.0, 2.0, 4.0]) == pytest.approx(math.sqrt(7) / 3)
        assert mean_and_sd([1.0]).error is standard_error([1.0]) is None

    @pytest.mark.parametrize(("mean", "verdict"), [(-2.0, True), (1.09, True), (1.11, False), (2.0, False)])
    def test_reached_is_at_most_one_standard_error_of_the_papers_ten_splits(self, mean, verdict):
        paper = Number(1.0, 0.1 * math.sqrt(10))
        assert reached(Number(mean, 9.0), paper) is verdict
        assert in_errors(Number(mean), paper) == pytest.approx((mean - 1.0) / 0.1)

    def test_no_verdict_without_a_deviation(self):
        assert reached(Number(1.0), Number(1.0)) is None
        assert in_errors(Number(None), Number(1.0, 0.1)) is None

    def test_correlations(self):
        found = correlations(np.array([[4.0, -3.0], [-3.0, 9.0]]))
        np.testing.assert_allclose(found, [[1.0, -0.5], [-0.5, 1.0]])


class TestStatistics:
    def test_samples_of_the_gaussian_itself_pass(self):
        samples = np.random.default_rng(0).normal(3.0, 2.0, 20_000)
        found = statistics(samples, 3.0, 2.0)
        assert abs(found["mean_error"]) < 4 / math.sqrt(20_000)
        assert abs(found["variance_ratio"] - 1) < 4 * math.sqrt(2 / 20_000)
        assert abs(found["skewness"]) < 4 * math.sqrt(6 / 20_000)
        assert abs(found["kurtosis"]) < 4 * math.sqrt(24 / 20_000)
        assert found["p"] > 0.01
        assert 0.0 < found["rejected_by_100"] < 0.12

    def test_another_distribution_is_told(self):
        samples = np.random.default_rng(0).gamma(4.0, 1.0, 20_000)
        found = statistics(samples, 4.0, 2.0)
        assert found["skewness"] == pytest.approx(1.0, abs=0.08)
        assert found["kurtosis"] == pytest.approx(1.5, abs=0.35)
        assert found["p"] < 1e-20
        exact = np.abs(stats.gamma(4.0).cdf(g := np.linspace(0, 20, 9999)) - stats.norm(4.0, 2.0).cdf(g)).max()
        assert found["ks"] == pytest.approx(exact, abs=0.015)
        assert found["rejected_by_1000"] > 0.8 > found["rejected_by_100"]
        assert statistics(samples + 0.2, 4.0, 2.0)["mean_error"] == pytest.approx(0.1, abs=0.03)
        assert statistics(samples, 4.0, 4.0)["variance_ratio"] == pytest.approx(0.25, rel=0.05)


@needs_data
class TestUCI:
    def test_every_method_has_its_scores(self, uci):
        _, results = uci
        methods = ("vi", "ropd", "bern", "bern-inputs")
        assert set(results) == {*(f"{m}-{d}" for m in methods for d in ("wine", "yacht")), "gp-yacht"}
        for key, result in results.items():
            assert len(result.result["splits"]) == 2
            assert all(0 < split["rmse"] < 30 for split in result.result["splits"])
            if not key.startswith("gp"):
                assert np.shape(result.result["training_loss"]) == (2, CURVE)
        assert len({json.dumps(results[f"{m}-wine"].result["splits"]) for m in methods}) == 4
        epistemic = {m: results[f"{m}-wine"].result["splits"][0]["epistemic"] for m in methods}
        assert epistemic["vi"] < epistemic["ropd"]

    def test_the_page_has_the_papers_numbers_beside(self, uci):
        experiment, results = uci
        found = pages.write(experiment)
        (wine, yacht) = rows(found, "FAWN-ROPD: test NLL")
        own = [split["nll"] for split in results["ropd-yacht"].result["splits"]]
        assert yacht[1].mean == pytest.approx(np.mean(own))
        assert yacht[1].error == pytest.approx(np.std(own, ddof=1))
        assert str(yacht[3]) == "0.336 ± 0.271"
        assert yacht[4].mean == pytest.approx((np.mean(own) - 0.336) / 0.271 * math.sqrt(10))
        assert yacht[5] == "no"
        assert str(wine[3]) == "0.908 ± 0.078"
        assert [row[0] for row in rows(found, "GP: test NLL")] == ["yacht"]
        text = (experiment.folder / "README.md").read_text()
        assert "1.483 ± 0.018" in text  # PBP
        assert (experiment.folder / "nll.png").is_file()

    def test_protein_has_five_splits(self):
        units = {unit.key: unit.config for unit in FawnUCI().units()}
        assert len(units) == 40
        assert (units["ropd-protein"]["splits"], units["ropd-naval"]["splits"]) == (5, 10)
        assert units["bern-boston"]["weights"] == "bernoulli"
        assert (units["vi-boston"]["objective"], units["bern-boston"]["objective"]) == ("vi", "ropd")
        own = {"method": "bern-inputs", "scales": "inputs", "drawn_std": 0.2}
        assert units["bern-inputs-boston"] == {**units["bern-boston"], **own}


@needs_data
class TestMultioutput:
    def test_each_method_is_scored_by_its_own_density(self, multioutput):
        _, results = multioutput
        assert set(results) == {"ropd-energy", "co-energy", "ropd-jura", "co-jura"}
        assert len(results["co-jura"].result["splits"]) == 1
        for key, result in results.items():
            own = "nll_together" if key.startswith("co") else "nll_independent"
            for split in result.result["splits"]:
                assert split["nll"] == split[own]
                assert split["nll_together"] != split["nll_independent"]
                assert len(split["noise_sd"]) == (2 if "energy" in key else 7)

    def test_the_page_has_the_papers_numbers_beside(self, multioutput):
        experiment, results = multioutput
        found = pages.write(experiment)
        nll = {key: [split["nll"] for split in result.result["splits"]] for key, result in results.items()}
        gain = {row[0]: row for row in rows(found, "Co-FAWN less")}
        changes = np.subtract(nll["co-energy"], nll["ropd-energy"])
        assert gain["energy"][1].mean == pytest.approx(changes.mean())
        assert gain["energy"][1].error == pytest.approx(changes.std(ddof=1) / math.sqrt(2))
        assert gain["energy"][2] == f"{(changes < 0).sum()} of 2"
        assert gain["jura"][3].mean == pytest.approx(8.6396 - 11.1407)
        beside = rows(found, "Test NLL")
        assert [row[1] for row in beside] == ["FAWN-ROPD", "Co-FAWN"] * 2
        shift = results["co-jura"].result["splits"][0]["log_scale"]
        assert beside[3][3].mean - beside[3][4].mean == pytest.approx(shift)
        assert beside[3][6].mean == 8.6396
        assert (experiment.folder / "correlations.png").is_file()

    def test_jura_is_seven_metals_by_place(self):
        data = ba.data.load("jura")
        (published,) = multioutput_parts("jura", 10)
        assert (published.train[0].shape, published.y.shape) == ((259, 2), (100, 7))
        assert torch.equal(published.y, data.y_test)
        for divided in multioutput_parts("jura-random", 2):
            assert (len(divided.train[0]), len(divided.x)) == (323, 36)
            train = divided.scaler.inverse(divided.train[1])
            both = torch.cat([train, divided.y]).double().sort(0).values
            torch.testing.assert_close(both, data.y.double().sort(0).values, rtol=1e-4, atol=1e-4)
        one, other = multioutput_parts("jura-random", 2)
        assert not torch.equal(one.y, other.y)


@needs_data
def test_histograms_and_their_table(tmp_path):
    experiment = short(FawnHistogram, tmp_path, dataset="yacht", iterations=40, samples=1_000, shown=3)
    results = run(experiment)
    assert set(results) == {"bernoulli", "gaussian"}
    for result in results.values():
        assert len(result.result["points"]) == 31
        shown = [result.result["points"][h["point"]]["mean"] for h in result.result["histograms"]]
        means = [point["mean"] for point in result.result["points"]]
        assert shown == sorted(shown)
        assert (shown[0], shown[-1]) == (min(means), max(means))
        for histogram in result.result["histograms"]:
            low, high = histogram["edges"]
            assert sum(histogram["density"]) * (high - low) / 60 == pytest.approx(1.0)
        # With Gaussian weights, one hidden layer and certain inputs, mean and variance are exact.
        largest = max(abs(point["mean_error"]) for point in result.result["points"])
        assert largest < (5 / math.sqrt(1_000) if result.unit == "gaussian" else 0.5)
        ratios = [point["variance_ratio"] for point in result.result["points"]]
        assert np.mean(ratios) == pytest.approx(1.0, abs=0.1)
    found = pages.write(experiment)
    assert [row[0] for row in rows(found, "All held-out")] == ["Bernoulli weights", "Gaussian weights"]
    assert len(found.figures["histograms"].axes) == 6


@pytest.mark.parametrize("number", [1, 2])
def test_the_papers_numbers_are_those_that_were_read(number):
    source = Path(DATA or "").parent / "paper_results" / f"fawn_table{number}.csv"
    if not DATA or not source.is_file():
        pytest.skip("needs the published numbers beside BAYESADAM_DATA")
    folder = {1: "fawn_uci", 2: "fawn_multioutput"}[number]
    with open(source, newline="") as theirs, open(HERE / folder / "paper.csv", newline="") as ours:
        known = list(csv.DictReader(theirs))
        copied = list(csv.DictReader(ours))
    assert copied
    assert all(row in known for row in copied)
