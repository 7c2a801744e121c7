"""Closed forms against a loop over the examples, in all options."""

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from bayesadam.curvature import PerExampleSquares
from bayesadam.curvature.replay import Replay
from bayesadam.curvature.totals import chunks
from bayesadam.curvature.units import units_of
from curvature.conftest import check, started
from curvature.models import convnet, inputs, mlp, tokens, transformer


def closed(model):
    """The model, none of whose layers is called again."""
    assert not any(isinstance(unit.method, Replay) for unit in units_of(model, {}, PerExampleSquares._closed)[0])
    return model


NETWORKS = [
    (mlp(), inputs(6, 5), torch.float32, "mean"),
    (mlp(), inputs(1, 5), torch.float64, "sum"),
    (convnet(), inputs(6, 2, 8, 8), torch.float32, "sum"),
    (convnet(), inputs(6, 2, 8, 8), torch.float64, "mean"),
    *((transformer(rows=rows), tokens(), torch.float32, "mean") for rows in ("flat", "row", "all")),
    (transformer(rows="row"), tokens(1), torch.float64, "sum"),
]


@pytest.mark.parametrize(("model", "x", "dtype", "reduction"), NETWORKS)
def test_networks(model, x, dtype, reduction):
    check(closed(model), x, dtype, reduction)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2, 3), (1, 3)])
@pytest.mark.parametrize("bias", [True, False])
def test_linear(shape, bias):
    check(nn.Sequential(closed(nn.Linear(3, 5, bias=bias)), nn.Tanh()), inputs(*shape, 3))


def test_wide_linear_goes_through_several_chunks_and_one_by_one():
    check(closed(nn.Sequential(nn.Linear(700, 500), nn.Tanh())), inputs(5, 3, 700))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@given(
    dimensions=st.integers(1, 3),
    groups=st.integers(1, 3),
    per_group=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    kernel=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    stride=st.lists(st.integers(1, 3), min_size=3, max_size=3),
    dilation=st.lists(st.integers(1, 2), min_size=3, max_size=3),
    padding=st.one_of(st.sampled_from(["same", "valid"]), st.lists(st.integers(0, 2), min_size=3, max_size=3)),
    mode=st.sampled_from(["zeros", "reflect", "replicate", "circular"]),
    size=st.lists(st.integers(3, 6), min_size=3, max_size=3),
    examples=st.integers(1, 4),
    bias=st.booleans(),
    channels_last=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_convolutions(
    dimensions, groups, per_group, kernel, stride, dilation, padding, mode, size, examples, bias, channels_last
):
    kernel, stride, dilation, size = (tuple(v[:dimensions]) for v in (kernel, stride, dilation, size))
    if padding == "same":
        stride = (1,) * dimensions
        pads = [(k - 1) * d for k, d in zip(kernel, dilation, strict=True)]
    else:
        padding = padding if isinstance(padding, str) else tuple(padding[:dimensions])
        pads = [0] * dimensions if padding == "valid" else [2 * p for p in padding]
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    assume(all(n + p >= e for n, p, e in zip(size, pads, extents, strict=True)))
    assume(mode == "zeros" or all(p < n for p, n in zip(pads, size, strict=True)))
    torch.manual_seed(0)
    layer = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dimensions - 1](
        groups * per_group[0],
        groups * per_group[1],
        kernel,
        stride=stride,
        dilation=dilation,
        padding=padding,
        padding_mode=mode,
        groups=groups,
        bias=bias,
    )
    x = inputs(examples, groups * per_group[0], *size)
    if channels_last and dimensions == 2:
        layer, x = layer.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    check(nn.Sequential(closed(layer), nn.Tanh()), x)


def test_convolutions_of_different_padding_share_buffers():
    """The border of a padded buffer must stay zero, whatever other layers write."""
    layers = [nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=(2, 0)), nn.Conv2d(2, 2, 3, padding=(0, 2))]
    check(closed(nn.Sequential(*layers, *layers[:0], nn.Tanh(), nn.Conv2d(2, 2, 1))), inputs(4, 2, 6, 6))


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 2, 3)])
@pytest.mark.parametrize("padding", [None, 2])
@pytest.mark.parametrize("by_frequency", [False, True])
def test_embedding(shape, padding, by_frequency):
    layer = closed(nn.Embedding(3, 2, padding_idx=padding, scale_grad_by_freq=by_frequency))
    x = torch.tensor([2, 0, 2, 1]) if shape == (4,) else torch.randint(0, 3, shape)
    if not by_frequency:
        check(nn.Sequential(layer, nn.Tanh()), x)
        return
    squares = started(layer, reduction="sum")
    layer(x).pow(2).sum().backward()
    counts = torch.bincount(x.flatten(), minlength=3)
    expected = torch.zeros(3, 2)
    for i in range(4):
        own = torch.zeros(3, 2)
        for index in x[i].flatten().tolist():
            if index != padding:
                own[index] += 2 * layer.weight.detach()[index] / counts[index]
        expected += own.square() / 4
    torch.testing.assert_close(squares.mean_squares(layer.weight), expected)


