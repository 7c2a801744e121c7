"""The published protocol of Khan et al. 2018, Table 1, made short."""

import math
import os
from dataclasses import replace

import pytest
import torch
from torch import nn

import bayesadam as ba
from experiments import runner
from experiments.experiment import in_order
from experiments.results import Store, counted, finished
from experiments.uci_table1 import dropout, dropout_training, ropd
from experiments.uci_table1.curves import curves
from experiments.uci_table1.experiment import UCI, report
from experiments.uci_table1.protocol import Part, Precisions, fit, folds, network, splits
from experiments.uci_table1.report import fits

pytestmark = pytest.mark.skipif(not os.environ.get("BAYESADAM_DATA"), reason="needs BAYESADAM_DATA: the UCI data sets")


class Short(UCI):
    """Two splits of two data sets, few rounds and epochs."""

    def __init__(self, folder):
        grid = {"epochs": 2, "rates": [0.01, 0.1], "validation_samples": 3, "evaluation_samples": 4}
        short = {"splits": 2, "rounds": 2, "startup": 1, "folds": 2, "epochs": 2, "evaluation_samples": 4}
        super().__init__(("wine", "yacht"), grid, **short)
        self._folder = folder

    @property
    def folder(self):
        return self._folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("uci")
    experiment = Short(folder)
    summary = runner.run(experiment, jobs=1, runs=folder / "runs")
    return experiment, summary, finished(experiment.units(), Store.of(experiment, folder / "runs"))


METHODS = ("vadam", "vprop", "bbvi", "vogn", "ivon", "ropd", "dropout")


def test_all_units_end_with_scores_of_every_split(ran):
    experiment, summary, results = ran
    assert summary.failed == {}
    expected = {f"{method}-{dataset}" for method in METHODS for dataset in ("wine", "yacht")}
    expected |= {"vadam-joint-wine", "bbvi-joint-yacht"}
    assert set(results) == expected
    assert (summary.finished, summary.units) == (16, 16)
    assert {unit.key for unit in experiment.units()} - expected == {"4000-epochs-wine", "4000-epochs-yacht"}
    for key, result in results.items():
        assert len(result.result["splits"]) == 2
        for split in result.result["splits"]:
            assert 0 < split["rmse"] < 30
            assert math.isfinite(split["log_likelihood"])
            assert ("joint_log_likelihood" in split) == (not key.startswith("ropd"))
        if key.startswith("dropout"):
            continue
        assert [split["stopped"] for split in result.result["splits"]] == ["epochs"] * 2
        assert len(result.result["curves"]["rmse"]) == 2
        last = sum(split["rmse"] for split in result.result["splits"]) / 2
        assert result.result["curves"]["rmse"][-1] == pytest.approx(last, rel=1e-12)


def test_dropout_takes_the_best_pair_of_the_grid(ran):
    for split in ran[2]["dropout-yacht"].result["splits"]:
        assert split["rate"] in (0.01, 0.1)
        assert split["noise_precision"] in dropout.NOISE_PRECISIONS["yacht"]


def test_fits_are_counted(ran):
    results = ran[2]
    assert [fits(results[f"{method}-yacht"]) for method in METHODS] == [10, 2, 10, 10, 10, 10, 14]


def test_vprop_takes_the_precisions_of_vadam_and_what_is_tuned_matters(ran):
    _, _, results = ran

    def precisions(key):
        return [(split["log_noise"], split["log_prior"]) for split in results[key].result["splits"]]

    assert precisions("vprop-wine") == precisions("vadam-wine")
    for method, dataset in (("vadam", "wine"), ("bbvi", "yacht")):
        joint, pointwise = (
            [split["validation_log_likelihood"] for split in results[key].result["splits"]]
            for key in (f"{method}-joint-{dataset}", f"{method}-{dataset}")
        )
        assert joint != pointwise


def test_the_report_puts_the_papers_numbers_beside(ran):
    experiment, _, results = ran
    found = report(results, ("wine", "yacht"))
    text = "\n".join(table.markdown() for table in found.tables)
    assert "| yacht |" in text
    assert "1.32 ± 0.10" in text  # Table 1, RMSE
    assert "-1.70 ± 0.03" in text  # Table 1, log-likelihood
    assert "learning-curves" in experiment.report(results).figures


