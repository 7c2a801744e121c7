"""The registered optimisers, made ready for small problems."""

import inspect

import pytest
import torch

from bayesadam.curvature import PerExampleSquares
from bayesadam.engine.engine import Engine
from bayesadam.optim import OPTIMIZERS

REQUIRED = {"vadagrad": {"initial_precision": 50.0}}
RATES = {
    "vadam": 0.01,
    "vprop": 0.01,
    "vadagrad": 0.1,
    "ivon": 0.1,
    "von": 0.05,
    "van": 0.05,
    "vogn": 0.05,
    "ngvi": 0.05,
    "natural_von": 0.01,
    "natural_vadam": 0.01,
    "bbb": 0.01,
}
VARIANTS = {
    "von full": {"covariance": "full"},
    "von backtracking": {"correction": "backtracking"},
    "von exact": {"hessian": "exact", "correction": "elementwise"},
    "von hutchinson": {"hessian": "hutchinson", "probes": 2},
    "von exact full": {"hessian": "exact", "covariance": "full", "correction": "elementwise"},
    "natural_von exact": {"hessian": "exact", "correction": "elementwise"},
    "vogn momentum": {"betas": (0.9, 0.99)},
    "ivon eager": {"compile": False},
    "vogn eager": {"compile": False},
    "vadam learned": {"recipe": "learned", "batch_size": 8},
    "vprop learned": {"recipe": "learned", "batch_size": 8},
    "ivon learned": {"recipe": "learned", "batch_size": 8, "lr": 1.0},
    "vogn learned": {"recipe": "learned"},
}
"""Registered optimisers with options that change what is done with a gradient."""
REPRESENTATIVES = [
    "vadam",
    "vadam learned",
    "ivon",
    "ivon learned",
    "ivon eager",
    "vogn",
    "von exact",
    "von exact full",
]
"""One of every kind: curvature from the gradient, from the noise (without kernels, too), from outside, and by second
derivatives, also in a matrix. What the base class does is tested on these."""
EVERY = [*sorted(OPTIMIZERS), *VARIANTS]
every_method = pytest.mark.parametrize("method", EVERY, indirect=True)
"""For tests of what the rule does: every registered optimiser and all variants."""
SHARDED = ["vadam", "ivon", "vogn", "vogn momentum", "von"]
"""What stands for all that can be sharded and trained in several processes."""


class Method:
    """One registered optimiser: ``method(params, **hyperparameters)`` with what it requires filled in."""

    def __init__(self, name):
        self.key = name
        self.name, _, variant = name.partition(" ")
        self.options = VARIANTS[name] if variant else {}
        self.cls = OPTIMIZERS[self.name]
        self.has_prior = self.cls.has_prior
        self.may_start_wider = self.cls.may_start_wider
        self.full = self.options.get("covariance") == "full"
        self.learned = self.options.get("recipe") == "learned"
        self.own_prior = self.learned
        self.deferred = self.options.get("hessian") in ("exact", "hutchinson")
        self.opened = []

    def __call__(self, params, *, model=None, **kwargs):
        options = {
            "lr": RATES[self.name],
            "num_data": 50,
            "recipe": "paper",
            **REQUIRED.get(self.name, {}),
            **self.options,
        }
        if self.name == "vogn":
            if model is None and inspect.isgenerator(params):  # of named_parameters()
                model = params.gi_frame.f_locals["self"]
            options["curvature"] = LooseSquares() if model is None else PerExampleSquares(model)
        return self.cls(params, **{**options, **kwargs})

    def skip_matrix(self, reason):
        """What cannot be asked of a full covariance."""
        if self.full:
            pytest.skip(reason)


class LooseSquares(PerExampleSquares):
    """For parameters that are no module's and gradients set by hand: as if a minibatch were one example."""

    reduction = "mean"
    num_examples = 1
    started = False

    def __init__(self):
        pass

    def start(self, after_backward=None):
        pass

    def stop(self):
        pass

    def pause(self):
        pass

    def resume(self, after_backward=None):
        pass

    def discard(self):
        pass

    def backward(self, loss):
        loss.backward()

    def check(self, loss):
        pass

    def covers(self, parameter):
        return True

    def mean_squares(self, parameter):
        squares = parameter.grad.detach().square()
        return squares.full_tensor() if hasattr(squares, "full_tensor") else squares


@pytest.fixture(params=REPRESENTATIVES)
def method(request, monkeypatch):
    """A representative, or with ``@every_method`` every optimiser.

    For methods that take the loss, ``loss.backward()`` in a test means ``opt.backward(loss)``, and drop-in training,
    which they refuse (a test of its own shows it), is skipped.
    """
    method = Method(request.param)
    if method.deferred:
        plain = torch.Tensor.backward

        enter = Engine.block

        def block(engine, **options):
            method.opened = [engine]
            return enter(engine, **options)

        def backward(loss, *args, **kwargs):
            opened = [engine for engine in method.opened if engine.open]
            opened[0].source.backward(loss) if opened else plain(loss, *args, **kwargs)

        def train(opt, mode=True):
            opt.eval()
            if mode:
                pytest.skip("drop-in training refuses exact and Hutchinson Hessians")

        monkeypatch.setattr(torch.Tensor, "backward", backward)
        monkeypatch.setattr(Engine, "block", block)
        monkeypatch.setattr(method.cls, "train", train)
    return method


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
                    if opt._engine.source is not None and opt._engine.source.differentiates:
                        opt.backward(loss_of(net, step))
                    else:
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
