"""What two ranks do in the distributed tests; each function runs in both processes and raises where it is wrong."""

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from bayesadam.curvature import PerExampleSquares
from curvature.conftest import assert_near, by_example, read, squares_of_examples, targets
from curvature.models import TorchAttention, convnet, inputs, mlp, tokens, transformer

SIZES = (2, 4)


def networks():
    for make, x in (
        (mlp, inputs(6, 5).double()),
        (convnet, inputs(6, 2, 8, 8).double()),
        (transformer, tokens()),
        (lambda: transformer(rows="row", tied=True, attention=TorchAttention), tokens()),
    ):
        model = make().double()
        yield model, x, targets(model, x)


def mean_over_ranks(model, x, t):
    parts = zip(x.split(SIZES), t.split(SIZES), strict=True)
    first, second = (squares_of_examples(model, part, target) for part, target in parts)
    return {name: (value + second[name]) / 2 for name, value in first.items()}


def data_parallel(rank, folder):
    """Ranks with different numbers of examples count alike, as in the averaged gradients."""
    for model, x, t in networks():
        expected = mean_over_ranks(model, x, t)
        parallel = DistributedDataParallel(model)
        squares = PerExampleSquares(parallel)
        grads = []
        squares.start(lambda grads=grads, model=model: grads.append([p.grad.clone() for p in model.parameters()]))
        squares.backward(by_example("mean")(parallel(x.split(SIZES)[rank]), t.split(SIZES)[rank]))
        assert squares.num_examples == SIZES[rank]
        found = read(model, squares)
        assert_near(found, expected, 1e-12)
        torch.testing.assert_close(grads, [[p.grad for p in model.parameters()]])


def unused_on_one_rank(rank, folder):
    """A rank that does not use a parameter takes part all the same."""
    model = torch.nn.ModuleDict({k: torch.nn.Linear(5, 3) for k in "abc"}).double()
    model.forward = lambda x, keys: sum(model[key](x) for key in keys)
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    squares = PerExampleSquares(parallel)
    x = inputs(6, 5).double()
    squares.start()
    parallel(x, "ab" if rank == 0 else "a").sum(1).mean().backward()
    expected = x.square().mean(0).expand(3, 5)
    torch.testing.assert_close(squares.mean_squares(model["a"].weight), expected)
    torch.testing.assert_close(squares.mean_squares(model["b"].weight), expected / 2)
    assert squares.mean_squares(model["c"].weight) is None


def sharded(rank, folder):
    """FSDP2: full tensors, although parameters are shards between the passes."""
    mesh = init_device_mesh("cpu", (2,))
    for model, x, t in networks():
        expected = mean_over_ranks(model, x, t)
        tied = model.head.weight is model.tokens.weight if hasattr(model, "head") else False
        for layer in model.children():
            if any(True for _ in layer.parameters()) and not tied and not isinstance(layer, torch.nn.ModuleList):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        squares = PerExampleSquares(model)
        for _ in range(2):
            squares.start()
            model.zero_grad()
            squares.backward(by_example("mean")(model(x.split(SIZES)[rank]), t.split(SIZES)[rank]))
            squares.stop()
            found = read(model, squares)
            assert_near(found, expected, 1e-12)
    with pytest.raises(ValueError, match=r"got a sharded parameter of shape \(3, 6\)"):
        PerExampleSquares(mlp()).mean_squares(fully_shard(mlp(), mesh=mesh)[4].weight)
