"""Checkpoints and posteriors that an earlier version wrote: ``files/optimisers/make.py`` made them."""

import copy
import runpy
from pathlib import Path

import pytest
import torch

import bayesadam as ba
from bayesadam.files import NoDigestWarning

FOLDER = Path(__file__).parents[1] / "files" / "optimisers"
EARLIER = runpy.run_path(str(FOLDER / "make.py"))
METHODS, make, go_on = (EARLIER[name] for name in ("METHODS", "make", "go_on"))
every_file = pytest.mark.parametrize("name", METHODS)


def read(name):
    return torch.load(FOLDER / f"{name.replace(' ', '_')}.pt", weights_only=True)


def earlier_posterior(name):
    with pytest.warns(NoDigestWarning) as said:
        posterior = ba.load_posterior(FOLDER / f"{name.replace(' ', '_')}_posterior.pt")
    assert len(said) == 1
    return posterior


def resumed(name, way, compiled=False):
    file = read(name)[way]
    net, opt = make(name, {"blocks": 2, "drop_in": 1}[way])
    for group in file["optimizer"]["param_groups"]:
        group["compile"] = compiled
    net.load_state_dict(file["model"])
    opt.load_state_dict(file["optimizer"])
    return net, opt, file["expected"]


def assert_close(found, expected):
    """Equal to rounding: the last bits of the noise have changed."""
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-5, atol=1e-7)


@every_file
@pytest.mark.parametrize("way", ["blocks", "drop_in"])
def test_training_goes_on_from_an_earlier_checkpoint(name, way):
    net, opt, expected = resumed(name, way)
    assert opt.param_groups[0]["weights"] == {"blocks": "mean", "drop_in": "train"}[way]
    go_on(net, opt, range(4, 7))
    opt.eval()
    assert_close(net.state_dict(), expected)
    for key, value in net.state_dict().items():
        assert not torch.equal(value, read(name)[way]["model"][key])


@pytest.mark.parametrize("name", ["vadam", "ivon"])
def test_compiled_training_goes_on_from_an_earlier_checkpoint(name):
    net, opt, expected = resumed(name, "drop_in", compiled=True)
    go_on(net, opt, range(4, 7))
    opt.eval()
    assert_close(net.state_dict(), expected)


@every_file
def test_an_earlier_posterior_is_read(name):
    posterior, file = earlier_posterior(name), read(name)
    assert posterior.hyperparameters["method"] == METHODS[name][0].__name__
    assert_close(posterior.mean, file["mean"])
    assert_close(posterior.sample(2, seed=1), file["sample"])


@every_file
def test_a_posterior_of_the_resumed_run_is_the_earlier_one(name):
    net, opt, _ = resumed(name, "drop_in")
    go_on(net, opt, range(4, 7))
    earlier = earlier_posterior(name)
    assert_close(opt.posterior().mean, earlier.mean)
    if name == "von full":
        torch.testing.assert_close(opt.posterior().covariance, earlier.covariance, rtol=1e-5, atol=1e-9)
    else:
        assert_close(opt.posterior().variance, earlier.variance)


def test_an_earlier_vogn_has_another_name_of_its_curvature():
    saved = read("vogn")["blocks"]["optimizer"]
    assert {group["hessian"] for group in saved["param_groups"]} == {"gauss_newton"}
    _, opt, _ = resumed("vogn", "blocks")
    assert {group["hessian"] for group in opt.param_groups} == {"empirical_fisher"}
    assert opt.state_dict()["param_groups"][0]["hessian"] == "empirical_fisher"


WERE = {
    "maximize": (True, False),
    "perturb": (False, True),
    "temperature": (0.5, 1.0),
    "compile": (True, False),
    "nonfinite": ("skip", "raise"),
    "antithetic": (True, False),
}


@pytest.mark.parametrize("entry", WERE)
@every_file
def test_what_an_earlier_file_does_not_say_is_what_was_in_force(name, entry):
    """Whatever the optimiser was made with that loads it."""
    file = read(name)["blocks"]
    net, opt = make(name, 2)
    today, then = WERE[entry]
    if (name, entry) == ("vadagrad", "temperature"):
        then = 0.0  # the method's
    for group in opt.param_groups:
        group[entry] = today
    saved = copy.deepcopy(file["optimizer"])
    for group in saved["param_groups"]:
        del group[entry]
    net.load_state_dict(file["model"])
    opt.load_state_dict(saved)
    assert [group[entry] for group in opt.param_groups] == [then]
    go_on(net, opt, range(4, 7))
    assert_close(net.state_dict(), file["expected"])


@every_file
def test_a_file_without_the_name_of_its_method_loads(name):
    file = read(name)["blocks"]
    net, opt = make(name, 2)
    for group in file["optimizer"]["param_groups"]:
        del group["method"]
    net.load_state_dict(file["model"])
    opt.load_state_dict(file["optimizer"])
    assert opt.param_groups[0]["method"] == METHODS[name][0].__name__
    go_on(net, opt, range(4, 7))
    assert_close(net.state_dict(), file["expected"])
