"""Badam: variances from every optimiser's state by hand, and from the gradients that it saw."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.posthoc import badam
from bayesadam.posthoc.badam import FORMULAE

F64 = {"dtype": torch.float64}
OPTIMIZERS = {
    "Adam": partial(torch.optim.Adam, betas=(0.8, 0.93)),
    "Adam, fused": partial(torch.optim.Adam, betas=(0.8, 0.93), fused=True),
    "Adam, tensor lr": partial(torch.optim.Adam, lr=torch.tensor(0.02), betas=(0.8, 0.93), foreach=False),
    "Adam, b2 = 0": partial(torch.optim.Adam, betas=(0.8, 0.0)),
    "Adam, maximize": partial(torch.optim.Adam, maximize=True),
    "Adam, amsgrad": partial(torch.optim.Adam, betas=(0.8, 0.5), amsgrad=True),
    "AdamW": partial(torch.optim.AdamW, betas=(0.8, 0.93), weight_decay=0.1),
    "NAdam": partial(torch.optim.NAdam, betas=(0.8, 0.93)),
    "RAdam": partial(torch.optim.RAdam, betas=(0.8, 0.93)),
    "RMSprop": partial(torch.optim.RMSprop, lr=1e-3, alpha=0.9),
    "RMSprop, centred": partial(torch.optim.RMSprop, lr=1e-3, alpha=0.9, centered=True, momentum=0.5),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.05),
    "Adagrad, from 0.5": partial(torch.optim.Adagrad, lr=0.05, initial_accumulator_value=0.5),
}
STEPS = 12


def network(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)


def train(model, optimizer, steps=STEPS):
    """Real training; returns the gradients of every step by name."""
    generator = torch.Generator().manual_seed(1)
    seen = []
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        x = torch.randn(5, 3, generator=generator, **F64).to(dtype)
        y = torch.randn(5, 2, generator=generator, **F64).to(dtype)
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        seen.append({n: p.grad.detach().clone() for n, p in model.named_parameters() if p.grad is not None})
        optimizer.step()
    return seen


def from_gradients(optimizer, group, grads):
    """The same from the gradients, one after the other: sums over steps with explicit weights."""
    count = len(grads)
    if isinstance(optimizer, torch.optim.Adagrad):
        return sum(g**2 for g in grads) / count
    if isinstance(optimizer, torch.optim.RMSprop):
        weights = [(1 - group["alpha"]) * group["alpha"] ** (count - 1 - t) for t in range(count)]
        second = sum(w * g**2 for w, g in zip(weights, grads, strict=True))
        first = sum(w * g for w, g in zip(weights, grads, strict=True))
        return second - first**2 if group["centered"] else second
    b2 = group["betas"][1]
    averages = [sum((1 - b2) * b2 ** (end - t) * grads[t] ** 2 for t in range(end + 1)) for end in range(count)]
    last = torch.stack(averages).amax(0) if group.get("amsgrad") else averages[-1]
    return last / (1 - b2**count)


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_variance_from_every_optimizer(name):
    model = network()
    optimizer = OPTIMIZERS[name](model.parameters())
    seen = train(model, optimizer)
    q = badam(optimizer, model, num_data=50, prior_precision=0.3)
    group = optimizer.param_groups[0]
    assert list(q.mean) == [n for n, _ in model.named_parameters()]
    for key, parameter in model.named_parameters():
        assert torch.equal(q.mean[key], parameter)
        slow = from_gradients(optimizer, group, [step[key] for step in seen])
        torch.testing.assert_close(q.variance[key], 1 / (50 * slow.sqrt() + 0.3), rtol=1e-9, atol=0.0)


def test_no_class_is_reached_by_inheritance_alone():
    """In PyTorch 2.6 AdamW is no subclass of Adam."""
    assert {type(make(network().parameters())) for make in OPTIMIZERS.values()} <= set(FORMULAE)


def test_a_wrapper_that_keeps_an_optimizer():
    class Wrapper(torch.optim.Optimizer):
        """As that of Accelerate: an optimiser by class, whose state is that of the one inside."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    expected = badam(optimizer, model, num_data=50, prior_precision=0.3)
    found = badam(Wrapper(Wrapper(optimizer)), model, num_data=50, prior_precision=0.3)
    assert found.hyperparameters == expected.hyperparameters
    for name, variance in expected.variance.items():
        assert torch.equal(found.variance[name], variance)


def test_coupled_weight_decay_is_squared_with_the_gradient():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.5), weight_decay=0.4)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    (grads,) = train(model, optimizer, steps=1)
    q = badam(optimizer, model, num_data=7, prior_precision=0)
    for name, value in q.variance.items():
        root = (grads[name] + 0.4 * before[name]).abs()
        torch.testing.assert_close(value, 1 / (7 * root), rtol=1e-12, atol=0.0)


def test_groups_with_different_betas():
    model = network()
    groups = [
        {"params": model[0].parameters(), "betas": (0.9, 0.5)},
        {"params": model[2].parameters(), "betas": (0.9, 0.99), "amsgrad": True},
    ]
    optimizer = torch.optim.Adam(groups)
    seen = train(model, optimizer)
    q = badam(optimizer, model, num_data=50, prior_precision=1.0)
    for key in q.mean:
        group = optimizer.param_groups[0 if key.startswith("0.") else 1]
        slow = from_gradients(optimizer, group, [step[key] for step in seen])
        torch.testing.assert_close(q.variance[key], 1 / (50 * slow.sqrt() + 1), rtol=1e-9, atol=0.0)


