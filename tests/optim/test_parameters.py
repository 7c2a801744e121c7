"""Which parameters an optimiser takes: no sets, which have no order, and complex ones only if they are frozen."""

import copy

import pytest
import torch

import bayesadam as ba
from bayesadam import noise, population
from optim.conftest import every_method, make_net, same, snapshot, train, weights

SETS = {"set": set, "frozenset": frozenset}


@pytest.mark.parametrize("kind", SETS)
@every_method
def test_sets_of_parameters_are_refused(method, kind, net):
    message = f"params must be a list or another ordered collection, got a {kind}"
    with pytest.raises(ValueError, match=message):
        method(SETS[kind](net.parameters()), model=net)
    with pytest.raises(ValueError, match=message):
        method([{"params": SETS[kind](net[0].parameters())}], model=net)
    opt = method(net[0].parameters(), model=net)
    if not method.full:
        with pytest.raises(ValueError, match=message):
            opt.add_param_group({"params": SETS[kind](net[2].parameters())})
    assert len(opt.param_groups) == 1


@every_method
def test_keys_of_a_dictionary_have_an_order(method, net):
    opt = method(dict.fromkeys(net.parameters()).keys(), model=net)
    assert [id(p) for p in opt.param_groups[0]["params"]] == [id(p) for p in net.parameters()]


class Scale(torch.nn.Module):
    """Multiplies by the magnitudes of a frozen complex parameter, which are 1."""

    def __init__(self):
        super().__init__()
        self.phases = torch.nn.Parameter(torch.tensor([1j, 1.0 + 0j]), requires_grad=False)

    def forward(self, x):
        return x * self.phases.abs()


@pytest.mark.parametrize("mode", ["block", "train"])
@pytest.mark.parametrize("compiled", [False, True])
@every_method
def test_a_frozen_complex_parameter_is_left_alone(method, compiled, mode):
    if mode == "train" and method.deferred:
        pytest.skip("drop-in training refuses exact and Hutchinson Hessians")
    net, plain = torch.nn.Sequential(*make_net(), Scale()), make_net()
    opts = [method(n.named_parameters(), model=n, compile=compiled) for n in (net, plain)]
    for each, opt in zip((net, plain), opts, strict=True):
        opt.attach(each)
        train(each, opt, 3, mode=mode)
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        train(each, opt, 1, first=3, mode=mode)
        opt.eval()
    (phases,) = net[-1].parameters()
    assert torch.equal(phases, torch.tensor([1j, 1.0 + 0j]))
    assert phases not in opts[0].state
    assert list(opts[0].posterior().mean) == list(opts[1].posterior().mean)
    assert torch.equal(weights(net[:-1]), weights(plain))


def test_a_complex_parameter_that_is_unfrozen_later_is_refused():
    net = torch.nn.Sequential(*make_net(), Scale())
    opt = ba.Vadam(net.named_parameters(), num_data=50)
    train(net, opt, 1)
    before, mean = snapshot(opt), weights(net[:-1])
    net[-1].phases.requires_grad_(True)
    with pytest.raises(ValueError, match=r"parameter '3\.phases' must be real, got dtype torch\.complex64"):
        train(net, opt, 1)
    assert same(snapshot(opt), before)
    assert torch.equal(weights(net[:-1]), mean)
    net[-1].phases.requires_grad_(False)
    train(net, opt, 1)


class Large(torch.nn.Sequential):
    """More than a few tiles of noise, and parameters that end within one."""

    def __init__(self):
        super().__init__(torch.nn.Linear(3, 3 * noise.TILE), torch.nn.Tanh(), torch.nn.Linear(3 * noise.TILE, 2))


@pytest.mark.parametrize(("mode", "samples"), [("block", 1), ("block", 2), ("train", 1)])
def test_bayes_by_backprop_on_large_parameters_compiles(mode, samples, recwarn):
    """Its option ``eps`` is not the noise of that name."""
    runs = []
    for compiled in (False, True):
        torch.manual_seed(0)
        net = Large().double()
        opt = population.BayesByBackprop(
            net.named_parameters(), 0.01, num_data=50, eps=1e-3, mc_samples=samples, compile=compiled
        )
        train(net, opt, 4, mode=mode)
        opt.eval()
        runs.append((weights(net), torch.cat([opt.state[p]["rho"].flatten() for p in net.parameters()])))
    assert not [w for w in recwarn if issubclass(w.category, RuntimeWarning)]
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(runs[0][1], runs[1][1], rtol=1e-6, atol=1e-8)
    start = torch.nn.utils.parameters_to_vector(Large().parameters())
    assert (runs[0][0].float() - start.detach()).abs().max() > 1e-3