def test_curves_leave_out_the_epochs_whose_error_is_not_finite(ran):
    result = ran[2]["ivon-yacht"]
    mean, error = [None, None, 8.0, 4.0], [None, None, 1.0, None]
    lines = {**result.result, "curves": {"rmse": mean}, "curves_standard_error": {"rmse": error}}
    figure = curves({"ivon-yacht": replace(result, result=lines)}, ("yacht",), {})
    (axis,) = figure.axes
    assert axis.get_ylim() == pytest.approx((0.8 * 7.0, 1.1 * 9.0))
    assert axis.lines[0].get_ydata().tolist()[2:] == [8.0, 4.0]


def test_the_parts_are_the_published_ones_standardised_by_their_training_part():
    for split in splits("yacht", 2):
        x, y = split.train
        assert (len(x), len(split.x)) == (277, 31)
        assert x.mean(0).abs().max() < 1e-5
        assert y.std() == pytest.approx(1.0, abs=1e-5)
    for parts in folds("yacht", 2, 5, 123):
        assert sum(len(part.x) for part in parts) == 277
        assert all(len(part.x) + len(part.train[0]) == 277 for part in parts)
        assert all(part.train[1].mean().abs() < 1e-5 for part in parts)


def test_committed_results_of_the_published_protocol_are_still_valid():
    experiment = UCI()
    units = in_order(experiment.units())
    results = finished(units, Store.of(experiment))
    assert {f"{method}-{dataset}" for method in ("vadam", "vprop") for dataset in dropout.NOISE_PRECISIONS} <= set(
        results
    )
    done, there = counted(units, results)
    assert there == 8 * 7 + 5
    assert done >= 20


def part(seed, size=60, inputs=3):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(size + 20, inputs, generator=generator)
    y = 5.0 + 3.0 * x[:, :1].sin() + 0.3 * torch.randn(size + 20, 1, generator=generator)
    return Part.of((x[:size], y[:size]), (x[size:], y[size:]))


class TestPosteriorsStart:
    def start(self, **options):
        config = {"hidden": 4, "epochs": 1, "batch_size": 60, "lr": 0.0, "betas": [0.9, 0.99], "mc_samples": 1}
        given = [part(0), part(1)]
        candidates = [Precisions(0.0, 4.0), Precisions(0.0, 0.0)]
        nets = fit(given, candidates, [0, 1], {**config, **options})
        return [float(nets.variance["0.weight"][member].mean()) for member in (0, 1)]

    def test_at_the_given_precision_even_if_that_is_wider_than_the_prior(self):
        assert self.start(method="bbb", initial_precision=10.0) == pytest.approx([0.1, 0.1], rel=1e-5)

    def test_with_a_curvature_per_data_point(self):
        found = self.start(method="ivon", initial_hessian=2.0, betas=[0.9, 1.0 - 1e-9])
        assert found == pytest.approx([1 / (math.exp(4.0) + 120), 1 / 121], rel=1e-3)


class TestROPD:
    def test_the_objective_is_the_density_and_the_divergence(self):
        given = part(2)
        net = ba.fawn(network(given, 5), prior=1.0, initial_std=0.2)
        objective = ropd.Density(4.0, 0.3, 60)
        x, y = given.train
        found = ba.predict(net.weights.model, net.posterior(), x, likelihood=ba.Gaussian(4.0), method="moments")
        torch.testing.assert_close(-objective.losses(net, x, y), found.log_prob(y), rtol=1e-5, atol=1e-6)
        expected = net.posterior().kl_divergence(0.3) / 60
        torch.testing.assert_close(objective.penalty(net).detach(), expected.double(), rtol=1e-5, atol=0)

    def test_scores_are_those_of_the_trained_networks(self):
        given = [part(3), part(4)]
        config = {"hidden": 5, "epochs": 3, "batch_size": 16, "lr": 0.01, "betas": [0.9, 0.99], "initial_std": 0.05}
        nets = ropd.fit(given, [Precisions(1.0, 0.0), Precisions(2.0, 1.0)], [7, 8], config)
        found = ropd.scores(nets, given)
        for member, own in enumerate(given):
            net = ba.fawn(network(own, 5), prior=1.0)
            net.load_state_dict({name: value[member] for name, value in nets.mean.items()})
            output = net(own.x)
            variance = output.variance + math.exp(-[1.0, 2.0][member])
            mean = (own.scaler.mean + own.scaler.std * output.mean).double()
            density = torch.distributions.Normal(mean, own.scaler.std * variance.sqrt()).log_prob(own.y.double())
            assert found["log_likelihood"][member] == pytest.approx(density.mean().item(), rel=1e-4)
            assert found["rmse"][member] == pytest.approx((mean - own.y).square().mean().sqrt().item(), rel=1e-4)


CONFIG = {"hidden": 6, "epochs": 4, "batch_size": 25, "lr": 0.01, "length_scale": 3.0, "seed": 5}


