"""The methods of the experiment ``scale`` on one layer."""

import pytest
import torch
from torch import nn

from experiments.framework import Context
from experiments.scale.training import Problem, make_optimizer, posterior, scores, train

pytestmark = pytest.mark.nightly

CONFIG = {"seed": 0, "batch_size": 10, "epochs": 2.0, "device": "cpu", "autocast": False}
# Options, and bytes of state per weight: averages, and of ours the mean; BayesAdam watches its training by two more.
METHODS = {
    "sgd": ({"lr": 0.1}, 0),
    "adamw": ({"lr": 0.01}, 8),
    "ivon-opt": ({"lr": 0.1, "ess": 5e3, "hess_init": 3.5, "weight_decay": 0.5}, 8),
    "vogn": ({"lr": 0.01}, 12),
    "bayesadam": ({}, 20),
}


def config_of(method):
    if method == "ivon-opt":
        pytest.importorskip("ivon", reason="needs ivon-opt")
    return {**CONFIG, "method": method, "options": METHODS[method][0]}


def problem():
    torch.manual_seed(0)
    part = (torch.randn(40, 20_000), torch.randint(2, (40,)))
    return Problem(nn.Linear(20_000, 2, bias=False), part, part, part)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fits_its_data_and_keeps_the_stated_state(method, tmp_path):
    config, found = config_of(method), problem()
    optimizer, facts = train(config, found, Context(tmp_path, {}, lambda *_: None, None))
    q = posterior(optimizer, found.model)
    assert scores(config, found.model, q, found.train, 0)["mean"]["nll"] < 0.3
    assert (facts["steps"], facts["diverged"], facts["peak_mib"]) == (8, None, None)
    assert facts["state_bytes"] == pytest.approx(METHODS[method][1], rel=0.01)


def test_the_posterior_of_ivon_opt_has_the_width_of_its_own_samples():
    found = problem()
    weight = found.model.weight
    optimizer = make_optimizer(config_of("ivon-opt"), found, 8)
    mean = weight.detach().clone()
    with optimizer.sampled_params():
        deviation = (weight.detach() - mean).std().item()
    q = posterior(optimizer, found.model)
    assert q.mean["weight"].equal(mean)
    assert deviation == pytest.approx(20_000**-0.5, rel=0.02)  # 5,000 (3.5 + 0.5)
    torch.testing.assert_close(q.variance["weight"], torch.full_like(mean, 1 / 20_000))
