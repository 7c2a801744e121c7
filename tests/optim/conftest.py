"""The registered optimisers, made ready for small problems."""

import pytest
import torch

from bayesadam.optim import OPTIMIZERS

REQUIRED = {"vadagrad": {"initial_precision": 50.0}}
RATES = {"vadam": 0.01, "vprop": 0.01, "vadagrad": 0.1, "ivon": 0.1}


class Method:
    """One registered optimiser: ``method(params, **hyperparameters)`` with what it requires filled in."""

    def __init__(self, name):
        self.name = name
        self.cls = OPTIMIZERS[name]
        self.has_prior = self.cls.has_prior

    def __call__(self, params, **kwargs):
        return self.cls(params, **{"lr": RATES[self.name], "num_data": 50, **REQUIRED.get(self.name, {}), **kwargs})


@pytest.fixture(params=sorted(OPTIMIZERS))
def method(request):
    return Method(request.param)


@pytest.fixture
def net():
    return make_net()


def make_net(dtype=torch.float32):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(dtype)


def batch(step=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randn(16, 3, generator=generator).to(dtype), torch.randn(16, 2, generator=generator).to(dtype)


def loss_of(net, step=0):
    x, y = batch(step, next(net.parameters()).dtype)
    return torch.nn.functional.mse_loss(net(x), y)


def train(net, opt, steps, first=0, mode="block"):
    """``steps`` steps in one of the three ways to train; the weights hold the mean at the end of the first two."""
    samples = opt.param_groups[0]["mc_samples"]
    if mode == "train":
        opt.train()
    for step in range(first, first + steps):
        if mode == "block":
            for _ in range(samples):
                with opt.sampled_params():
                    opt.zero_grad()
                    loss_of(net, step).backward()
            opt.step()
        elif mode == "closure":

            def closure(step=step):
                opt.zero_grad()
                loss = loss_of(net, step)
                loss.backward()
                return loss

            opt.step(closure)
        else:
            opt.zero_grad()
            loss_of(net, step).backward()
            opt.step()


def weights(net):
    return torch.cat([p.detach().double().flatten() for p in net.parameters()])


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
