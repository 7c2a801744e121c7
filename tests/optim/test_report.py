"""``optimizer.report()``: how much of the width is still the start's, and a warning where it is most of it."""

import copy
import math
import re
import warnings

import pytest
import torch

import bayesadam as ba
from bayesadam.optim.start import ENOUGH
from bayesadam.population import BayesByBackprop
from bayesadam.posterior.report import PER_TENSOR
from optim.conftest import every_method, make_net, same, train

START = {"recipe": "paper", "num_data": 200, "prior_precision": 2.0, "initial_precision": 80.0}


def told(q):
    return q.hyperparameters[PER_TENSOR]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
@pytest.mark.parametrize("method", [ba.Vadam, ba.Vprop])
def test_the_three_parts_of_the_precision_add_up(method, temperature):
    net = make_net(torch.float64)
    opt = method(net.named_parameters(), **START, betas=(0.9, 0.97), temperature=temperature)
    steps = 20
    train(net, opt, steps)
    q, weight = opt.posterior(), (1 - temperature * 0.03) ** steps
    for row, (name, variance) in zip(q.report().rows, q.variance.items(), strict=True):
        squares = opt.state[dict(net.named_parameters())[name]]["exp_avg_sq"]
        precision = 200 * squares + weight * 80.0 + (1 - weight) * 2.0
        torch.testing.assert_close(variance, 1 / precision)
        assert row.start_share == pytest.approx((weight * 78.0 / precision).mean().item(), rel=1e-9)
        assert row.determined == pytest.approx((200 * squares / precision).sum().item(), rel=1e-9)
        assert row.prior_precision == 2.0


@every_method
def test_before_the_first_step_all_is_the_start(method, net):
    opt = method(net.named_parameters(), initial_precision=80.0)
    report = opt.report()
    if method.own_prior:
        return
    prior = 1.0 if method.has_prior and opt.param_groups[0]["temperature"] else 0.0
    known = method.name not in ("ngvi", "bbb")
    for row in report.rows:
        assert row.start_share == (pytest.approx((80.0 - prior) / 80.0, rel=1e-5) if known else None)
        assert row.determined == pytest.approx(0.0 if known else row.num_weights * 79 / 80, abs=1e-3)
    assert report.steps == 0
    if known:
        assert report.sentences[0].startswith("Before the first step, ")
    train(net, opt, 2)
    assert opt.report().steps == 2
    if known:
        assert 0 < opt.report().total.start_share < report.total.start_share


def test_without_a_temperature_the_start_is_never_forgotten_but_outweighed():
    for cls in (ba.VAN, ba.VadaGrad):
        net = make_net(torch.float64)
        opt = cls(net.named_parameters(), 0.01, num_data=200, initial_precision=5.0)
        train(net, opt, 10)
        q = opt.posterior()
        for name, entry in told(q).items():
            assert entry["start_share"] == pytest.approx((5.0 * q.variance[name]).clamp(max=1.0).mean().item())
            assert entry["prior_precision"] == 0.0


def test_parameters_without_noise_are_left_out():
    net = make_net()
    groups = [
        {"params": list(net[0].named_parameters("0"))},
        {"params": list(net[2].named_parameters("2")), "perturb": False},
    ]
    opt = ba.Vadam(groups, **START)
    train(net, opt, 2)
    assert told(opt.posterior()).keys() == {"0.weight", "0.bias"}
    report = opt.report()
    assert [row.num_random for row in report.rows] == [24, 8, 0, 0]
    assert report.rows[3].start_share is report.rows[3].determined is None


def test_groups_have_priors_of_their_own():
    net = make_net()
    opt = ba.Vadam(
        [
            {"params": list(net[0].named_parameters("0")), "prior_precision": 7.0},
            {"params": list(net[2].named_parameters("2"))},
        ],
        **START,
    )
    assert [entry["prior_precision"] for entry in told(opt.posterior()).values()] == [7.0, 7.0, 2.0, 2.0]
    assert [row.start_share for row in opt.report().rows] == pytest.approx([73 / 80, 73 / 80, 78 / 80, 78 / 80])


def test_a_prior_of_every_weight_counts_as_it_should():
    net = make_net(torch.float64)
    first = ba.Vadam(net.named_parameters(), **START, betas=(0.9, 0.9))
    train(net, first, 30)
    prior = first.posterior()
    opt = ba.Vadam(
        net.named_parameters(), num_data=200, prior=prior, initial_precision=500.0, betas=(0.9, 0.9), recipe="paper"
    )
    train(net, opt, 30)
    q = opt.posterior()
    for row in q.report().rows:
        variance, precision = q.variance[row.name], 1 / prior.variance[row.name]
        share = 0.9**30 * (500.0 - precision) * variance
        assert row.start_share == pytest.approx(share.mean().item())
        assert row.determined == pytest.approx((1 - precision * variance - share).sum().item(), rel=1e-6)