def scrambled(layer):
    """With weights that are not ones and zeros, and running statistics likewise."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for tensor in (*layer.parameters(), *(b for b in layer.buffers() if b.is_floating_point())):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return layer


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.LayerNorm(3), (4, 3)),
        (nn.LayerNorm(3, bias=False), (4, 2, 3)),
        (nn.LayerNorm((2, 3)), (4, 5, 2, 3)),
        (nn.LayerNorm((2, 3), elementwise_affine=True, eps=0.1), (4, 2, 3)),
        (nn.RMSNorm(3), (4, 5, 3)),
        (nn.RMSNorm((2, 3), eps=0.1), (4, 2, 3)),
        (nn.GroupNorm(2, 4), (4, 4)),
        (nn.GroupNorm(2, 4, eps=0.1), (4, 4, 3, 2)),
        (nn.InstanceNorm1d(3, affine=True), (4, 3, 5)),
        (nn.InstanceNorm2d(3, affine=True, track_running_stats=True).eval(), (4, 3, 5, 2)),
        (nn.InstanceNorm3d(3, affine=True, eps=0.1), (4, 3, 2, 2, 2)),
        (nn.BatchNorm1d(3).eval(), (4, 3)),
        (nn.BatchNorm1d(3).eval(), (4, 3, 2)),
        (nn.BatchNorm2d(3, eps=0.1).eval(), (4, 3, 2, 2)),
        (nn.BatchNorm3d(3).eval(), (4, 3, 2, 2, 2)),
    ],
    ids=str,
)
def test_normalisation(layer, shape):
    check(nn.Sequential(nn.Identity(), closed(scrambled(layer)), nn.Tanh()), inputs(*shape))


def test_subclass_with_another_forward_has_no_closed_form():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    class Renamed(nn.Linear):
        pass

    class DoubledConvolution(nn.Conv1d):
        def _conv_forward(self, x, weight, bias):
            return 2 * super()._conv_forward(x, weight, bias)

    class Scaled(nn.Linear):
        def __init__(self):
            super().__init__(2, 2)
            self.scale = nn.Parameter(torch.ones(2))
            self.register_forward_hook(lambda module, args, output: output)

    layers = [Doubled(3, 2), Renamed(2, 2), DoubledConvolution(4, 3, 1), Scaled()]
    methods = [units_of(layer, {}, PerExampleSquares._closed)[0][0].method for layer in layers]
    assert [isinstance(m, Replay) for m in methods] == [True, False, True, True]
    check(nn.Sequential(*layers[:2], nn.Tanh(), *layers[2:]), inputs(5, 4, 3))


@pytest.mark.parametrize("change", [lambda layer, args, output: 2 * output, lambda layer, args, out: out.mul_(2)])
@pytest.mark.parametrize("make", [mlp, convnet, lambda: nn.Sequential(nn.Linear(5, 3), nn.PReLU(3))])
def test_hooks_that_change_what_layers_return(make, change):
    """They count as layers of their own, also where the layer's own backward pass is replaced."""
    model = make()
    for layer in model:
        if [*layer.parameters()]:
            layer.register_forward_hook(change)
    check(model, inputs(6, 2, 8, 8) if make is convnet else inputs(6, 5))


@pytest.mark.parametrize("name", ["weight", "bias"])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(3, 2), (4, 3)),
        (nn.Linear(3, 2), (4, 5, 3)),
        (nn.Conv1d(3, 2, 2), (4, 3, 5)),
        (nn.LayerNorm(3), (4, 3)),
    ],
    ids=str,
)
def test_frozen(layer, shape, name):
    layer = scrambled(layer)
    layer.requires_grad_(True).get_parameter(name).requires_grad_(False)
    check(nn.Sequential(nn.Identity(), layer, nn.Tanh()), inputs(*shape))
    layer.requires_grad_(True)


def test_gradient_of_the_inputs():
    """Layers that take over the weight's gradient pass the inputs' on."""
    for layer, shape in ((nn.Linear(3, 2), (4, 5, 3)), (nn.Conv2d(2, 4, 3, 2, 1, 1, 2), (4, 2, 5, 6))):
        x = inputs(*shape).requires_grad_()
        layer(x).pow(2).mean().backward()
        expected, x.grad = x.grad, None
        squares = PerExampleSquares(layer)
        squares.start()
        layer(x).pow(2).mean().backward()
        torch.testing.assert_close(x.grad, expected)


def test_chunks_are_small_enough_and_cover_all_examples():
    assert chunks(7, 10, 25) == [slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 7)]
    assert chunks(3, 100, 25) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    assert chunks(3, 0, 25) == [slice(0, 3)]
    assert chunks(0, 8, 25) == []
