"""Parameters that a module adds to its tensors or repeats, whose examples' gradients need no second call."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bayesadam.curvature import PerExampleSquares
from bayesadam.curvature.added import Use
from bayesadam.curvature.fallback import Replay
from curvature.conftest import by_example, check, read, squares_of_examples, started, targets
from curvature.models import Attention, Block, inputs


class Positions(nn.Module):
    """A transformer whose learned positions are a parameter beside its children."""

    def __init__(self, use, *shape, rate=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.positions = nn.Parameter(torch.randn(shape))
        self.use, self.first, self.dropout = use, nn.Linear(3, 4), nn.Dropout(rate)
        self.block, self.last = Block(4, Attention), nn.Linear(4, 2)

    def forward(self, x):
        return self.last(self.block(self.use(self.first(self.dropout(x)), self.positions)))


ADDED = {
    "an axis for the examples": (lambda h, p: h + p, (1, 5, 4)),
    "no axis for the examples": (lambda h, p: h + p, (5, 4)),
    "the same for all positions": (lambda h, p: p + h, (4,)),
    "the same for all features": (lambda h, p: h + p, (5, 1)),
    "one number": (lambda h, p: h + p, ()),
    "in place": (lambda h, p: h.clone().add_(p), (1, 5, 4)),
    "the first of many": (lambda h, p: h + p[:, :5], (1, 7, 4)),
    "one of several tables": (lambda h, p: h + p[1, 1:6].unsqueeze(0), (2, 7, 4)),
    "all of them": (lambda h, p: h + p[:, :5], (1, 5, 4)),
    "in another shape": (lambda h, p: h + p.view(5, 4), (20,)),
    "transposed": (lambda h, p: h + p.squeeze(0).mT.permute(0, 1), (1, 4, 5)),
    "the token of a class": (lambda h, p: torch.cat([p.expand(len(h), -1, -1), h[:, 1:]], 1), (1, 1, 4)),
    "the token of a class, once more": (lambda h, p: torch.cat([p.expand(len(h), 1, 4), h[:, 1:]], 1), (4,)),
    "twice": (lambda h, p: (h + p).tanh() + p[0], (5, 4)),
}


@pytest.fixture
def calls_of_replay(monkeypatch):
    calls = []
    before = Replay.gradients
    monkeypatch.setattr(Replay, "gradients", lambda *args: calls.append(args) or before(*args))
    return calls


@pytest.mark.parametrize("examples", [1, 6])
@pytest.mark.parametrize("use", ADDED)
def test_added(use, examples, calls_of_replay):
    function, shape = ADDED[use]
    check(Positions(function, *shape), inputs(examples, 5, 3))
    assert not calls_of_replay


@pytest.mark.parametrize("use", ["the first of many", "twice"])
def test_low_precision_and_sums(use):
    function, shape = ADDED[use]
    check(Positions(function, *shape), inputs(6, 5, 3), torch.float32, reduction="sum")


OTHER = {
    "a factor": (lambda h, p: h * p, (5, 4)),
    "added with a factor": (lambda h, p: torch.add(h, p, alpha=2.0), (5, 4)),
    "added and a factor": (lambda h, p: h + p + h * p, (5, 4)),
    "added after a function": (lambda h, p: h + p.tanh(), (5, 4)),
    "added where the examples are elsewhere": (lambda h, p: (h.transpose(0, 1) + p).transpose(0, 1), (4,)),
}


@pytest.mark.parametrize("use", OTHER)
def test_other_uses_are_replayed(use, calls_of_replay):
    function, shape = OTHER[use]
    check(Positions(function, *shape), inputs(6, 5, 3))
    assert calls_of_replay


def test_children_may_draw_random_numbers():
    function, shape = ADDED["the first of many"]
    model, x = Positions(function, *shape, rate=0.5).double(), inputs(6, 5, 3).double()
    t, squares = targets(model, x), started(model)
    torch.manual_seed(1)
    by_example("mean")(model(x), t).backward()
    torch.manual_seed(1)
    kept = nn.functional.dropout(torch.ones_like(x))
    model.dropout.p = 0.0
    expected = squares_of_examples(model, x * kept, t)["positions"]
    torch.testing.assert_close(read(model, squares)["positions"], expected, rtol=1e-12, atol=1e-12)


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        function, shape = ADDED["twice"]
        self.inner, self.first, self.reentrant = Positions(function, *shape), nn.Linear(3, 3), reentrant

    def forward(self, x):
        return checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant, calls_of_replay):
    check(Checkpointed(reentrant), inputs(6, 5, 3))
    assert not calls_of_replay


def test_several_backward_passes():
    function, shape = ADDED["twice"]
    model, x = Positions(function, *shape).double(), inputs(6, 5, 3).double()
    vectors = [inputs(6, 5, 2, seed=seed).double() for seed in (3, 4)]
    squares = PerExampleSquares(model, reduction="sum")
    squares.start()
    squares.backward_each(model(x), vectors, len(vectors))
    found = squares.mean_squares(model.positions)
    squares.stop()
    expected = torch.zeros_like(model.positions)
    for example in range(len(x)):
        for vector in vectors:
            output = model(x[example : example + 1])
            (gradient,) = torch.autograd.grad(output, model.positions, vector[example : example + 1])
            expected += gradient.square() / len(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_graphs_are_freed():
    function, shape = ADDED["the first of many"]
    model, x = Positions(function, *shape), inputs(6, 5, 3)
    squares = started(model)
    for backward in (True, False):
        output = model(x)
        if backward:
            output.sum().backward()
    squares.stop()
    del output
    squares.start()
    gc.collect()
    assert not [each for each in gc.get_objects() if type(each) is Use]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    function, shape = ADDED["the first of many"]
    model, x = Positions(function, *shape).to(dtype), inputs(6, 5, 3).to(dtype)
    squares = started(model)
    by_example("mean")(model(x), torch.zeros(6, 5, 2, dtype=dtype)).backward()
    found = squares.mean_squares(model.positions)
    expected = squares_of_examples(model, x, torch.zeros(6, 5, 2))["positions"]
    assert found.dtype == torch.float32
    assert (found.double() - expected).norm() < 0.05 * expected.norm()