def test_final_form_without_prior_and_second_version():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    seen = train(model, optimizer)
    again = torch.optim.Adam(model.parameters())
    again.load_state_dict(optimizer.state_dict())
    final = badam(again, model, num_data=20, prior_precision=0.0)
    second = badam(optimizer, model, num_data=20, prior_precision=3.0, weights="mle")
    options = {"num_data": 20, "prior_precision": 3.0, "weights": "mle"}
    assert second.hyperparameters == {"method": "badam", "optimizer": "Adam", **options}
    for name, parameter in model.named_parameters():
        root = from_gradients(optimizer, optimizer.param_groups[0], [step[name] for step in seen]).sqrt()
        exact = {"rtol": 1e-9, "atol": 0.0}
        torch.testing.assert_close(final.variance[name], 1 / (20 * root), **exact)
        assert torch.equal(final.mean[name], parameter)
        torch.testing.assert_close(second.variance[name], 1 / (20 * root + 3.0), **exact)
        torch.testing.assert_close(second.mean[name], parameter.detach() * root / (root + 3.0 / 20), **exact)


def test_copies_and_leaves_everything_as_it_is():
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    train(model, optimizer)
    before = copy.deepcopy((dict(model.state_dict()), optimizer.state_dict()["state"]))
    q = badam(optimizer, model, num_data=20, weights="mle")
    for value in (*q.mean.values(), *q.variance.values()):
        value.zero_()
    now = dict(model.state_dict()), optimizer.state_dict()["state"]
    torch.testing.assert_close(now, before, rtol=0, atol=0)


def test_low_precision_weights_give_a_posterior_in_float32():
    model = network(torch.bfloat16)
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    q = badam(optimizer, model, num_data=20, prior_precision=1.0)
    for name, parameter in model.named_parameters():
        assert (q.mean[name].dtype, q.variance[name].dtype) == (torch.float32, torch.float32)
        root = (optimizer.state[parameter]["exp_avg_sq"].double() / (1 - 0.999**STEPS)).sqrt()
        torch.testing.assert_close(q.variance[name].double(), 1 / (20 * root + 1), rtol=1e-6, atol=0.0)


def test_frozen_parameters_have_no_posterior():
    model = network()
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    model[0].weight.requires_grad_(False)
    q = badam(optimizer, model, num_data=20)
    assert list(q.mean) == ["0.bias", "2.weight", "2.bias"]
    q.match(model)


def refused(
    message,
    optimizer=torch.optim.Adam,
    steps=1,
    model=None,
    error=ValueError,
    change=lambda model, opt: None,
    **options,
):
    model = network() if model is None else model
    optimizer = optimizer(model.parameters())
    if steps:
        train(model, optimizer, steps)
    change(model, optimizer)
    with pytest.raises(error, match=message):
        badam(optimizer, model, **{"num_data": 10, **options})


def test_refusals():
    refused("^optimizer must be one of torch.optim's Adam, AdamW, .*, got SGD$", torch.optim.SGD, error=TypeError)
    for name in ("Adam", "RMSprop", "Adagrad"):
        message = f"^optimizer must have trained the model, got {name} without a step$"
        refused(message, OPTIMIZERS[name], steps=0, error=RuntimeError)
    for value in (0, math.inf, "10", None):
        refused("^num_data must be a positive, finite number, got ", num_data=value)
    for value in (-1.0, math.nan, "1"):
        message = "^prior_precision must be a finite number of at least 0, or 'safe', got "
        refused(message, prior_precision=value)
    refused("^weights must be 'map' or 'mle', got 'mean'$", weights="mean")
    message = "^optimizer must hold the model's trainable parameter '2.weight', got no such parameter$"
    refused(message, lambda p: torch.optim.Adam([*p][:2]))
    refused(
        "^the second moments of '2.bias' must be finite, got inf or nan$",
        change=lambda model, opt: opt.state[model[2].bias]["exp_avg_sq"].fill_(math.nan),
    )
    refused("^model must have a trainable parameter, got none$", change=lambda model, opt: model.requires_grad_(False))
    model = network()
    with pytest.raises(TypeError, match=r"got Vadam \(it has a posterior of its own: optimizer.posterior\(\)\)$"):
        badam(ba.Vadam(model.named_parameters(), num_data=10), model, num_data=10)


@pytest.mark.parametrize("name", ["Adam", "Adagrad"])
def test_a_parameter_without_gradients_is_refused(name):
    model = network()
    model.register_parameter("unused", nn.Parameter(torch.zeros(2, **F64)))
    refused("^optimizer must have stepped with a gradient of 'unused', got none", OPTIMIZERS[name], model=model)


def test_dead_inputs_need_a_prior():
    model = network()
    model[0].weight.register_hook(lambda grad: grad.index_fill(1, torch.tensor([1]), 0.0))
    optimizer = torch.optim.Adam(model.parameters())
    train(model, optimizer)
    message = "^prior_precision must be positive where second moments are 0, got 0 and 4 zeros of 12 in '0.weight' "
    with pytest.raises(ValueError, match=message):
        badam(optimizer, model, num_data=10, prior_precision=0)
    q = badam(optimizer, model, num_data=10, prior_precision=0.5)
    assert (q.variance["0.weight"][:, 1] == 2.0).all()
