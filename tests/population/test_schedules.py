"""Rates that change, and minibatches in other ways: a member is still the single fit with PyTorch's schedulers."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from bayesadam.optim import vadam
from population import conftest
from population.conftest import assert_same, train
from population.problems import F64, RAGGED, models_of, noise_of, regression

EVEN = (13, 11, 12, 15)
OWN = {"lr": [0.01, 0.02, 0.03, 0.04], "betas": [(0.9, 0.99), (0.8, 0.95), (0.5, 0.9), (0.0, 0.97)]}
METHODS = [method for method in population.METHODS if method != "adam"]


def compare(method, sizes, **options):
    options = {"method": method, "epochs": 3, **options}
    return conftest.compare(models_of(), regression(sizes), noise_of(4.0), **options)


def falling(done):
    """Changes fastest at the start, as rates by powers of the number of steps do."""
    return (1.0 + 20.0 * done) ** -0.5


class TestSchedules:
    """By the share of its own training that each member has made."""

    @pytest.mark.parametrize(
        ("method", "sizes", "own"),
        [
            *((method, (EVEN, RAGGED)[i % 2], i % 4 < 2) for i, method in enumerate(METHODS)),
            *(("ngvi", sizes, True) for sizes in (EVEN, RAGGED)),
        ],
    )
    def test_are_those_of_the_schedulers(self, method, sizes, own):
        corrected = {"correction": "elementwise"} if method in ("ngvi", "van", "von") else {}
        compare(method, sizes, lr_schedule=falling, beta_schedule=falling, **(OWN if own else {}), **corrected)

    @pytest.mark.parametrize(
        ("method", "options"),
        [
            ("vadam", {"lr_schedule": falling}),
            ("vadam", {"beta_schedule": falling}),
            ("vadam", {"lr_schedule": lambda done: 1.0 - done, "beta_schedule": falling}),
            ("bayesadam", {"total_steps": 6, "beta_schedule": falling}),
            ("adam", {"lr_schedule": falling, "lr": OWN["lr"]}),
        ],
    )
    def test_each_alone_and_beside_others(self, method, options):
        compare(method, RAGGED, **options)

    @pytest.mark.parametrize("sizes", [EVEN, RAGGED])
    def test_a_beta_out_of_range(self, sizes):
        for schedule, word in ((lambda done: float(done < 0.4), "1.0"), (lambda done: 10.0, "-4.0")):
            with pytest.raises(ValueError, match=r"^beta_schedule must keep betas\[1\] in \[0, 1\), got .*" + word):
                train(models_of(), regression(sizes), noise_of(4.0), epochs=3, betas=(0.9, 0.5), beta_schedule=schedule)


class TestTotalSteps:
    """The option that lets BayesAdam's learning rate fall and its noise grow; by default the length of the training."""

    @pytest.mark.parametrize("sizes", [EVEN, RAGGED])
    @pytest.mark.parametrize("total_steps", [5, [4, 7, 30, 2]])
    def test_equal_the_single_fit(self, sizes, total_steps):
        nets = compare("bayesadam", sizes, total_steps=total_steps)
        plain = compare("bayesadam", sizes)
        assert not torch.equal(nets.mean["0.weight"], plain.mean["0.weight"])

    def test_another_schedule_replaces_that_of_the_learning_rate(self):
        nets = compare("bayesadam", EVEN, total_steps=3, lr_schedule=falling)
        assert not torch.equal(nets.mean["0.weight"], compare("bayesadam", EVEN, total_steps=3).mean["0.weight"])

    def test_a_rule_of_a_user_may_schedule_its_numbers(self):
        class Warm(vadam.VadamRule):
            def numbers(self, group):
                return {"lr": group["lr"] * min(1.0, 0.1 * (1 + group["noise_step"]))}

            def precision(self, state, hp):
                return super().precision(state, hp) / 2

        class WarmVadam(ba.Vadam):
            rule = Warm()

        options = {"lr": OWN["lr"], "mc_samples": 2}
        warm, plain = (compare(method, RAGGED, **options) for method in (WarmVadam, ba.Vadam))
        assert warm.posteriors[0].hyperparameters["method"] == "WarmVadam"
        assert not torch.equal(warm.mean["0.weight"], plain.mean["0.weight"])


class TestReplacement:
    @pytest.mark.parametrize(
        ("method", "batch_size", "steps_per_epoch"),
        [("vadam", 1, 4), ("ivon", 5, 2), ("vogn", 12, 1), ("bbb", 30, 4), ("vprop", 5, 3), ("bayesadam", 15, 3)],
    )
    def test_equals_the_single_fit(self, method, batch_size, steps_per_epoch):
        options = {"mc_samples": 2, "antithetic": True, "steps_per_epoch": steps_per_epoch}
        compare(method, RAGGED, batch_size=batch_size, **options)

    def test_long_epochs_are_gathered_in_pieces(self, monkeypatch):
        whole = compare("vadam", RAGGED, steps_per_epoch=9)
        monkeypatch.setattr("bayesadam.population.batches._GATHERED", 1500)
        assert_same(compare("vadam", RAGGED, steps_per_epoch=9), whole)

    def test_order(self):
        drawn = [population.order(20, seed=seed, epoch=epoch, size=400) for seed in (0, 1) for epoch in (0, 1)]
        assert len({tuple(order) for order in drawn}) == 4
        for order in drawn:
            assert set(order) == set(range(20))
            counts = [(order == i).sum() for i in range(20)]
            assert sum((count - 20) ** 2 / 20 for count in counts) < 43.8  # chi-squared, 19 degrees: p = 0.001
        again = population.order(20, seed=1, epoch=1, size=400)
        assert again.tolist() == drawn[3].tolist()


class TestFullBatch:
    """One minibatch of all data: views of them, in their own order."""

    @pytest.mark.parametrize(
        ("method", "sizes"),
        [*((method, RAGGED) for method in METHODS), *((method, (13,) * 4) for method in ("vadam", "ivon", "vogn"))],
    )
    def test_equals_the_single_fit(self, method, sizes):
        compare(method, sizes, batch_size=20, epochs=5)

    @pytest.mark.parametrize("make", [nn.Sequential, lambda *layers: nn.Sequential(nn.Sequential(*layers))])
    def test_the_data_are_not_written_to(self, make):
        models = models_of(lambda: make(nn.ReLU(inplace=True), nn.Linear(3, 2)).to(F64))
        pair = regression((13,))[0]
        before = [part.clone() for part in pair]
        exact = {"method": "von", "hessian": "exact", "correction": "elementwise"}
        for method in ({}, {"method": "vogn"}, exact):
            nets = train(models, pair, noise_of(4.0), epochs=2, batch_size=13, **method)
            nets.predict(pair[0])
        torch.testing.assert_close(list(pair), before, rtol=0, atol=0)


def test_noise_drawn_ahead_is_the_noise_of_every_step(monkeypatch):
    """However many steps are drawn at a time, and with members that wait."""
    runs = []
    for ahead in (1, 100, 2**16):
        monkeypatch.setattr("bayesadam.population.draws._AHEAD", ahead)
        runs.append(train(models_of(), regression(), noise_of(4.0), epochs=4, mc_samples=2, antithetic=True))
    assert_same(runs[0], runs[1])
    assert_same(runs[0], runs[2])
