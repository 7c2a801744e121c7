"""Copies and pickles of the model, with hooks on, and of the model together with its squares."""

import copy
import io

import pytest
import torch
from torch import nn

from bayesadam.curvature import PerExampleSquares
from curvature.conftest import assert_near, by_example, read, squares_of_examples, started, targets
from curvature.models import mlp, tokens, transformer


def by_torch_save(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=False)


COPIES = [copy.deepcopy, by_torch_save]


def used(make=transformer):
    model, x = make().double(), tokens()
    t = targets(model, x)
    squares = started(model)
    by_example("mean")(model(x), t).backward()
    return model, squares, x, t


@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_the_model_has_hooks_that_do_nothing(copied):
    model, squares, x, t = used()
    before = {name: squares.mean_squares(p).clone() for name, p in model.named_parameters()}
    other = copied(model)
    other.zero_grad()
    by_example("mean")(other(x), t).backward()
    assert squares.num_examples == 6
    assert_near(read(model, squares), before, 0.0)
    torch.testing.assert_close([p.grad for p in other.parameters()], [p.grad for p in model.parameters()])
    with pytest.raises(ValueError, match="parameter must be of the model"):
        squares.mean_squares(other.head.weight)


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("model_first", [True, False])
def test_a_copy_of_both_belongs_together(copied, model_first):
    model, squares, x, t = used()
    if model_first:
        other, other_squares = copied((model, squares))
    else:
        other_squares, other = copied((squares, model))
    assert other_squares.model is other
    assert other_squares.num_examples == 0
    other.zero_grad()
    by_example("mean")(other(x), t).backward()
    found = read(other, other_squares)
    assert_near(found, squares_of_examples(model, x, t), 1e-12)
    assert squares.num_examples == other_squares.num_examples == 6


@pytest.mark.parametrize("copied", COPIES)
def test_a_stopped_one_stays_stopped(copied):
    model = mlp()
    other, squares = copied((model, PerExampleSquares(model, reduction="sum")))
    other(torch.ones(2, 5)).sum().backward()
    assert squares.num_examples == 0
    assert squares.reduction == "sum"
    squares.start()
    other(torch.ones(2, 5)).sum().backward()
    assert squares.num_examples == 2


def test_a_model_that_leads_to_its_squares():
    """As a trainer's module does that has its optimiser as an attribute."""
    model, first, x, t = used()
    first.stop()
    model.squares = PerExampleSquares(model)
    model.squares.start()
    other = copy.deepcopy(model)
    assert other.squares.model is other
    other.squares.start()
    by_example("mean")(other(x), t).backward()
    assert other.squares.num_examples == 6
    assert model.squares.num_examples == 0


def test_state_dicts_and_other_hooks_are_untouched():
    model, squares, x, _ = used()
    seen = []
    model.head.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    model(x)
    squares.stop()
    model(x)
    assert seen == [(6, 5, 9)] * 2
    assert model.state_dict().keys() == transformer().state_dict().keys()


def test_models_that_change_between_starts():
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh())
    squares = started(model)
    model(torch.ones(2, 5)).sum().backward()
    model.append(nn.Linear(4, 3))
    model[0] = nn.Linear(5, 4, bias=False)
    squares.start()
    model(torch.ones(2, 5)).sum(1).mean().backward()
    assert [squares.mean_squares(p).shape for p in model.parameters()] == [(4, 5), (3, 4), (3,)]
