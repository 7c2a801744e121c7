"""Groups that are added to an optimiser that is attached to its model."""

import pytest
import torch
from torch import nn

import bayesadam as ba


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def step(net, opt):
    opt.zero_grad()
    net(torch.ones(5, 3)).square().mean().backward()
    opt.step()


@pytest.mark.parametrize("given", ["parameters", "generator", "named", "other names"])
def test_they_have_the_names_of_the_model(given):
    net = network()
    opt = ba.IVON(net[2].parameters(), num_data=32)
    opt.attach(net)
    params = {
        "parameters": list(net[0].parameters()),
        "generator": net[0].parameters(),
        "named": list(net[0].named_parameters(prefix="0")),
        "other names": list(net[0].named_parameters(prefix="backbone")),
    }[given]
    opt.add_param_group({"params": params})
    assert set(opt.posterior().mean) == set(dict(net.named_parameters()))


def test_they_may_be_of_another_module():
    net, likelihood = network(), ba.Gaussian(1.0, learned=True)
    opt = ba.IVON([{"params": net[2].parameters()}], num_data=32)
    opt.attach(net)
    opt.add_param_group({"params": likelihood.parameters(), "perturb": False})
    opt.add_param_group({"params": net[0].parameters()})
    assert set(opt.posterior().mean) == set(dict(net.named_parameters()))
    with pytest.raises(ValueError, match="some parameters appear in more than one parameter group"):
        opt.add_param_group({"params": net[0].parameters()})
    assert len(opt.param_groups) == 3
    assert set(opt.posterior().mean) == set(dict(net.named_parameters()))


def test_state_dicts_of_all_parts_hold_their_mean():
    net = network()
    opt = ba.IVON(net[2].parameters(), num_data=32)
    opt.attach(net)
    opt.train()
    step(net, opt)
    opt.add_param_group({"params": net[0].parameters()})
    step(net, opt)
    whole, part = dict(net.state_dict()), net[0].state_dict()
    sample = net[0].weight.detach().clone()
    opt.eval()
    assert not torch.equal(sample, net[0].weight)
    assert torch.equal(whole["0.weight"], net[0].weight)
    assert torch.equal(part["weight"], net[0].weight)
