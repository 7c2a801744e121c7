"""The reference: one backward pass for every example, alone."""

import copy

import torch

from bayesadam.curvature import PerExampleSquares


def by_example(loss):
    """Squared error, a mean or sum over examples of the sum over everything else."""
    return lambda y, t: getattr((y - t).square().flatten(1).sum(1), loss)()


def squares_of_examples(model, x, t):
    """Mean over the examples of their squared gradients, by parameter name, in float64, and by a plain loop."""
    model = copy.deepcopy(model).double()
    x = x.double() if x.is_floating_point() else x
    found = {name: torch.zeros_like(p) for name, p in model.named_parameters() if p.requires_grad}
    for i in range(len(x)):
        model.zero_grad()
        by_example("mean")(model(x[i : i + 1]), t.double()[i : i + 1]).backward()
        for name in found:
            grad = model.get_parameter(name).grad
            if grad is not None:
                found[name] += grad.square() / len(x)
    return found


def targets(model, x, seed=1):
    generator = torch.Generator().manual_seed(seed)
    y = model(x)
    return torch.randn(y.shape, generator=generator, dtype=torch.float64).to(y.dtype)


def started(model, **options):
    squares = PerExampleSquares(model, **options)
    squares.start()
    return squares


def read(model, squares):
    return {name: squares.mean_squares(p) for name, p in model.named_parameters() if p.requires_grad}


def collected(model, x, t, reduction="mean"):
    """The same by hooks: squares and gradients by name."""
    squares = started(model, reduction=reduction)
    model.zero_grad()
    squares.backward(by_example(reduction)(model(x), t))
    squares.stop()
    return read(model, squares), {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def plain_gradients(model, x, t, reduction="mean"):
    model.zero_grad()
    by_example(reduction)(model(x), t).backward()
    return {name: p.grad for name, p in model.named_parameters() if p.requires_grad}


def assert_near(found, expected, tolerance):
    """Equal relative to the largest entry of every parameter."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if value is None or found[name] is None:
            assert found[name] is value or (value is not None and not value.any()), name
            continue
        assert found[name].shape == value.shape, name
        scale = value.abs().max().item()
        error = (found[name].double() - value.double()).abs().max().item()
        assert error <= tolerance * scale + 1e-30, f"{name}: {error / max(scale, 1e-300):.2e}"


TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6}


def check(model, x, dtype=torch.float64, reduction="mean"):
    """Squares are the reference's, and gradients what they are without hooks."""
    model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    t = targets(model, x)
    expected, gradients = squares_of_examples(model, x, t), plain_gradients(model, x, t, reduction)
    gradients = {name: None if g is None else g.clone() for name, g in gradients.items()}
    found, grads = collected(model, x, t, reduction)
    assert_near(found, expected, TOLERANCE[dtype])
    assert_near(grads, gradients, TOLERANCE[dtype])
    assert any(value.any() for value in expected.values())