def test_a_full_covariance_has_a_report():
    net = make_net(torch.float64)
    opt = ba.VON(
        net.named_parameters(),
        0.05,
        **START,
        hessian="exact",
        covariance="full",
        correction="elementwise",
        betas=(0.9, 0.8),
    )
    assert opt.report().total.start_share == pytest.approx(78 / 80)
    for step in range(20):
        with opt.sampled_params():
            opt.backward(net(torch.randn(16, 3, dtype=torch.float64)).square().mean())
        opt.step()
        assert opt.report().steps == step + 1
    q = opt.posterior()
    assert isinstance(q, ba.DenseGaussian)
    assert q.report().rows == opt.report().rows
    spread = torch.cat([value.flatten() for value in q.variance.values()])
    assert q.report().total.start_share == pytest.approx((0.8**20 * 78.0 * spread).mean().item())


def test_the_model_gives_the_names(tmp_path):
    net = make_net()
    opt = ba.IVON(net.parameters(), **START)
    with pytest.raises(RuntimeError, match="posterior\\(\\) must know the parameters' names"):
        opt.report()
    report = opt.report(net)
    assert [row.name for row in report.rows] == [name for name, _ in net.named_parameters()]
    opt.posterior(net).save(tmp_path / "q.safetensors")
    assert ba.load_posterior(tmp_path / "q.safetensors").report().rows == report.rows


def test_reports_change_nothing():
    net = make_net()
    opt = ba.Vadam(net.named_parameters(), **START)
    opt.attach(net)
    train(net, opt, 3, mode="train")
    before, held = copy.deepcopy(opt.state_dict()["state"]), [p.detach().clone() for p in net.parameters()]
    opt.report()
    assert same(opt.state_dict()["state"], before)
    assert same(held, [p.detach() for p in net.parameters()])


def idle(method=ba.Vadam, steps=ENOUGH, **options):
    """An optimiser after steps in which the data said nothing."""
    weight = torch.nn.Parameter(torch.ones(3))
    opt = method([("w", weight)], **{"lr": 1e-3, "num_data": 1000, "recipe": "paper", **options})
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
    for warning in caught:
        assert warning.filename == __file__
    return [str(warning.message) for warning in caught]


def test_a_start_that_dominates_is_warned_of_once():
    opt = idle(betas=(0.9, 0.999), prior_precision=1.0, initial_precision=1000.0)
    (message,) = warned(opt)
    assert message.startswith(
        "100% of the posterior's precision is still initial_precision after 100 steps, so its width is not learned: "
        "betas=(0.9, 0.909) would forget the start in as many steps; optimizer.report() has the numbers"
    )
    assert warned(opt) == []
    opt.report()


def test_no_warning_where_there_is_no_reason():
    assert warned(idle(betas=(0.9, 0.5))) == []
    assert warned(idle(steps=ENOUGH - 1, betas=(0.9, 0.999))) == []
    assert warned(idle(BayesByBackprop)) == []
    assert warned(idle(betas=(0.9, 0.999), prior_precision=1000.0, initial_precision=1000.0)) == []
    idle(betas=(0.9, 0.999)).report()  # which says it itself


SETTINGS = {
    "betas": {"betas": (0.9, 0.999)},
    "betas at a temperature": {"betas": (0.9, 0.999), "temperature": 0.4},
    "temperature": {"betas": (0.9, 0.7), "temperature": 0.05, "num_data": 100},
    "num_data": {"betas": (0.9, 0.99), "temperature": 0.01},
    "wide prior": {"betas": (0.9, 0.999), "prior_precision": 30.0},
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_the_warning_advises_helps(setting):
    """It forgets the start even where the data say nothing, and keeps the objective."""
    options = {"num_data": 1000, "prior_precision": 1.0, "temperature": 1.0, **SETTINGS[setting]}
    opt = idle(**options)
    (message,) = warned(opt)
    advice = {}
    for name, value in re.findall(r"(num_data|temperature|betas)=(\([^)]*\)|[\d.e+]+)", message.split("learned: ")[1]):
        advice[name] = eval(value)
    assert advice.keys() == {
        "temperature": {"temperature"},
        "num_data": {"num_data", "temperature", "betas"},
    }.get(setting, {"betas"})
    start = max(options["num_data"], options["prior_precision"])
    again = idle(**{**options, "initial_precision": start, **advice})
    assert warned(again) == []
    share = told(again.posterior())["w"]["start_share"]
    assert 0.01 < share < 0.11
    if setting == "num_data":
        assert advice["num_data"] == pytest.approx(options["num_data"] / options["temperature"])


def test_other_advice():
    (message,) = warned(idle(ba.VadaGrad, initial_precision=1000.0))
    assert "at temperature=0 the start is never forgotten, so give a smaller initial_precision" in message
    (message,) = warned(idle(betas=(0.9, 0.99999), num_data=1e30))
    needed = 2 * math.log(9e30)
    assert f"train for more steps, {math.ceil(needed)} at least" in message
