"""Parameters that get or lose their noise during drop-in training: they are frozen, unfrozen, added, or no longer
perturbed.
"""

import copy

import pytest
import torch

import bayesadam as ba
from optim.conftest import every_method, loss_of, train, weights

EXACT = {"rtol": 0, "atol": 0}


def held(net):
    return {name: p.detach().clone() for name, p in net.named_parameters()}


@every_method
def test_the_mean_stays_when_a_group_is_no_longer_perturbed(method, net):
    opt = method(net.named_parameters(), lr=0.0)
    mean = held(net)
    train(net, opt, 2, mode="train")
    opt.param_groups[0]["perturb"] = False
    torch.testing.assert_close(opt.posterior().mean, mean, **EXACT)
    for step in (2, 3):
        train(net, opt, 1, first=step, mode="train")
        torch.testing.assert_close(held(net), mean, **EXACT)
        torch.testing.assert_close(opt.posterior().mean, held(net), **EXACT)
    opt.param_groups[0]["perturb"] = True
    train(net, opt, 1, first=4, mode="train")
    assert not any(torch.equal(p, mean[name]) for name, p in net.named_parameters())
    opt.eval()
    torch.testing.assert_close(held(net), mean, **EXACT)


def test_training_goes_on_from_the_mean_when_a_group_is_no_longer_perturbed(method, net):
    opt = method(net.named_parameters())
    train(net, opt, 2, mode="train")
    opt.param_groups[0]["perturb"] = False
    train(net, opt, 2, first=2, mode="train")
    moved = weights(net)
    opt.eval()
    assert torch.equal(weights(net), moved)
    before = loss_of(net)
    train(net, opt, 20, mode="train")
    assert loss_of(net) < before


@every_method
def test_weights_of_a_frozen_parameter_are_its_mean(method, net):
    opt = method(net.named_parameters(), lr=0.0)
    train(net, opt, 2, mode="train")
    net[0].requires_grad_(False)
    train(net, opt, 1, first=2, mode="train")
    with torch.no_grad():
        net[0].weight.fill_(5.0)
    train(net, opt, 1, first=3, mode="train")
    assert (opt.posterior().mean["0.weight"] == 5).all()
    assert (net[0].weight == 5).all()
    net[0].requires_grad_(True)
    assert (opt.posterior().mean["0.weight"] == 5).all()
    train(net, opt, 1, first=4, mode="train")
    assert not (net[0].weight == 5).any()
    opt.eval()
    assert (net[0].weight == 5).all()


@every_method
def test_weights_that_were_frozen_are_trained_from_their_present_values(method, net):
    """Also where the first backward pass after it gives them no gradient."""
    opt = method(net.named_parameters(), lr=0.0)
    train(net, opt, 1, mode="train")
    net[0].requires_grad_(False)
    train(net, opt, 1, first=1, mode="train")
    with torch.no_grad():
        net[0].weight.fill_(5.0)
    opt.zero_grad()
    loss_of(net, 2).backward()
    net[0].requires_grad_(True)
    opt.step()
    assert not (net[0].weight == 5).any()
    opt.eval()
    assert (net[0].weight == 5).all()


@pytest.mark.parametrize("low_memory", [False, True])
@pytest.mark.parametrize("compile", [None, False])
@pytest.mark.parametrize("unfreeze", ["freeze", "perturb"])
@pytest.mark.parametrize("num_data", [100, 200])
def test_noise_that_was_not_applied_tells_no_curvature(low_memory, compile, unfreeze, num_data):
    """The Hessian of ``p^2 / 2`` is 1 for every weight."""
    p, other = torch.nn.Parameter(torch.zeros(5000)), torch.nn.Parameter(torch.zeros(1))
    groups = [{"params": [p]}, {"params": [other]}]
    options = {"recipe": "paper", "betas": (0.0, 0.5), "lr": 0.0, "low_memory": low_memory, "compile": compile}
    opt = ba.IVON(groups, num_data=100, **options)

    def switch(on):
        p.requires_grad_(on or unfreeze == "perturb")
        opt.param_groups[0]["perturb"] = on or unfreeze == "freeze"

    def step():
        opt.zero_grad()
        (0.5 * p.square().sum() + other.square().sum()).backward()
        opt.step()

    opt.train()
    switch(False)
    step()
    switch(True)
    hessian = opt.state[p]["hessian"].clone()
    for group in opt.param_groups:  # a width that changes, for which a sample in little memory is drawn again
        group["num_data"] = num_data
    step()
    assert torch.equal(opt.state[p]["hessian"], hessian)
    step()
    assert 1 < opt.state[p]["hessian"].mean() < 1.5  # 1, and what keeps the precision positive with so few steps
    opt.eval()
    torch.testing.assert_close(p.detach(), torch.zeros(5000), rtol=0, atol=1e-6)


def test_low_memory_gives_the_same_for_parameters_that_are_unfrozen(net):
    other = copy.deepcopy(net)
    for each, low_memory in ((net, False), (other, True)):
        opt = ba.IVON(each.named_parameters(), num_data=50, low_memory=low_memory)
        train(each, opt, 2, mode="train")
        each[0].requires_grad_(False)
        train(each, opt, 2, first=2, mode="train")
        with torch.no_grad():
            each[0].weight.fill_(0.5)
        each[0].requires_grad_(True)
        train(each, opt, 3, first=4, mode="train")
        opt.eval()
    torch.testing.assert_close(weights(net), weights(other), rtol=1e-4, atol=1e-5)
