"""The methods of the experiment ``scale`` on one small network."""

import pytest
import torch
from torch import nn

from experiments.framework import Context
from experiments.scale.training import Problem, make_optimizer, posterior, train

CONFIG = {"seed": 0, "batch_size": 10, "epochs": 2.0, "device": "cpu", "autocast": False}
METHODS = {
    "sgd": {"lr": 0.1},
    "bayesadam": {},
    "vogn": {"lr": 0.01},
    "ivon-opt": {"lr": 0.1, "ess": 50.0, "hess_init": 3.0, "weight_decay": 1.0},
}


def problem(weights=2_000):
    torch.manual_seed(0)
    part = (torch.randn(40, weights), torch.randint(2, (40,)))
    return Problem(nn.Linear(weights, 2, bias=False), part, part, part)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_fits_the_same_minibatches(method, tmp_path):
    if method == "ivon-opt":
        pytest.importorskip("ivon", reason="needs ivon-opt")
    context = Context(tmp_path, {}, lambda *_: None, None)
    found = problem()
    config = {**CONFIG, "method": method, "options": METHODS[method]}
    _, facts = train(config, found, context)
    assert facts["steps"] == 8
    assert facts["curve"][0] == pytest.approx(FIRST, rel=0.15)
    assert facts["curve"][-1] < 0.5 * facts["curve"][0]


def test_the_posterior_of_ivon_opt_has_the_width_of_its_own_samples():
    pytest.importorskip("ivon", reason="needs ivon-opt")
    found = problem(50_000)
    weight = found.model.weight
    optimizer = make_optimizer({**CONFIG, "method": "ivon-opt", "options": METHODS["ivon-opt"]}, found, 8)
    mean = weight.detach().clone()
    with optimizer.sampled_params():
        deviation = (weight.detach() - mean).std()
    q = posterior(optimizer, found.model)
    assert q.mean["weight"].equal(mean)
    assert deviation.item() == pytest.approx(200**-0.5, rel=0.02)  # 50 (3 + 1)
    torch.testing.assert_close(q.variance["weight"], torch.full_like(mean, 1 / 200))
