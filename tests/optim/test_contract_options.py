"""Hyper-parameters: what is refused, by one clear error, what is taken from files and numpy, and the registry."""

import contextlib
import math
import re

import numpy as np
import pytest
import torch

import bayesadam as ba
import bayesadam.population
from bayesadam.optim import OPTIMIZERS
from optim.methods import RATES, Method, every_method, make_net, methods, train, variance_of

BAD = [
    ("lr", -0.1, "a number or a 1-element tensor, finite and at least 0"),
    ("lr", torch.ones(2), "a number or a 1-element tensor"),
    ("lr", math.nan, "a number or a 1-element tensor"),
    ("betas", (0.9, 1.0), "a pair of numbers in [0, 1)"),
    ("betas", 0.9, "a pair of numbers"),
    ("num_data", 0, "a positive, finite number"),
    ("num_data", None, "a positive, finite number"),
    ("mc_samples", 0, "a whole number of at least 1"),
    ("mc_samples", 1.5, "a whole number of at least 1"),
    ("seed", -1, "an integer in [0, 2**64)"),
    ("seed", 0.5, "an integer"),
    ("antithetic", 1, "True or False"),
    ("maximize", "no", "True or False"),
    ("nonfinite", "ignore", "'raise' or 'skip'"),
    ("compile", "yes", "True or False"),
    ("initial_precision", -1.0, "a positive, finite number"),
    ("initial_precision", 1e-3, "at least prior_precision="),
    ("prior_precision", 0.0, "a positive, finite number"),
    ("prior_precision", math.inf, "a positive, finite number"),
    ("temperature", 1.5, "in [0, 1]"),
    ("temperature", -0.1, "in [0, 1]"),
]


@methods(["vadam", "ivon", "vogn", "von exact"])
@pytest.mark.parametrize(("name", "value", "rule"), BAD, ids=[f"{name}={value}" for name, value, _ in BAD])
def test_bad_hyperparameters(method, name, value, rule):
    with pytest.raises(ValueError, match=f"^{name} must be {re.escape(rule)}.*, got "):
        method(make_net(), **{name: value})


OF_SOME = [
    ("vadagrad", {"initial_precision": None}, ValueError, "initial_precision must be a positive, finite number"),
    ("vadagrad", {"temperature": 1.0}, TypeError, "temperature"),
    ("bayesadam", {"total_steps": -1}, ValueError, "total_steps must be a positive, finite number, got -1"),
    ("ngvi", {"lr": 1.5}, ValueError, "lr must be at most 1, got 1.5"),
    ("vadam", {"mc_samples": 3, "antithetic": True}, ValueError, "mc_samples must be even when antithetic=True, got 3"),
    ("vogn", {"curvature": "squares"}, ValueError, "curvature must be a PerExampleSquares of the model, got 'squares'"),
    ("von", {"hessian": "diagonal"}, ValueError, "hessian must be one of ('reparameterized', 'exact', 'hutchinson')"),
    ("von", {"correction": "none"}, ValueError, "correction must be one of ('elementwise', 'backtracking', None)"),
    ("van", {"probes": 1.5}, ValueError, "probes must be a whole number of at least 1, got 1.5"),
]


@pytest.mark.parametrize(("key", "options", "error", "message"), OF_SOME)
def test_bad_options_of_one_method(key, options, error, message):
    with pytest.raises(error, match=re.escape(message)):
        Method(key)(make_net(), **options)


IN_GROUPS = [
    ({"lr": -1.0}, "lr must be"),
    ({"perturb": "no"}, "perturb must be True or False"),
    ({"seed": 3}, "seed must be the same in all groups, got 3"),
    ({"mc_samples": 2}, "mc_samples must be the same in all groups, got 2"),
    ({"hessian": "exact"}, "hessian must be the same in all groups, got 'exact'"),
    ({"correction": "backtracking"}, "correction must be the same in all groups, got 'backtracking'"),
    (
        {"weight_decay": 1e-4},
        r"weight_decay must be given as a prior \(ba.param_groups\(.*\) converts it\), got 0.0001",
    ),
]


