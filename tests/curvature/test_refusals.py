"""What is refused, by name and before it is silently wrong."""

import gc
import re

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.curvature import PerExampleSquares
from curvature.conftest import check, read, started
from curvature.models import inputs, mlp, tokens, transformer
from modules import module_of
from refusals import assert_refused, refusals


class Reshaped(nn.Module):
    """A layer whose input does not start with the examples."""

    def __init__(self, layer, *shape):
        super().__init__()
        self.layer, self.shape = layer, shape

    def forward(self, x):
        return self.layer(x.reshape(self.shape))


class Total(nn.Module):
    """An output that does not start with the examples."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return (x * self.weight).sum(0)


class Constant(nn.Module):
    """No input."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self):
        return self.weight


class Functional(nn.Module):
    """Uses the embedding's weight once more, or a layer's weight only, without calling the module."""

    def __init__(self, tied):
        super().__init__()
        self.tied, self.embedding, self.linear = tied, nn.Embedding(9, 4), nn.Linear(4, 4)

    def forward(self, x):
        h = self.embedding(x)
        if self.tied:
            return nn.functional.linear(self.linear(h), self.embedding.weight)
        return nn.functional.linear(h, self.linear.weight)


def packed():
    return nn.utils.rnn.pack_padded_sequence(inputs(6, 5, 3), torch.tensor([5, 4, 3, 3, 2, 1]), batch_first=True)


def tied(self, x):
    return nn.functional.linear(self.embedding(x), self.embedding.weight, self.bias)


def given(self, x):
    return self.last(self.layer(x), self.layer.weight)


FIRST = "the first axis of the input of module 'layer' ({}) must be the 6 examples of the minibatch that the model was "
FIRST += "called with, got shape {}"
CALLS = {
    "linear": (Reshaped(nn.Linear(3, 2), 24, 3), inputs(6, 4, 3), FIRST.format("Linear", (24, 3))),
    "one axis": (Reshaped(nn.Linear(6, 2), 6), inputs(6), FIRST.format("Linear", (6,))),
    "convolution": (Reshaped(nn.Conv1d(6, 2, 1), 6, 4), inputs(6, 4), FIRST.format("Conv1d", (6, 4))),
    "group norm": (Reshaped(nn.GroupNorm(1, 3), 8, 3, 3), inputs(6, 4, 3), FIRST.format("GroupNorm", (8, 3, 3))),
    "called again": (Reshaped(nn.PReLU(), 24, 3), inputs(6, 4, 3), FIRST.format("PReLU", (24, 3))),
    "output": (
        nn.Sequential(Total()),
        inputs(6, 3),
        "axis 0 of the output of module '0' (Total) must be the 6 examples",
    ),
    "no inputs": (
        module_of(lambda self, x: x + self.constant(), constant=Constant()),
        inputs(6, 3),
        "the input of module 'constant' (Constant) must be the 6 examples",
    ),
    "packed": (nn.LSTM(3, 4, batch_first=True), packed(), "the input of LSTM must be a tensor, got a PackedSequence"),
    "positions": (transformer(), tokens(5), "the indices of module 'positions' (Embedding) must be unambiguous"),
    "tied": (Functional(True), tokens(), "parameter embedding.weight must be used only by calls of its module"),
    "tied, beside a bias": (
        module_of(tied, embedding=nn.Embedding(9, 4), bias=nn.Parameter(torch.zeros(9))),
        tokens(),
        "parameter embedding.weight must be used only by calls of its module",
    ),
    "as an argument": (
        module_of(
            given,
            layer=nn.Linear(3, 2),
            last=module_of(lambda self, h, weight: h @ weight + self.bias, bias=nn.Parameter(torch.ones(3))),
        ),
        inputs(6, 3),
        "parameter layer.weight must be used only by calls of its module",
    ),
    "weight only": (Functional(False), tokens(), "parameter linear.weight must be used only by calls of its module"),
}


@pytest.mark.parametrize("name", CALLS)
def test_forward_passes_that_are_refused(name):
    model, x, message = CALLS[name]
    squares = started(model)
    with pytest.raises(RuntimeError, match=re.escape(message)):
        model(x)
    assert squares.num_examples == 0
    squares.stop()
    model(x)


def part_is_compiled():
    model = mlp()
    model[2].compile()
    return model


MODELS = {
    "reduction": (lambda: PerExampleSquares(mlp(), reduction="none"), "reduction must be 'mean' or 'sum', got 'none'"),
    "compiled": (lambda: PerExampleSquares(torch.compile(mlp())), "must not be compiled, got a compiled module ''"),
    "a part": (lambda: PerExampleSquares(part_is_compiled()), "must not be compiled, got a compiled module '2'"),
    "replicated": (lambda: PerExampleSquares(nn.DataParallel(mlp())), "a plain module, got DataParallel ''"),
    "parameter": (lambda: started(mlp()).mean_squares(mlp()[0].weight), "parameter must be of the model"),
}


@refusals(MODELS.values())
def test_models_and_arguments_that_are_refused(call, error, message):
    assert_refused(call, error, message)


@pytest.mark.parametrize("statistics", [True, False])
def test_batch_normalisation_of_the_batch(statistics):
    layer = nn.BatchNorm1d(5) if statistics else nn.BatchNorm1d(5, track_running_stats=False).eval()
    model, x = nn.Sequential(nn.Linear(5, 5), layer, nn.Tanh()), inputs(6, 5)
    started_squares = started(model)
    match = r"module '1' must not normalise over the minibatch .* got BatchNorm1d in training mode \(use GroupNorm"
    with pytest.raises(RuntimeError, match=match):
        model(x)
    with torch.no_grad():
        model(x)
    assert started_squares.num_examples == 0


