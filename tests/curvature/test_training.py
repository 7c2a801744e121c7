"""Training loops: micro-batches, shared parameters, scaled losses, autocast, checkpointing, evaluation between."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from bayesadam.curvature.collector import Collector
from curvature.conftest import assert_near, by_example, check, collected, read, squares_of_examples, started, targets
from curvature.models import Transformer, convnet, inputs, mlp, tokens, transformer
from modules import module_of
from operations import Counted


def without_closed_forms():
    torch.manual_seed(0)
    layers = [nn.Linear(5, 6), nn.PReLU(6), nn.Unflatten(1, (3, 2)), nn.ConvTranspose1d(3, 2, 2), nn.Flatten()]
    return nn.Sequential(*layers)


def setup(make=mlp, dtype=torch.float64, reduction="mean"):
    model = make().to(dtype)
    x = {convnet: inputs(6, 2, 8, 8).to(dtype), transformer: tokens()}.get(make, inputs(6, 5).to(dtype))
    return model, x, targets(model, x), started(model, reduction=reduction)


@pytest.mark.parametrize("make", [mlp, convnet, transformer])
@pytest.mark.parametrize(("reduction", "sizes"), [("sum", (1, 5)), ("mean", (2, 2, 2))])
def test_micro_batches(make, reduction, sizes):
    model, x, t, squares = setup(make, reduction=reduction)
    for part, target in zip(x.split(sizes), t.split(sizes), strict=True):
        loss = by_example(reduction)(model(part), target)
        squares.backward(loss / 3 if reduction == "mean" else loss)
    assert squares.num_examples == 6
    assert_near(read(model, squares), squares_of_examples(model, x, t), 1e-12)


def test_reading_between_and_again():
    model, x, t, squares = setup()
    by_example("mean")(model(x), t).backward()
    first = {name: value.clone() for name, value in read(model, squares).items()}
    assert_near(read(model, squares), first, 0.0)
    by_example("mean")(model(x), t).backward()
    assert squares.num_examples == 12
    assert_near(read(model, squares), {name: 4 * value for name, value in first.items()}, 1e-12)
    squares.discard()
    assert squares.num_examples == 0
    by_example("mean")(model(x), t).backward()
    assert_near(read(model, squares), first, 1e-12)
    squares.start()
    model.zero_grad()
    assert squares.num_examples == 0
    assert set(read(model, squares).values()) == {None}
    by_example("mean")(model(x), t).backward()
    assert_near(read(model, squares), first, 1e-12)
    squares.stop()
    by_example("mean")(model(x), t).backward()
    assert_near(read(model, squares), first, 1e-12)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_a_pass_from_before_the_start_does_not_count():
    model, x, t, squares = setup()
    loss = by_example("mean")(model(x), t)
    squares.start()
    loss.backward()
    assert squares.num_examples == 0
    with pytest.raises(RuntimeError, match=r"the gradient of parameter 0.weight must come from calls"):
        squares.mean_squares(model[0].weight)


def test_forgetting_between_forward_and_backward():
    """``zero_grad`` may come there."""
    model, x, t, squares = setup(transformer)
    loss = by_example("mean")(model(x), t)
    squares.discard()
    loss.backward()
    assert squares.num_examples == 6
    assert_near(read(model, squares), squares_of_examples(model, x, t), 1e-12)


@pytest.mark.parametrize("own_pass", [True, False])
@pytest.mark.parametrize("make", [mlp, convnet, without_closed_forms])
def test_a_gradient_for_another_purpose_is_not_squared(make, own_pass):
    """An adversarial example, of the same forward pass or of one of its own."""
    model, x, t, squares = setup(make)
    attacked = x.clone().requires_grad_()
    loss = by_example("mean")(model(attacked), t)
    (slope,) = torch.autograd.grad(loss, attacked, retain_graph=not own_pass)
    assert slope.abs().min() > 0
    (by_example("mean")(model(x), t) if own_pass else loss).backward()
    assert squares.num_examples == 6
    assert_near(read(model, squares), squares_of_examples(model, x, t), 1e-12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("by", ["grad", "inputs"])
def test_gradients_that_are_requested_by_name_are_squared(by, tied):
    torch.manual_seed(0)
    model = Transformer(tied=tied).double()
    x, squares = tokens(), started(model)
    t = targets(model, x)
    weights = list(model.parameters())
    loss = by_example("mean")(model(x), t)
    if by == "grad":
        for weight, grad in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = grad
    else:
        loss.backward(inputs=weights)
    assert squares.num_examples == len(x)
    assert_near(read(model, squares), squares_of_examples(model, x, t), 1e-12)


def test_only_layers_whose_gradients_are_computed_are_squared():
    model, x, t, squares = setup()
    by_example("mean")(model(x), t).backward(inputs=list(model[-1].parameters()))
    found = read(model, squares)
    assert found["0.weight"] is None
    expected = squares_of_examples(model, x, t)
    last = ("4.weight", "4.bias")
    assert_near({name: found[name] for name in last}, {name: expected[name] for name in last}, 1e-12)


@pytest.mark.parametrize("make", [mlp, without_closed_forms])
def test_a_penalty_on_gradients_is_refused(make):
    model, x, t, _squares = setup(make)
    attacked = x.clone().requires_grad_()
    loss = by_example("mean")(model(attacked), t)
    with pytest.raises(RuntimeError, match="create_graph must be False while per-example gradients are squared"):
        torch.autograd.grad(loss, attacked, create_graph=True)


def test_passes_without_backward_do_not_count():
    model, x, t, squares = setup()
    model(x[:2])
    with torch.no_grad():
        model(x[:3])
    by_example("mean")(model(x), t).backward()
    assert squares.num_examples == 6
    assert_near(read(model, squares), squares_of_examples(model, x, t), 1e-12)


@pytest.mark.parametrize("part", ["all", "some"])
def test_an_unused_parameter(part):
    model = nn.ModuleDict({"a": nn.Linear(5, 3), "b": nn.Linear(5, 3)}).double()
    model.forward = lambda x, keys: sum(model[key](x) for key in keys)
    x, t = inputs(6, 5).double(), inputs(6, 3).double()
    squares = started(model)
    by_example("mean")(model(x[:2], "ab" if part == "some" else "a"), t[:2]).div(2).backward()
    by_example("mean")(model(x[2:4], "a"), t[2:4]).div(2).backward()
    assert squares.num_examples == 4
    expected = 0.0
    if part == "all":
        assert squares.mean_squares(model["b"].weight) is None
    else:
        squares.stop()
        for i in range(2):
            model.zero_grad()
            by_example("mean")(model(x[i : i + 1], "ab"), t[i : i + 1]).backward()
            expected = expected + model["b"].weight.grad.square() / 4
        torch.testing.assert_close(squares.mean_squares(model["b"].weight), expected)


# Parameters that are used more than once


def test_tied_weights():
    check(transformer(tied=True), tokens())
    check(transformer(tied=True, rows="row"), tokens(2), torch.float32, "sum")


class Twice(nn.Module):
    """A layer called twice, one of them perhaps without gradient, and one called a varying number of times."""

    def __init__(self, layer, second_with_gradient=True):
        super().__init__()
        self.layer, self.last, self.second_with_gradient = layer, nn.Linear(4, 2), second_with_gradient

    def forward(self, x):
        y = self.layer(x).tanh()
        with torch.set_grad_enabled(self.second_with_gradient and torch.is_grad_enabled()):
            z = self.layer(y)
        return self.last(y + z)


@pytest.mark.parametrize("with_gradient", [True, False])
@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Linear(4, 4), (6, 4)),
        (nn.Linear(4, 4), (6, 3, 4)),
        (nn.LayerNorm(4), (6, 4)),
        (nn.Conv1d(4, 4, 3, padding=1), (6, 4, 4)),
        (nn.PReLU(), (6, 4)),
    ],
    ids=str,
)
def test_a_layer_called_twice(layer, shape, with_gradient):
    check(Twice(layer, with_gradient), inputs(*shape))


def test_a_parameter_twice_in_one_module():
    weight = nn.Parameter(torch.randn(4))
    both = module_of(lambda self, x: (x * self.first).tanh() * self.second, first=weight, second=weight)
    check(nn.Sequential(both), inputs(6, 4))
    norm = nn.LayerNorm(4)
    norm.bias = norm.weight
    check(nn.Sequential(norm, nn.Tanh()), inputs(6, 4))


def test_shared_layers_in_micro_batches():
    model, x, t = transformer(tied=True).double(), tokens(), None
    t = targets(model, x)
    squares = started(model, reduction="sum")
    first = by_example("sum")(model(x[:2]), t[:2])
    by_example("sum")(model(x[2:]), t[2:]).backward()
    first.backward()
    found = read(model, squares)
    assert_near(found, squares_of_examples(model, x, t), 1e-12)


# Scales and precisions


def test_the_loss_scale_enters_squared():
    model, x, t, squares = setup(transformer, torch.float32)
    expected = squares_of_examples(model, x, t)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    squares.start()
    squares.backward(scaler.scale(by_example("mean")(model(x), t)))
    assert_near(read(model, squares), {name: value * 2.0**32 for name, value in expected.items()}, 2e-6)


@pytest.mark.parametrize("make", [mlp, convnet, transformer, without_closed_forms])
def test_autocast(make):
    """As a loop over the examples under autocast, as far as bfloat16 rounds the same."""
    model, x, t, squares = setup(make, torch.float32)
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for i in range(6):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = by_example("mean")(model(x[i : i + 1]).float(), t[i : i + 1])
        loss.backward()
        for name, p in model.named_parameters():
            expected[name] += p.grad.square() / 6
    model.zero_grad()
    squares.start()
    with torch.autocast("cpu", torch.bfloat16):
        loss = by_example("mean")(model(x).float(), t)
    loss.backward()
    found = read(model, squares)
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert_near(found, expected, 0.05)


@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.ConvTranspose1d(3, 2, 2)], ids=str)
def test_a_backward_pass_inside_an_autocast_region_squares_in_full_precision(layer):
    model, x = nn.Sequential(nn.Identity(), layer), inputs(6, 3, 3)
    t = targets(model, x)
    squares = started(model)
    loss = by_example("mean")(model(x), t)
    with torch.autocast("cpu", torch.bfloat16):
        loss.backward()
    found = read(model, squares)
    assert_near(found, squares_of_examples(model, x, t), 2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_squares_of_low_precision_parameters_are_wide(dtype):
    """Their output gradients are squared in float32: 1e-5 squared is zero in float16."""
    layer, x = nn.Linear(3, 2).to(dtype), inputs(4, 3).to(dtype)
    squares = started(layer, reduction="sum")
    (layer(x) * 1e-4).sum().backward()
    found = squares.mean_squares(layer.weight)
    assert found.dtype == torch.float32
    expected = (x.float() * float(torch.tensor(1e-4, dtype=dtype))).square().mean(0).expand(2, 3)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


# Several backward passes through one forward pass


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (mlp(), inputs(6, 5)),
        (convnet(), inputs(6, 2, 8, 8)),
        (transformer(), tokens()),
        (transformer(tied=True), tokens()),
        (Twice(nn.Linear(4, 4)), inputs(6, 4)),
        (Twice(nn.PReLU()), inputs(6, 4)),
        (nn.Sequential(nn.Linear(5, 3, bias=False), nn.Tanh(), nn.Linear(3, 2)), inputs(6, 1, 5)),
    ],
    ids=["mlp", "convnet", "transformer", "tied", "twice", "twice in two ways", "one position"],
)
def test_several_vectors(model, x):
    model = copy.deepcopy(model).double()
    x = x.double() if x.is_floating_point() else x
    vectors = torch.randn(3, *model(x).shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    squares = started(model, reduction="sum")
    for vector in vectors:
        model(x).backward(vector)
    expected = {name: 18 * value for name, value in read(model, squares).items()}
    model.zero_grad()
    squares.start()
    for _ in range(2):
        squares.backward_each(model(x), iter(vectors), len(vectors))
    assert squares.num_examples == 12
    assert all(p.grad is None for p in model.parameters())
    for name, value in read(model, squares).items():
        assert torch.allclose(12 * value, 2 * expected[name], rtol=1e-10), name


# Checkpointing, evaluation, memory


class Checkpointed(nn.Module):
    """Parts of a network, and all of it if asked, are computed a second time in the backward pass."""

    def __init__(self, reentrant, tied=False):
        super().__init__()
        torch.manual_seed(0)
        self.reentrant = reentrant
        self.first, self.second, self.last = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.third = nn.PReLU()
        if tied:
            self.last.weight = self.second.weight

    def forward(self, x):
        def middle(h):
            return self.third(self.second(h)).tanh()

        h = self.first(x)
        h = checkpoint(middle, h, use_reentrant=self.reentrant)
        return self.last(checkpoint(middle, h, use_reentrant=self.reentrant))


@pytest.mark.parametrize(
    ("reentrant", "positions", "tied"), [(False, (), True), (True, (), False), (False, (3,), False), (True, (3,), True)]
)
def test_checkpointing(reentrant, positions, tied):
    check(Checkpointed(reentrant, tied), inputs(6, *positions, 5))


@pytest.mark.parametrize(("make", "reentrant"), [(mlp, True), (convnet, False), (transformer, True)])
def test_checkpointing_the_whole_model(make, reentrant):
    model, x, t, squares = setup(make)
    x_in = x.clone().requires_grad_() if x.is_floating_point() else x
    anchor = torch.zeros((), requires_grad=True, dtype=torch.float64)
    y = checkpoint(lambda x, anchor: model(x) + anchor, x_in, anchor, use_reentrant=reentrant)
    by_example("mean")(y, t).backward()
    assert squares.num_examples == 6
    assert_near(read(model, squares), squares_of_examples(model, x, t), 1e-12)


def test_checkpointing_still_saves_memory():
    """What is saved for the squares is not kept over the forward pass."""
    kept = []
    layer = nn.Linear(5, 5)

    def part(h):
        h = h * 1.0
        kept.append(weakref.ref(h))
        return layer(h).tanh()

    model = module_of(lambda self, x: checkpoint(part, x, use_reentrant=False), layer=layer)
    squares = started(model)
    y = model(inputs(6, 3, 5))
    gc.collect()
    assert kept[0]() is None
    y.sum().backward()
    assert squares.mean_squares(layer.weight) is not None


def test_activations_are_freed_by_the_backward_pass():
    model, x, t, _squares = setup(transformer)
    seen = []
    model.norm.register_forward_hook(lambda module, args, output: seen.append(weakref.ref(args[0])))
    loss = by_example("mean")(model(x), t)
    loss.backward()
    gc.collect()
    assert seen[0]() is None
    assert loss.grad_fn is not None


def test_nothing_is_kept_of_a_model_and_its_passes():
    model, x, t, squares = setup(transformer)
    by_example("mean")(model(x), t).backward()
    model(x)
    gone = [weakref.ref(model), weakref.ref(squares), weakref.ref(model.head.weight)]
    gc.disable()
    try:
        del model, squares
        assert [reference() for reference in gone] == [None, None, None]
    finally:
        gc.enable()


def test_called_after_backward_when_gradients_are_complete():
    model, x, t, squares = setup(transformer)
    calls = []
    squares.start(lambda: calls.append([None if p.grad is None else p.grad.clone() for p in model.parameters()]))
    by_example("mean")(model(x), t).backward()
    by_example("mean")(model(x), t).backward()
    assert len(calls) == 2
    torch.testing.assert_close(calls[1], [p.grad for p in model.parameters()])
    torch.testing.assert_close(calls[1], [2 * g for g in calls[0]])


@pytest.mark.parametrize("forgets", [True, False])
def test_a_failed_backward_pass_does_not_stay_behind(forgets):
    model, x = transformer(tied=True).double(), tokens()
    t = targets(model, x)
    squares = started(model)
    y = model(x)

    def fail(grad):
        raise KeyError("user's")

    handle = model.norm.weight.register_hook(fail)
    with pytest.raises(KeyError, match="user's"):
        by_example("mean")(y, t).backward()
    handle.remove()
    if forgets:
        squares.discard()
    model.zero_grad()
    by_example("mean")(model(x), t).backward()
    found, expected = read(model, squares), squares_of_examples(model, x, t)
    if not forgets:
        # The examples of both passes count, and the embedding's gradients of the one that did not fail.
        name = "tokens.weight"
        found, expected = {name: found[name]}, {name: 2 * expected[name]}
    assert_near(found, expected, 1e-12)


def test_function_transforms_are_left_alone():
    model, x, t, squares = setup()
    values = dict(model.named_parameters())

    def loss(values, x, t):
        return by_example("mean")(torch.func.functional_call(model, values, (x[None],)), t[None])

    grads = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(values, x, t)
    squares.stop()
    found, _ = collected(model, x, t)
    assert_near(found, {name: g.square().mean(0) for name, g in grads.items()}, 1e-12)


def test_inputs_in_nested_containers():
    def forward(self, name, *, batch):
        return {"y": (self.layer(batch["x"][0]),)}

    model, x = module_of(forward, layer=nn.Linear(5, 3)), inputs(6, 5)
    squares = started(model)
    model("name", batch={"x": [x]})["y"][0].sum(1).mean().backward()
    assert squares.num_examples == 6
    torch.testing.assert_close(squares.mean_squares(model.layer.weight), x.square().mean(0).expand(3, 5))


def operations_of_backward_each(examples):
    """What one announced backward pass through a convolutional network dispatches."""
    model = convnet()
    squares = started(model, reduction="sum")
    output = model(inputs(examples, 2, 8, 8))
    with Counted() as counted:
        squares.backward_each(output, [torch.ones_like(output)], 1)
    return counted.calls


def test_no_operation_is_for_one_example():
    """Where the gradients of all examples fit into a chunk, as they do here on a CPU and always nearly on a GPU."""
    few, many = map(operations_of_backward_each, (3, 30))
    assert few == many


def test_a_pass_for_squares_alone_sums_no_gradients(monkeypatch):
    """The sums, of which an ordinary pass makes ``.grad``, would read all gradients of the examples once more."""
    requests = []
    take = Collector.take

    def noted(self, call, *, sums):
        requests.append(sums)
        return take(self, call, sums=sums)

    monkeypatch.setattr(Collector, "take", noted)
    operations_of_backward_each(3)
    assert requests == [False] * 4
