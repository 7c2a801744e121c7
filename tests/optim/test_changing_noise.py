"""Parameters that get or lose their noise during drop-in training: they are frozen, unfrozen, added, or no longer
perturbed.
"""

import copy
from contextlib import nullcontext

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import bayesadam as ba
from optim.conftest import Method, batch, every_method, loss_of, make_net, train, weights
from two_ranks import in_two_ranks

EXACT = {"rtol": 0, "atol": 0}


def step(net, opt, number, mode):
    """A step before which only the model's gradients are cleared, of which the optimiser knows nothing."""
    net.zero_grad()
    with opt.sampled_params() if mode == "block" else nullcontext():
        loss_of(net, number).backward()
    opt.step()


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


@pytest.mark.parametrize("name", ["vadam", "ivon"])
@pytest.mark.parametrize("mode", ["train", "block"])
def test_own_samples_of_the_only_rank_are_those_of_one_process_when_parameters_come_and_go(name, mode):
    results = []
    for rank_samples in (True, False):
        net = make_net(torch.float64)
        net[0].requires_grad_(False)
        opt = Method(name)([*net[0].parameters(), net[2].bias], rank_samples=rank_samples)
        train(net, opt, 2, mode=mode)
        net[0].requires_grad_(True)
        step(net, opt, 2, mode)
        opt.add_param_group({"params": [net[2].weight]})
        step(net, opt, 3, mode)
        train(net, opt, 2, first=4, mode=mode)
        opt.eval()
        results.append([weights(net), *(opt.state[p][opt.rule.state[-1]] for p in net.parameters())])
    assert all(value.any() for value in results[0])
    torch.testing.assert_close(*results, rtol=1e-9, atol=1e-12)


def test_a_gradient_that_no_rank_has_computed_is_refused(net):
    opt = ba.Vadam(net.named_parameters(), num_data=50, rank_samples=True)
    train(net, opt, 1, mode="train")
    opt.zero_grad()
    net[2](torch.ones(4, 8)).square().mean().backward()
    net[0].bias.grad = torch.zeros(8)  # as that of a parameter without influence
    opt.step()
    opt.zero_grad()
    net[2](torch.ones(4, 8)).square().mean().backward()
    net[0].bias.grad = torch.ones(8)
    before = weights(net)
    with pytest.raises(RuntimeError, match="curvature of parameter '0.bias' must come with its gradient.*rank_samples"):
        opt.step()
    assert torch.equal(weights(net), before)


class WithABranch(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = make_net(torch.float64)
        self.branch = torch.nn.Linear(3, 2).double()

    def forward(self, x, branch):
        return self.body(x) + self.branch(x) if branch else self.body(x)


def only_the_second_rank_uses_the_branch(rank, folder):
    for name in ("vadam", "ivon"):
        results = []
        for parallel in (True, False):
            net = WithABranch()
            model = DistributedDataParallel(net, find_unused_parameters=True) if parallel else net
            ranks = {"rank_samples": True} if parallel else {"mc_samples": 2}
            opt = Method(name)(net.named_parameters(), **ranks)
            for number in range(3):
                opt.zero_grad()
                for sample in [rank] if parallel else [0, 1]:
                    with opt.sampled_params():
                        model(batch(number)[0].double(), sample == 1).square().mean().backward()
                opt.step()
            results.append([weights(net), *opt.posterior().variance.values()])
        torch.testing.assert_close(*results, rtol=1e-9, atol=1e-11)


def test_a_gradient_that_one_of_two_ranks_has_computed_is_accepted(tmp_path):
    in_two_ranks("optim.test_changing_noise", ["only_the_second_rank_uses_the_branch"], tmp_path)
