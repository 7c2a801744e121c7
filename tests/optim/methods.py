"""The registered optimisers, made ready for small problems, and the three ways to train with them."""

import pytest
import torch
from torch.nn.functional import mse_loss

from bayesadam.curvature import PerExampleSquares
from bayesadam.optim import OPTIMIZERS

RATES = {
    "vadam": 0.01,
    "vprop": 0.01,
    "vadagrad": 0.1,
    "ivon": 0.1,
    "von": 0.05,
    "van": 0.05,
    "vogn": 0.05,
    "ngvi": 0.01,
    "natural_von": 0.01,
    "natural_vadam": 0.01,
    "bbb": 0.01,
    "bayesadam": 0.01,
}
VARIANTS = {
    "von elementwise": {"correction": "elementwise"},
    "von backtracking": {"correction": "backtracking"},
    "von exact": {"hessian": "exact", "correction": "elementwise"},
    "von hutchinson": {"hessian": "hutchinson", "probes": 2},
    "vogn momentum": {"betas": (0.9, 0.99)},
    "ivon eager": {"compile": False},
}
"""Registered optimisers with options that change what is done with a gradient."""
REPRESENTATIVES = ["vadam", "bayesadam", "ivon", "vogn", "von exact"]
"""One of every kind: curvature from the gradient, from the noise, from outside, and by second derivatives. What
does not depend on the rule is tested on these."""
SHARDED = ["vadam", "ivon", "vogn momentum", "von elementwise"]
"""What stands for all that can be sharded and trained in several processes."""
MODES = ["block", "closure", "train"]


class Method:
    """One registered optimiser: ``method(model, **hyperparameters)`` with what it requires filled in."""

    def __init__(self, key):
        self.key = key
        self.name, _, _ = key.partition(" ")
        self.cls = OPTIMIZERS[self.name]
        self.options = VARIANTS.get(key, {})
        self.learned = self.name == "bayesadam"
        self.takes_second_derivatives = self.options.get("hessian") in ("exact", "hutchinson")
        self.mode = "block" if self.takes_second_derivatives else "train"  # with drop-in training wherever there is one

    def __call__(self, model, params=None, **hyperparameters):
        """An optimiser of the model's named parameters, or of other parameters or groups of it."""
        settings = {"lr": RATES[self.name], "num_data": 50}
        if self.name == "vadagrad":
            settings["initial_precision"] = 50.0
        if self.name == "bayesadam":
            settings |= {"batch_size": 8, "total_steps": 100}
        if self.name == "vogn":
            settings["curvature"] = PerExampleSquares(model)
        settings |= self.options | hyperparameters
        return self.cls(model.named_parameters() if params is None else params, **settings)


def methods(keys, **where):
    """Parametrise a test by ``method``; with ``where``, by those whose attributes have these values."""
    chosen = [Method(key) for key in keys]
    chosen = [method for method in chosen if all(getattr(method, name) == value for name, value in where.items())]
    return pytest.mark.parametrize("method", chosen, ids=[method.key for method in chosen])


def ways(keys, modes=MODES):
    """Parametrise a test by ``method`` and ``mode``; drop-in training refuses second derivatives."""
    pairs = [(method, mode) for method in map(Method, keys) for mode in modes]
    pairs = [(method, mode) for method, mode in pairs if mode != "train" or not method.takes_second_derivatives]
    return pytest.mark.parametrize(("method", "mode"), pairs, ids=[f"{method.key}-{mode}" for method, mode in pairs])


EVERY = [*RATES, *VARIANTS]
every_method = methods(EVERY)
"""For tests of what the rule does: every registered optimiser and all variants."""
representatives = methods(REPRESENTATIVES)


def make_net(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(dtype)


def layer_groups(net, **second):
    """A group for each layer of the small network; the second one has these options."""
    first, last = ({"params": list(net[part].named_parameters(str(part)))} for part in (0, 2))
    return [first, last | second]


def made(method, dtype=torch.float32, **hyperparameters):
    """The small network and an optimiser of all its parameters."""
    net = make_net(dtype)
    return net, method(net, **hyperparameters)


def scrambled(method, dtype=torch.float32, **hyperparameters):
    """A network and optimiser in which nothing is as it was saved."""
    net, opt = made(method, dtype, **hyperparameters)
    with torch.no_grad():
        for p in net.parameters():
            p.normal_()
    return net, opt


def batch(step=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(16, 3, generator=generator).to(dtype), torch.randn(16, 2, generator=generator).to(dtype)


def loss_of(net, step=0):
    x, y = batch(step, next(net.parameters()).dtype)
    return mse_loss(net(x), y)


def differentiates(opt):
    """Whether the method itself differentiates the loss."""
    return opt.param_groups[0].get("hessian") in ("exact", "hutchinson")


def backward(opt, loss):
    """Backpropagate at a sample, in the way that the method asks for."""
    opt.backward(loss) if differentiates(opt) else loss.backward()


def closure_of(opt, compute):
    """What ``step`` is given, from a function that computes the loss."""

    def closure():
        opt.zero_grad()
        loss = compute()
        if not differentiates(opt):
            loss.backward()
        return loss

    return closure


def in_blocks(opt, compute):
    """Gradients of a loss at all samples of the next step, before ``step()``."""
    opt.zero_grad()
    for _ in range(opt.param_groups[0]["mc_samples"]):
        with opt.sampled_params():
            backward(opt, compute())


def make_step(opt, compute, mode="block"):
    """One step in one of the three ways to train."""
    if mode == "closure":
        opt.step(closure_of(opt, compute))
        return
    if mode == "train":
        opt.train()
        opt.zero_grad()
        backward(opt, compute())
    else:
        in_blocks(opt, compute)
    opt.step()


def train(net, opt, steps, first=0, mode="block"):
    """Some steps; the weights hold the mean at the end, but not in drop-in training."""
    for step in range(first, first + steps):
        make_step(opt, lambda step=step: loss_of(net, step), mode)


def weights(net):
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


def mean_of(opt):
    return torch.cat([value.double().flatten() for value in opt.posterior().mean.values()])


def variance_of(opt):
    return torch.cat([value.double().flatten() for value in opt.posterior().variance.values()])


def snapshot(opt):
    """Everything an optimiser holds, for exact comparison."""
    groups = [{k: v for k, v in g.items() if k != "params"} for g in opt.param_groups]
    states = [
        {k: v.clone() if torch.is_tensor(v) else v for k, v in opt.state[p].items()}
        for g in opt.param_groups
        for p in g["params"]
        if p in opt.state
    ]
    return groups, states


def same(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(v, second[k]) for k, v in first.items())
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def by_name(net):
    """Values of the parameters, as a posterior has its means."""
    return {name: p.detach().clone() for name, p in net.named_parameters()}
