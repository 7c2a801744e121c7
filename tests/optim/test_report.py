"""``optimizer.report()``: how much of the width is still the start's, and a warning where it is most of it."""

import re
import warnings

import pytest
import torch

import bayesadam as ba
from bayesadam.optim.start import ENOUGH
from bayesadam.population import BayesByBackprop
from optim.methods import AS_PUBLISHED, EVERY, Method, make_net, make_step, methods, train

START = {"num_data": 200, "prior_precision": 2.0, "initial_precision": 80.0}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@methods(["vadam", "vprop"])
def test_the_three_parts_of_the_precision_add_up(method, temperature):
    net = make_net(torch.float64)
    opt = method(net, **START, betas=(0.9, 0.97), temperature=temperature)
    train(net, opt, 20)
    q, weight = opt.posterior(), (1 - temperature * 0.03) ** 20
    for row, (name, p) in zip(q.report().rows, net.named_parameters(), strict=True):
        squares = opt.state[p]["exp_avg_sq"]
        precision = 200 * squares + weight * 80.0 + (1 - weight) * 2.0
        torch.testing.assert_close(q.variance[name], 1 / precision)
        assert row.start_share == pytest.approx((weight * 78.0 / precision).mean().item(), rel=1e-9)
        assert row.determined == pytest.approx((200 * squares / precision).sum().item(), rel=1e-9)
        assert row.prior_precision == 2.0


@methods([key for key in EVERY if key not in ("ngvi", "bbb", "vadam learned")])
def test_before_the_first_step_all_is_the_start(method):
    """NGVI and Bayes by Backprop do not know the share of the start."""
    net = make_net()
    opt = method(net, initial_precision=80.0)
    report = opt.report()
    prior = 1.0 if method.cls.has_prior and opt.param_groups[0]["temperature"] else 0.0
    for row in report.rows:
        assert row.start_share == pytest.approx((80.0 - prior) / 80.0, rel=1e-5)
        assert row.determined == pytest.approx(0.0, abs=1e-3)
    assert report.steps == 0
    assert report.sentences[0].startswith("Before the first step, ")
    train(net, opt, 2)
    assert opt.report().steps == 2
    assert 0 < opt.report().total.start_share < report.total.start_share


def test_groups_have_priors_of_their_own_or_no_noise():
    net = make_net()
    groups = [
        {"params": list(net[0].named_parameters("0")), "prior_precision": 7.0},
        {"params": [("2.weight", net[2].weight)]},
        {"params": [("2.bias", net[2].bias)], "perturb": False},
    ]
    report = Method("vadam")(net, groups, **START).report()
    assert [row.start_share for row in report.rows] == [pytest.approx(x / 80) for x in (73, 73, 78)] + [None]
    assert [row.num_random for row in report.rows] == [24, 8, 16, 0]
    assert report.rows[3].determined is None


def test_a_prior_of_every_weight_counts_as_it_should():
    net = make_net(torch.float64)
    first = Method("vadam")(net, **START, betas=(0.9, 0.9))
    train(net, first, 20)
    prior = first.posterior()
    opt = Method("vadam")(net, num_data=200, prior=prior, initial_precision=500.0, betas=(0.9, 0.9))
    train(net, opt, 20)
    q = opt.posterior()
    for row in q.report().rows:
        variance, precision = q.variance[row.name], 1 / prior.variance[row.name]
        share = 0.9**20 * (500.0 - precision) * variance
        assert row.start_share == pytest.approx(share.mean().item())
        assert row.determined == pytest.approx((1 - precision * variance - share).sum().item(), rel=1e-6)


def test_a_full_covariance_has_a_report_that_is_saved(tmp_path):
    net = make_net(torch.float64)
    opt = Method("von exact full")(net, **START, betas=(0.9, 0.8))
    for step in range(10):
        x = torch.randn(16, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        make_step(opt, lambda x=x: net(x).square().mean())
    q = opt.posterior()
    q.save(tmp_path / "q.safetensors")
    assert ba.load_posterior(tmp_path / "q.safetensors").report().rows == q.report().rows == opt.report().rows
    spread = torch.cat([value.flatten() for value in q.variance.values()])
    assert q.report().total.start_share == pytest.approx((0.8**10 * 78.0 * spread).mean().item())


# The warning


def idle(cls=ba.Vadam, steps=ENOUGH, **options):
    """An optimiser after steps in which the data said nothing."""
    weight = torch.nn.Parameter(torch.ones(3))
    opt = cls([("w", weight)], **{"lr": 1e-3, "num_data": 1000, **AS_PUBLISHED, **options})
    opt.train()
    for _ in range(steps):
        weight.grad = torch.zeros_like(weight)
        opt.step()
    opt.eval()
    return opt


def warned(opt):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.posterior()
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


SETTINGS = {
    "betas": {"betas": (0.9, 0.999)},
    "temperature": {"betas": (0.9, 0.7), "temperature": 0.05, "num_data": 100},
    "num_data": {"betas": (0.9, 0.99), "temperature": 0.01},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_the_warning_advises_helps(setting):
    """It forgets the start even where the data say nothing, and keeps the objective."""
    options = {"num_data": 1000, "prior_precision": 1.0, "temperature": 1.0, **SETTINGS[setting]}
    opt = idle(**options)
    (message,) = warned(opt)
    assert "of the posterior's precision is still initial_precision after 100 steps" in message
    assert warned(opt) == []  # said once
    found = re.findall(r"(num_data|temperature|betas)=(\([^)]*\)|[\d.e+]+)", message.split("learned: ")[1])
    advice = {name: eval(value) for name, value in found}
    again = idle(**{**options, "initial_precision": options["num_data"], **advice})
    assert warned(again) == []
    assert 0.01 < again.report().total.start_share < 0.11
    if setting == "num_data":
        assert advice["num_data"] == pytest.approx(options["num_data"] / options["temperature"])


def test_other_advice_and_no_warning_without_a_reason():
    (message,) = warned(idle(ba.VadaGrad, initial_precision=1000.0))
    assert "at temperature=0 the start is never forgotten, so give a smaller initial_precision" in message
    assert warned(idle(betas=(0.9, 0.5))) == []
    assert warned(idle(steps=ENOUGH - 1, betas=(0.9, 0.999))) == []
    assert warned(idle(BayesByBackprop)) == []