class TestDropout:
    def fit(self, folder, progress=lambda done: None, **options):
        given = [part(seed) for seed in range(3)]
        candidates = [dropout.Candidate(0.05, 1.0), dropout.Candidate(0.1, 2.0), dropout.Candidate(0.05, 0.5)]
        return dropout.fit(given, candidates, [1, 2, 3], {**CONFIG, **options}, folder, progress)

    def test_without_dropout_it_is_adam_on_the_squared_error_with_decay_of_the_weights(self, tmp_path):
        given = [part(0), part(1)]
        models = [dropout.network(3, 6, 1e-9) for _ in given]
        reference = [dropout.network(3, 6, 0.0) for _ in given]
        for model, other in zip(models, reference, strict=True):
            other.load_state_dict(model.state_dict())
        decay, batches = [0.01, 0.03], []
        dropout_training.train(models, [own.train for own in given], decay, CONFIG, tmp_path / "x.pt", batches.append)
        assert batches == [0.25, 0.5, 0.75, 1.0]
        for model, other, own, strength in zip(models, reference, given, decay, strict=True):
            generator = torch.Generator().manual_seed(5)
            optimizer = torch.optim.Adam(other.parameters(), lr=0.01)
            x, y = own.train
            for _ in range(4):
                for rows in torch.randperm(60, generator=generator).split(25):
                    for width in (3, 6):  # what the masks of both networks take from the generator
                        dropout_training.mask(torch.Size((2, len(rows), width)), 0.5, generator)
                    optimizer.zero_grad()
                    squares = other[1].weight.square().sum() + other[4].weight.square().sum()
                    (nn.functional.mse_loss(other(x[rows]), y[rows]) + strength * squares).backward()
                    optimizer.step()
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5)

    def test_a_run_that_was_killed_goes_on_to_the_same_bits(self, tmp_path, monkeypatch):
        monkeypatch.setattr(dropout_training, "SECONDS", 0.0)
        whole = self.fit(tmp_path / "whole")
        calls = []

        def killed(done):
            calls.append(done)
            if len(calls) == 6:  # in the middle of the second rate
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.fit(tmp_path / "killed", killed)
        resumed = []
        again = self.fit(tmp_path / "killed", resumed.append)
        assert len(resumed) == 3
        for one, two in zip(whole, again, strict=True):
            for a, b in zip(one.parameters(), two.parameters(), strict=True):
                assert torch.equal(a, b)

    @pytest.mark.parametrize("rate", [0.005, 0.1, 0.5])
    def test_masks_drop_at_the_rate_and_keep_the_mean(self, rate):
        count = 400_003
        drawn = dropout_training.mask(torch.Size((count,)), rate, torch.Generator().manual_seed(1))
        dropped = (drawn == 0).double()
        error = math.sqrt(rate * (1 - rate) / count)
        assert abs(dropped.mean().item() - rate) < 4 * error + 2**-16
        assert drawn.max().item() == pytest.approx(1 / (1 - rate), rel=1e-3)
        for lag in (1, 2, 3, 4):
            product = ((dropped[lag:] - rate) * (dropped[:-lag] - rate)).mean().item() / (rate * (1 - rate))
            assert abs(product) < 5 / math.sqrt(count)

    def test_the_last_rows_are_held_out(self):
        (own,) = dropout.held_out("yacht", 1, 0.2)
        data = ba.data.load("uci/yacht", split=0)
        assert (len(own.train[0]), len(own.x)) == (221, 56)
        assert torch.equal(own.y, data.y_train[221:])

    def test_scores_are_gals_formulas(self, tmp_path):
        given = [part(seed) for seed in range(3)]
        candidates = [dropout.Candidate(0.1, 2.0)]
        models = self.fit(tmp_path)
        (found,) = dropout.scores(models[1:2], given[1:2], candidates, 50, 3)
        own = given[1]
        with ba.MCDropout(models[1]).draws(models[1], 3) as put:
            outputs = []
            for number in range(50):
                put(number)
                outputs.append(models[1](own.x).detach())
        outputs = own.scaler.mean + own.scaler.std * torch.stack(outputs).double()
        squares = -0.5 * 2.0 * (own.y - outputs).square()
        density = squares.logsumexp(0) - math.log(50) - 0.5 * math.log(2 * math.pi) + 0.5 * math.log(2.0)
        assert found["log_likelihood"] == pytest.approx(density.mean().item(), rel=1e-4)
        assert found["rmse"] == pytest.approx((outputs.mean(0) - own.y).square().mean().sqrt().item(), rel=1e-4)
