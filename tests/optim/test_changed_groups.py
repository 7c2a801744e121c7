"""Hyper-parameters that are changed in the groups while training goes on."""

import copy
import math

import pytest
import torch
from torch import nn

import bayesadam as ba

FIVE = [ba.Vadam, ba.Vprop, ba.IVON, ba.VOGN, ba.VON]


def made(cls, **options):
    torch.manual_seed(0)
    layer = nn.Linear(5, 2)
    if cls is ba.VOGN:
        options["curvature"] = ba.PerExampleSquares(layer)
    elif cls is ba.VON:
        options["hessian"] = "reparameterized"
    return layer, cls(layer.named_parameters(), num_data=64, **options)


def train(layer, opt, steps, *, drop_in=False):
    if drop_in:
        opt.train()
    for step in range(steps):
        x = torch.randn(8, 5, generator=torch.Generator().manual_seed(step))
        opt.zero_grad()
        if drop_in:
            layer(x).square().mean().backward()
        else:
            with opt.sampled_params():
                layer(x).square().mean().backward()
        opt.step()
    opt.eval()


def results(opt):
    q = opt.posterior()
    return [*q.mean.values(), *q.variance.values()]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


class TestPriorPrecision:
    @pytest.mark.parametrize("drop_in", [False, True])
    @pytest.mark.parametrize("compile", [None, False])
    @pytest.mark.parametrize("cls", FIVE)
    def test_a_number_takes_the_place_of_the_prior_from_initial_values(self, cls, compile, drop_in):
        found = []
        for way in ("group", "state", "unchanged"):
            layer, opt = made(cls, prior_precision="init", compile=compile)
            train(layer, opt, 3, drop_in=drop_in)
            if way == "group":
                opt.param_groups[0]["prior_precision"] = 40.0
            elif way == "state":
                for state in opt.state.values():
                    state["prior_precision"] = 40.0
            train(layer, opt, 3, drop_in=drop_in)
            found.append(results(opt))
        assert same(found[0], found[1])
        assert not same(found[0], found[2])

    def test_a_full_covariance_has_it_too(self):
        found = []
        for way in ("group", "state"):
            layer, opt = made(ba.VON, prior_precision="init", covariance="full")
            train(layer, opt, 2)
            if way == "group":
                opt.param_groups[0]["prior_precision"] = 40.0
            else:
                for state in opt.state.values():
                    state["prior_precision"] = 40.0
            train(layer, opt, 2)
            q = opt.posterior()
            found.append([*q.mean.values(), q.variance["weight"]])
        assert same(*found)

    def test_the_prior_from_initial_values_can_be_taken_up_again(self):
        layer, opt = made(ba.IVON, prior_precision="init")
        train(layer, opt, 3)
        other, another = copy.deepcopy((layer, opt))
        another.param_groups[0]["prior_precision"] = 40.0
        assert not same(results(opt), results(another))
        another.param_groups[0]["prior_precision"] = "init"
        train(layer, opt, 3)
        train(other, another, 3)
        assert same(results(opt), results(another))

    @pytest.mark.parametrize("drop_in", [False, True])
    @pytest.mark.parametrize("cls", FIVE)
    def test_initial_values_that_are_not_known_any_more_cannot_be_asked_for(self, cls, drop_in):
        message = r"prior_precision must be a number for parameters whose training began with a number .*, got 'init'"
        layer, opt = made(cls, prior_precision=3.0)
        train(layer, opt, 2)
        other, untouched = copy.deepcopy((layer, opt))
        if cls is ba.VOGN:
            other, untouched = made(cls, prior_precision=3.0)
            train(other, untouched, 2)
        opt.param_groups[0]["prior_precision"] = "init"
        with pytest.raises(ValueError, match=message):
            opt.posterior()
        with pytest.raises(ValueError, match=message):
            train(layer, opt, 1, drop_in=drop_in)
        opt.param_groups[0]["prior_precision"] = 3.0
        opt.eval()
        train(layer, opt, 2)
        train(other, untouched, 2)
        assert same(results(opt), results(untouched))

    def test_a_change_between_a_sample_and_its_step_is_refused_before_anything_changes(self):
        layer, opt = made(ba.Vadam, prior_precision=3.0)
        opt.train()
        layer(torch.ones(8, 5)).square().mean().backward()
        before = [state["mean"].clone() for state in opt.state.values()]
        opt.param_groups[0]["prior_precision"] = "init"
        with pytest.raises(ValueError, match="prior_precision must be a number for parameters"):
            opt.step()
        assert same(before, [state["mean"] for state in opt.state.values()])
        opt.param_groups[0]["prior_precision"] = 3.0
        opt.step()
        assert opt.state[layer.weight]["step"] == 1

    @pytest.mark.parametrize("correction", ["backtracking", "elementwise"])
    def test_priors_from_initial_values_with_back_tracking(self, correction):
        layer, opt = made(ba.VON, prior_precision="init", correction=correction)
        train(layer, opt, 3)
        assert all(value.isfinite().all() for value in results(opt))


LENGTH, RATE = 10, 1e-3


def factor(step):
    """The documented factor of the learning rate in a step, counted from 0."""
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * min(1.0, step / LENGTH)))


def three(lr=RATE, **options):
    """Three weights, the last one frozen, and a Vadam over the first and the last one."""
    weights = [nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(3)]
    weights[2].requires_grad_(False)
    options = {"num_data": 1e9, "batch_size": 10, "total_steps": LENGTH, "prior_precision": 1e-6, **options}
    return weights, ba.Vadam([weights[0], weights[2]], lr, **options)


