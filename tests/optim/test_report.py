"""``optimizer.report()``: how much of the width is still the start's."""

import pytest
import torch

from optim.methods import EVERY, Method, made, make_net, methods, train

START = {"num_data": 200, "prior_precision": 2.0, "initial_precision": 80.0}


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@methods(["vadam", "vprop"])
def test_the_three_parts_of_the_precision_add_up(method, temperature):
    net, opt = made(method, torch.float64, **START, betas=(0.9, 0.97), temperature=temperature)
    train(net, opt, 20)
    q, weight = opt.posterior(), (1 - temperature * 0.03) ** 20
    for row, (name, p) in zip(q.report().rows, net.named_parameters(), strict=True):
        squares = opt.state[p]["exp_avg_sq"]
        precision = 200 * squares + weight * 80.0 + (1 - weight) * 2.0
        torch.testing.assert_close(q.variance[name], 1 / precision)
        assert row.start_share == pytest.approx((weight * 78.0 / precision).mean().item(), rel=1e-9)
        assert row.determined == pytest.approx((200 * squares / precision).sum().item(), rel=1e-9)
        assert row.prior_precision == 2.0


@methods([key for key in EVERY if key not in ("ngvi", "bbb", "bayesadam")])
def test_before_the_first_step_all_is_the_start(method):
    """NGVI and Bayes by Backprop do not know the share of the start."""
    net, opt = made(method, initial_precision=80.0)
    report = opt.report()
    first = opt.param_groups[0]
    prior = first["prior_precision"] if method.cls.has_prior and first["temperature"] else 0.0
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
    net, first = made(Method("vadam"), torch.float64, **START, betas=(0.9, 0.9))
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