def test_a_parameter_that_is_there_twice_is_refused():
    net = make_net()
    with (
        pytest.raises(ValueError, match=r"^params must have every parameter once .*, got one twice"),
        pytest.warns(UserWarning, match="duplicate parameters"),  # PyTorch's, which trains it with two steps
    ):
        ba.Vadam([net[0].weight, net[0].weight], num_data=10)


def test_a_prior_of_vadagrad_is_refused():
    net = make_net()
    for groups in (
        ba.param_groups(net, prior_precision=7.0),
        [{"params": net.parameters(), "prior_precision": "none"}],
    ):
        with pytest.raises(
            ValueError, match=r"^prior_precision must not be given to VadaGrad, which has no prior, got "
        ):
            ba.VadaGrad(groups, num_data=5, initial_precision=3.0)


@pytest.mark.parametrize(("options", "message"), IN_GROUPS)
def test_a_bad_group_is_refused_and_not_added(options, message):
    net = make_net()
    opt = Method("von")(net, net[0].named_parameters("0"))
    with pytest.raises(ValueError, match=message):
        opt.add_param_group({"params": net[2].named_parameters("2"), **options})
    assert len(opt.param_groups) == 1
    train(net, opt, 1)


AS_PYTHONS = [
    ("betas", [0.9, 0.99], (0.9, 0.99)),
    ("betas", np.array([0.9, 0.99]), (0.9, 0.99)),
    ("num_data", np.int64(40), 40),
    ("lr", np.float64(0.01), 0.01),
    ("mc_samples", 2.0, 2),
    ("mc_samples", np.int64(2), 2),
    ("seed", np.uint32(3), 3),
    ("maximize", np.False_, False),
]


@pytest.mark.parametrize(("name", "value", "taken"), AS_PYTHONS, ids=repr)
def test_numbers_from_files_and_numpy_are_taken_as_pythons(name, value, taken):
    net = make_net()
    opt = Method("vadam")(net, net[0].named_parameters("0"), **{name: value})
    opt.add_param_group({"params": list(net[2].named_parameters("2")), name: value})
    for group in opt.param_groups:
        assert group[name] == taken
        assert type(group[name]) is type(taken)
    train(net, opt, 1)


@every_method
def test_the_posterior_starts_at_the_initial_precision(method):
    opt = method(make_net(), initial_precision=123.0)
    torch.testing.assert_close(variance_of(opt), torch.full((50,), 1 / 123.0).double(), rtol=1e-5, atol=0)
    if method.cls.has_prior and not method.learned:
        opt = method(make_net(), num_data=77)
        torch.testing.assert_close(variance_of(opt), torch.full((50,), 1 / 77.0).double(), rtol=1e-5, atol=0)


def test_the_suite_covers_every_exported_optimiser():
    found = (getattr(ba, name) for name in ba.__all__)
    exported = {one for one in found if isinstance(one, type) and issubclass(one, torch.optim.Optimizer)}
    assert exported | {ba.population.BayesByBackprop} == {*OPTIMIZERS.values(), ba.DenseVON}
    assert OPTIMIZERS.keys() == RATES.keys()


@every_method
def test_extreme_numbers_are_refused_by_name_or_by_the_first_step(method):
    """Not by errors of Python's arithmetic."""
    names = [
        "lr",
        "num_data",
        *["prior_precision", "temperature"] * method.cls.has_prior,
        *["batch_size"] * method.learned,
    ]
    for name in names:
        for value in (1e300, 1e-300):
            net = make_net()
            with contextlib.suppress(ValueError, FloatingPointError):
                options = {"total_steps": 10} if method.learned else {}
                train(net, method(net, **{**options, name: value}), 2)
