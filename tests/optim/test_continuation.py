"""A posterior as the prior of parameters that are frozen at first, or added later."""

import copy

import pytest
import torch
from torch import nn

import bayesadam as ba

COMMON = {"num_data": 64, "batch_size": 8, "lr": 0.01}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def made(params, optimizer=ba.IVON, **options):
    return optimizer(params, **{**COMMON, **options})


def diagonal():
    generator = torch.Generator().manual_seed(1)
    mean = {name: torch.randn(p.shape, generator=generator) for name, p in network().named_parameters()}
    return ba.DiagonalGaussian(mean, {name: torch.full_like(value, 0.01) for name, value in mean.items()})


def dense():
    q = diagonal()
    count = sum(value.numel() for value in q.mean.values())
    return ba.DenseGaussian(q.mean, 0.01 * torch.eye(count))


PRIORS = {"diagonal": diagonal, "dense": dense}
kinds = pytest.mark.parametrize("kind", PRIORS)
optimizers = pytest.mark.parametrize("optimizer", [ba.Vadam, ba.IVON])


def step(net, opt, steps=1):
    for _ in range(steps):
        opt.zero_grad()
        if opt.param_groups[0]["weights"] == "train":
            net(torch.ones(8, 3)).square().mean().backward()
        else:
            with opt.sampled_params():
                net(torch.ones(8, 3)).square().mean().backward()
        opt.step()


def widths(opt):
    return torch.cat([value.flatten() for value in opt.posterior().variance.values()])


@kinds
@optimizers
def test_frozen_parameters_have_the_mean_and_no_variance(kind, optimizer):
    net, q = network(), PRIORS[kind]()
    net[0].requires_grad_(False)
    opt = made(net.named_parameters(), optimizer, prior=q)
    for _ in range(2):
        assert torch.equal(net[0].weight, q.mean["0.weight"])
        assert set(opt.posterior().mean) == {"2.weight", "2.bias"}
        step(net, opt)


@kinds
@optimizers
@pytest.mark.parametrize("drop_in", [False, True])
@pytest.mark.parametrize("copied", [False, True])
def test_it_is_their_prior_when_they_are_first_trained(kind, optimizer, drop_in, copied):
    net, q = network(), PRIORS[kind]()
    net[0].requires_grad_(False)
    opt = made(net.named_parameters(), optimizer, prior=q)
    opt.train(drop_in)
    step(net, opt)
    if copied:
        net, opt = copy.deepcopy((net, opt))
    opt.eval()
    opt.load_state_dict(opt.state_dict())
    opt.train(drop_in)
    net[0].requires_grad_(True)
    step(net, opt, 2)
    opt.eval()
    state = opt.state[net[0].weight]
    torch.testing.assert_close(state["prior_precision"], torch.full((4, 3), 100.0))
    torch.testing.assert_close(state["prior_mean"], q.mean["0.weight"])
    assert set(opt.posterior().mean) == set(q.mean)


@kinds
@optimizers
@pytest.mark.parametrize("drop_in", [False, True])
def test_groups_that_are_added_later_train_as_from_the_start(kind, optimizer, drop_in):
    trained = []
    for late in (False, True):
        net, q = network(), PRIORS[kind]()
        parts = [list(net[number].named_parameters(prefix=str(number))) for number in (0, 2)]
        opt = made(parts[0] if late else parts[0] + parts[1], optimizer, prior=q)
        opt.train(drop_in)
        if late:
            opt.add_param_group({"params": parts[1]})
        step(net, opt, 3)
        opt.eval()
        trained.append(torch.cat([*(p.detach().flatten() for p in net.parameters()), widths(opt)]))
    torch.testing.assert_close(*trained)


def test_new_groups_are_checked_before_anything_changes():
    net, q = network(), diagonal()
    opt = made(net[0].named_parameters(prefix="0"), prior=q, initial_precision=200.0)
    other = nn.Linear(5, 2)
    weight = net[2].weight.detach().clone()
    q.variance["2.bias"].zero_()
    cases = [
        (net[2].named_parameters(prefix="2"), r"prior of '2.bias' must have positive variances, got 0"),
        (other.named_parameters(prefix="2"), r"prior of '2.weight' must be of shape \(2, 5\), got \(2, 4\)"),
    ]
    for params, message in cases:
        with pytest.raises(ValueError, match=message):
            opt.add_param_group({"params": params})
    q.variance["2.bias"].fill_(0.001)
    with pytest.raises(ValueError, match="initial_precision must be at least the prior's at every weight of '2.bias'"):
        opt.add_param_group({"params": net[2].named_parameters(prefix="2")})
    assert len(opt.param_groups) == 1
    assert torch.equal(net[2].weight, weight)


def test_a_group_that_it_does_not_cover_has_a_prior_of_its_own():
    net, q = network(), diagonal()
    opt = made(net[0].named_parameters(prefix="0"), prior=q)
    head = nn.Linear(4, 2)
    opt.add_param_group({"params": head.named_parameters(prefix="head"), "prior_precision": 3.0})
    step(nn.Sequential(net[0], net[1], head), opt)
    assert "prior_mean" not in opt.state[head.weight]


@kinds
@optimizers
def test_parameters_of_two_modules_must_have_different_names(kind, optimizer):
    """Names are unique in a module only; torch takes the same name in two groups."""
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    groups = [{"params": list(module.named_parameters())} for module in (first, second)]
    opt = made(groups, optimizer)
    for call in (opt.posterior, opt.report):
        with pytest.raises(RuntimeError, match="parameters by different names, got 'weight' twice: take the names of"):
            call()
    both = nn.ModuleList([first, second])
    assert set(opt.posterior(both).mean) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    mean = {name: torch.zeros_like(p) for name, p in first.named_parameters()}
    prior = ba.DiagonalGaussian(mean, {name: torch.full_like(value, 0.01) for name, value in mean.items()})
    prior = prior if kind == "diagonal" else ba.DenseGaussian(prior.mean, 0.01 * torch.eye(8))
    before = [p.detach().clone() for p in both.parameters()]
    with pytest.raises(ValueError, match="^prior must be matched by different names, got 'weight' twice"):
        made(groups, optimizer, prior=prior)
    assert all(torch.equal(*pair) for pair in zip(before, both.parameters(), strict=True))
