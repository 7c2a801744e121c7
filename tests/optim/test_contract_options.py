"""Hyper-parameters: what is refused, by one clear error, what is taken from files and numpy, and the registry."""

import contextlib
import inspect
import typing

import numpy as np
import pytest
import torch

import bayesadam as ba
import bayesadam.population
from bayesadam.optim import OPTIMIZERS
from optim.methods import RATES, Method, every_method, make_net, train, variance_of

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


def test_what_constructors_declare_is_what_they_take():
    """The keys of the typed dict behind ``**options`` are what help and completion show beside the named arguments."""
    for cls in OPTIMIZERS.values():
        named = inspect.signature(cls.__init__, eval_str=True).parameters
        (typed,) = typing.get_args(named["options"].annotation)
        assert {*typing.get_type_hints(typed)} == inspect.signature(cls).parameters.keys() - named.keys()


@pytest.mark.parametrize(
    ("method", "name"), [("vadam", "clip_radius"), ("bayesadam", "momentum"), ("vadagrad", "prior"), ("ngvi", "eps")]
)
def test_an_unknown_option_is_named(method, name):
    with pytest.raises(TypeError, match=rf"^{name} must be an option of {OPTIMIZERS[method].__name__} \(.*\), got 3$"):
        Method(method)(make_net(), **{name: 3})


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