def step(opt, weights):
    """Make a step along gradients that are always the same; return how many rates of learning each weight moves."""
    before = [w.item() for w in weights]
    with opt.sampled_params():
        sum(w.sum() for w in weights).backward()
    opt.step()
    return [(start - w.item()) / RATE for start, w in zip(before, weights, strict=True)]


class TestLengthOfTheTraining:
    """There is one schedule for all parameters of an optimiser, see ``total_steps``."""

    @pytest.mark.parametrize("compile", [None, False])
    def test_is_that_of_parameters_that_are_added_or_unfrozen_late_too(self, compile):
        weights, opt = three(compile=compile)
        for number in range(LENGTH + 2):
            if number == 4:
                opt.add_param_group({"params": [weights[1]]})
            if number == 8:
                weights[2].requires_grad_(True)
            expected = [factor(number) * (number >= start) for start in (0, 4, 8)]
            assert step(opt, weights) == pytest.approx(expected, rel=1e-4)
        assert [opt.state[w]["step"] for w in weights] == [LENGTH + 2, LENGTH - 2, 4]

    def test_goes_on_while_the_first_parameters_are_frozen(self):
        weights, opt = three()
        for number in range(LENGTH):
            weights[0].requires_grad_(number < 3)
            weights[2].requires_grad_(number >= 3)
            expected = [factor(number) * (number < 3), 0.0, factor(number) * (number >= 3)]
            assert step(opt, weights) == pytest.approx(expected, rel=1e-4)

    def test_does_not_count_samples_and_steps_that_were_given_up(self):
        weights, opt = three(nonfinite="skip")
        for number in range(LENGTH):
            with opt.sampled_params():
                weights[0].sum().backward()
            opt.zero_grad()
            with opt.sampled_params():
                (weights[0].sum() * math.inf).backward()
            opt.step()
            assert step(opt, weights) == pytest.approx([factor(number), 0.0, 0.0], rel=1e-4)
        group = opt.param_groups[0]
        assert (group["noise_step"], group["skipped_steps"], group["discarded_steps"]) == (30, 10, 10)

    @pytest.mark.parametrize("way", ["state dict", "copy", "group"])
    def test_goes_on_where_it_was_after_a_checkpoint(self, way):
        weights, opt = three()
        for _ in range(3):
            with opt.sampled_params():
                weights[0].sum().backward()
            opt.zero_grad()
            step(opt, weights)
        if way == "copy":
            weights, opt = copy.deepcopy((weights, opt))
        elif way == "group":
            opt.add_param_group({"params": [weights[1]]})
        else:
            saved = opt.state_dict()
            values = [w.item() for w in weights]
            weights, opt = three()
            opt.load_state_dict(saved)
            for weight, value in zip(weights, values, strict=True):
                weight.data.fill_(value)
        assert step(opt, weights)[0] == pytest.approx(factor(3), rel=1e-4)
        assert {group["discarded_steps"] for group in opt.param_groups} == {3}


def plain(lr):
    return lr


def in_tensor(lr):
    return torch.tensor(lr)


class TestLearningRate:
    """``total_steps`` makes way for another schedule."""

    @pytest.mark.parametrize("kind", [plain, in_tensor])
    def test_that_is_set_by_hand_is_the_rate_from_then_on(self, kind):
        weights, opt = three(lr=kind(RATE))
        assert step(opt, weights)[0] == pytest.approx(1.0, rel=1e-4)
        assert step(opt, weights)[0] == pytest.approx(factor(1), rel=1e-4)
        opt.param_groups[0]["lr"] = kind(0.5 * RATE)
        assert [step(opt, weights)[0] for _ in range(LENGTH)] == pytest.approx([0.5] * LENGTH, rel=1e-4)

    def test_that_is_filled_in_place_is_the_rate_too(self):
        weights, opt = three(lr=torch.tensor(RATE))
        opt.param_groups[0]["lr"].fill_(0.5 * RATE)
        assert [step(opt, weights)[0] for _ in range(5)] == pytest.approx([0.5] * 5, rel=1e-4)

    def test_of_a_plateau_is_the_rate_once_it_is_reduced(self):
        weights, opt = three()
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, factor=0.5, patience=0)
        expected = [1.0, factor(1), 0.5, 0.25]
        for number, rate in enumerate(expected):
            assert step(opt, weights)[0] == pytest.approx(rate, rel=1e-4)
            scheduler.step(1.0 + number)

    def test_is_that_of_each_group(self):
        weights, opt = three()
        opt.add_param_group({"params": [weights[1]], "lr": 2.0 * RATE})
        opt.param_groups[0]["lr"] = 0.5 * RATE
        step(opt, weights)
        assert step(opt, weights) == pytest.approx([0.5, 2.0 * factor(1), 0.0], rel=1e-4)

    @pytest.mark.parametrize("changed", [False, True])
    def test_is_still_known_after_loading(self, changed):
        weights, opt = three()
        step(opt, weights)
        if changed:
            opt.param_groups[0]["lr"] = 0.5 * RATE
        saved = opt.state_dict()
        weights, opt = three(lr=3.0 * RATE)
        opt.load_state_dict(saved)
        assert step(opt, weights)[0] == pytest.approx(0.5 if changed else factor(1), rel=1e-4)