def test_batch_normalisation_of_features_without_gradient():
    model = nn.Sequential(nn.BatchNorm1d(5, affine=False), nn.Linear(5, 3))
    squares, x = started(model), inputs(6, 5)
    model(x).sum(1).mean().backward()
    features = model[0](x)
    torch.testing.assert_close(squares.mean_squares(model[1].weight), features.square().mean(0).expand(3, 5))


def test_as_many_positions_as_examples_once_seen_with_another_number():
    model, x = transformer(), tokens(5)
    squares = started(model)
    model(tokens(6))
    squares.start()
    model(x).square().flatten(1).sum(1).mean().backward()
    found = read(model, squares)
    other = transformer(rows="row")
    squares = started(other)
    other(x).square().flatten(1).sum(1).mean().backward()
    torch.testing.assert_close(found, read(other, squares))


@pytest.mark.parametrize("how", ["view", "other values", "known"])
def test_one_index_for_each_example(how):
    def forward(self, x):
        return self.embedding(x[:, 0] if how == "view" else x[:, 0] * 1).tanh()

    model, x = module_of(forward, embedding=nn.Embedding(6, 3)), torch.arange(12).view(6, 2) // 2
    if how == "other values":
        x = x.flip(0)
    if how == "known":
        squares = started(model)
        model(x.flip(0))
        squares.start()
        model(x).sum(1).mean().backward()
        expected = (1 - model.embedding.weight.detach().tanh().square()).square() / 6
        torch.testing.assert_close(squares.mean_squares(model.embedding.weight), expected)
        return
    check(model, x)


@pytest.mark.parametrize("make", [mlp, transformer])
def test_two_backward_passes_through_one_forward_pass(make):
    model = make()
    squares = started(model)
    y = model(tokens() if make is transformer else inputs(6, 5))
    y.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="must be called once for each forward pass .* got a second backward pass"):
        y.sum().backward()
    squares.discard()
    assert squares.num_examples == 0


def test_a_call_from_outside_the_models_forward():
    model = mlp()
    squares = started(model)
    with pytest.raises(RuntimeError, match=r"module '0' \(Linear\) must be called by the model's forward"):
        model[0](inputs(6, 5))
    model(inputs(6, 5)).sum().backward()
    with pytest.raises(RuntimeError, match=r"module '0' \(Linear\) must be called by the model's forward"):
        model[0](inputs(6, 5))
    with torch.no_grad():
        model[0](inputs(6, 5))
    assert squares.num_examples == 6


def test_a_parameter_that_only_the_loss_uses():
    model = mlp()
    model.extra = nn.Linear(3, 3)
    model.forward = lambda x: nn.Sequential.forward(model[:5], x)
    squares = started(model)
    y = model(inputs(6, 5))
    nn.functional.linear(y, model.extra.weight).sum().backward()
    assert squares.mean_squares(model[0].weight) is not None
    assert squares.mean_squares(model.extra.bias) is None
    match = r"the gradient of parameter extra.weight must come from calls of its module .* got one that no hook saw"
    with pytest.raises(RuntimeError, match=match):
        squares.mean_squares(model.extra.weight)


def test_a_parameter_beside_the_layers_that_only_the_loss_uses():
    """The module that holds it is called, but does not use it."""
    model = mlp()
    model.log_noise = nn.Parameter(torch.zeros(3))
    squares = started(model)
    loss = (model(inputs(6, 5)).square() * model.log_noise.exp()).mean()
    loss.backward()
    assert squares.mean_squares(model[0].weight).any()
    with pytest.raises(RuntimeError, match="the gradient of parameter log_noise must come from .* let the likelihood"):
        squares.mean_squares(model.log_noise)
    model.log_noise.grad.zero_()
    assert not squares.mean_squares(model.log_noise).any()


@pytest.mark.parametrize("part", [False, True])
def test_two_on_one_model(part):
    model, x = mlp(), inputs(6, 5)
    squares = started(model)
    second = PerExampleSquares(model[0] if part else model)
    match = "a model must have at most one started PerExampleSquares at a time, got a second one: use one optimizer"
    with pytest.raises(RuntimeError, match=match):
        second.start()
    assert not second.started
    model(x).sum(1).mean().backward()
    assert squares.num_examples == 6
    squares.stop()
    second.start()


def test_one_that_nobody_refers_to_any_more():
    model = mlp()
    gc.disable()
    try:
        squares = started(model)
        squares.cycle = squares
        del squares
        assert started(model).started
    finally:
        gc.enable()


def test_two_optimizers_on_one_model():
    """Each in its block, one after the other, may have its own squares; in drop-in training none may be shared."""
    model, x = mlp(), inputs(6, 5)

    def vogn(layer, squares):
        return ba.VOGN(layer.parameters(), num_data=6, curvature=squares)

    first, second = (vogn(layer, PerExampleSquares(model)) for layer in (model[0], model[2]))
    with first.sampled_params():
        with pytest.raises(RuntimeError, match="use one optimizer with param groups"), second.sampled_params():
            pass
        model(x).sum(1).mean().backward()
    first.step()
    first.train()
    before = model[2].weight.detach().clone()
    with pytest.raises(RuntimeError, match="use one optimizer with param groups"):
        second.train()
    assert torch.equal(model[2].weight, before)
    second.eval()
    first.eval()
    squares = PerExampleSquares(model)
    first, second = vogn(model[0], squares), vogn(model[2], squares)
    first.train()
    second.train()
    model.zero_grad()
    model(x).sum(1).mean().backward()
    first.step()
    match = r"the gradient .* whose squares were discarded by the step of another optimizer .* with param groups"
    with pytest.raises(RuntimeError, match=match):
        second.step()
