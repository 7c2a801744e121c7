"""The posterior that an optimiser gives, and one that it is given as its prior."""

import copy

import pytest
import torch
from torch import nn

import bayesadam as ba
from optim.methods import (
    REPRESENTATIVES,
    Method,
    batch,
    by_name,
    layer_groups,
    made,
    make_net,
    make_step,
    methods,
    representatives,
    same,
    train,
    variance_of,
    ways,
    weights,
)


@ways(REPRESENTATIVES)
def test_it_is_named_and_copied_and_its_mean_is_where_training_draws_its_noise(method, mode):
    net, opt = made(method)
    train(net, opt, 2, mode=mode)
    q = opt.posterior()
    assert list(q.mean) == [name for name, _ in net.named_parameters()]
    assert q.hyperparameters["method"] == method.cls.__name__
    before = copy.deepcopy(q.mean)
    opt.eval()
    assert same(by_name(net), dict(before))
    assert all((variance > 0).all() for variance in q.variance.values())
    train(net, opt, 1, first=2, mode=mode)
    assert same(q.mean, before)


def test_names_come_from_the_parameters_or_from_a_model():
    net = make_net()
    opt = Method("vadam")(net, net.parameters())
    for call in (opt.posterior, opt.report):
        with pytest.raises(RuntimeError, match=r"posterior\(\) must know the parameters' names"):
            call()
    names = [name for name, _ in net.named_parameters()]
    assert list(opt.posterior(net).mean) == names
    assert list(opt.posterior(torch.compile(net)).mean) == names  # not compiled before it is called
    opt.attach(net)
    assert list(opt.posterior().mean) == names


def test_names_of_two_modules_must_differ():
    """Names are unique in a module only; torch takes the same name in two groups."""
    both = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
    groups = [{"params": list(module.named_parameters())} for module in both]
    opt = Method("vadam")(both, groups)
    with pytest.raises(RuntimeError, match="parameters by different names, got 'weight' twice: take the names of"):
        opt.posterior()
    q = opt.posterior(both)
    assert set(q.mean) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    prior = ba.DiagonalGaussian(*({name.removeprefix("0."): v for name, v in p.items()} for p in (q.mean, q.variance)))
    with pytest.raises(ValueError, match="^prior must be matched by different names, got 'weight' twice"):
        Method("vadam")(both, groups, prior=prior)


def test_that_of_a_model_leaves_out_a_learned_noise_level():
    net, likelihood = make_net(), ba.Gaussian(learned=True)
    groups = [{"params": list(net.parameters())}, {"params": list(likelihood.parameters()), "perturb": False}]
    opt = Method("vadam")(net, groups)
    for step in range(3):
        make_step(opt, lambda step=step: likelihood.nll(net(batch(step)[0]), batch(step)[1]))
    assert likelihood.noise_precision.item() != 1.0
    assert list(opt.posterior(net).mean) == [name for name, _ in net.named_parameters()]


# As the prior


with_prior = methods(["vadam", "vprop", "ivon"])


@with_prior
def test_it_continues_as_the_prior(method):
    net, opt = made(method)
    train(net, opt, 3)
    q = opt.posterior()
    other, its = made(method, prior=q, num_data=500)
    assert torch.equal(weights(other), weights(net))
    expected = torch.cat([torch.clamp(variance, max=1 / 500).flatten() for variance in q.variance.values()])
    torch.testing.assert_close(variance_of(its), expected.double(), rtol=1e-5, atol=0)
    train(other, its, 2)
    third, resumed = made(method, prior=q)
    third.load_state_dict(other.state_dict())
    resumed.load_state_dict(its.state_dict())
    for one, two in ((other, its), (third, resumed)):
        train(one, two, 2, first=2)
    assert torch.equal(weights(other), weights(third))


def constant_prior(net, mean, variance):
    means = {name: torch.full_like(p, mean) for name, p in net.named_parameters()}
    return ba.DiagonalGaussian(means, {name: torch.full_like(p, variance) for name, p in net.named_parameters()})


@with_prior
def test_it_pulls_to_its_mean(method):
    net = make_net()
    opt = method(net, prior=constant_prior(net, 0.5, 0.1), num_data=10)
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
    for _ in range(300):
        make_step(opt, lambda: sum(0.0 * p.sum() for p in net.parameters()))
    assert (weights(net) - 0.5).abs().max() < 0.05


@with_prior
def test_parameters_without_noise_and_frozen_ones_start_at_its_mean(method):
    net = make_net()
    net[0].bias.requires_grad_(False)
    q = constant_prior(net, 0.25, 0.01)
    opt = method(net, layer_groups(net, perturb=False), prior=q)
    assert (weights(net) == 0.25).all()
    train(net, opt, 2)
    assert (net[0].bias == 0.25).all()
    assert set(opt.posterior().mean) == {"0.weight", "2.weight", "2.bias"}


@with_prior
def test_groups_that_are_added_later_or_unfrozen_have_it_too(method):
    results = []
    for late in ("", "added", "unfrozen"):
        net = make_net()
        q = constant_prior(net, 0.25, 0.01)
        parts = [list(net[number].named_parameters(prefix=str(number))) for number in (0, 2)]
        net[2].requires_grad_(late != "unfrozen")
        opt = method(net, parts[0] if late == "added" else parts[0] + parts[1], prior=q)
        net[2].requires_grad_(True)
        if late == "added":
            opt.add_param_group({"params": parts[1]})
        train(net, opt, 3)
        results.append((weights(net), variance_of(opt)))
    assert same(results[0], results[1])
    assert same(results[0], results[2])


@representatives
def test_a_report_changes_nothing(method):
    net, opt = made(method)
    train(net, opt, 2)
    results = []
    for reports in (True, False):
        other, its = copy.deepcopy((net, opt))
        if reports:
            assert its.report().steps == 2
        train(other, its, 1, first=2)
        results.append((weights(other), its.state_dict()["state"]))
    assert same(*results)
