"""Modules without a closed form, which are called again for the examples."""

import pytest
import torch
from torch import nn
from torch.nn.utils import prune, spectral_norm, weight_norm

from bayesadam.curvature import PerExampleSquares
from bayesadam.curvature.replay import Replay
from bayesadam.curvature.units import units_of
from curvature.conftest import assert_near, by_example, check, collected, squares_of_examples, started, targets
from curvature.models import First, TorchAttention, inputs, tokens, transformer
from modules import module_of


def replayed(model):
    assert any(isinstance(unit.method, Replay) for unit in units_of(model, {}, PerExampleSquares._closed)[0])
    return model


def squares_through_one_pass(model, x, t):
    """For models whose passes differ: the examples' squared gradients through one forward pass of them all."""
    output, named = model(x), {name: p for name, p in model.named_parameters() if p.requires_grad}
    expected = {name: torch.zeros_like(p) for name, p in named.items()}
    for own, target in zip(output, t, strict=True):
        loss = by_example("mean")(own[None], target[None])
        for name, grad in zip(named, torch.autograd.grad(loss, named.values(), retain_graph=True), strict=True):
            expected[name] += grad.square() / len(x)
    return expected


class Scale(nn.Module):
    """A parameter of its own beside a child, two inputs, a constant, an optional mask, two outputs and a number."""

    def __init__(self):
        super().__init__()
        self.scale, self.child = nn.Parameter(torch.tensor([0.5, 2.0, -1.0])), nn.Linear(3, 3)
        self.register_buffer("shift", torch.tensor(0.3))

    def forward(self, x, power, *, other, mask=None):
        y = self.child(x * self.scale) ** power + other["z"].tanh() * self.scale + self.shift
        return (y if mask is None else y * mask), {"norm": y.square().sum(-1), "count": len(x)}


class UsesScale(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part, self.scaled, self.last = part, Scale(), nn.Linear(3, 2)

    def forward(self, x):
        y, rest = self.scaled(x, 2, other={"z": x.flip(1)}, mask=torch.tensor([1.0, 0.5, 2.0], dtype=x.dtype))
        return {
            "first": lambda: self.last(y),
            "second": lambda: rest["norm"][:, None],
            "both": lambda: self.last(y) * rest["norm"][:, None],
        }[self.part]()


@pytest.mark.parametrize("frozen", [(), ("child.weight",), ("child.weight", "scale")])
@pytest.mark.parametrize(
    ("part", "dtype"), [("first", torch.float64), ("second", torch.float64), ("both", torch.float32)]
)
def test_several_inputs_and_outputs(part, dtype, frozen):
    model = replayed(UsesScale(part))
    for name in frozen:
        model.scaled.get_parameter(name).requires_grad_(False)
    check(model, inputs(6, 3), dtype)


@pytest.mark.parametrize(
    ("options", "dtype"), [({}, torch.float32), ({"kdim": 8, "vdim": 8, "bias": False}, torch.float64)]
)
def test_transformer_with_torch_attention(options, dtype):
    check(replayed(transformer(attention=lambda width: TorchAttention(width, **options))), tokens(), dtype)


class SequenceFirst(nn.Module):
    """The batch is the second axis inside."""

    def __init__(self, module):
        super().__init__()
        self.module, self.length = module, 4

    def forward(self, x):
        y = x.transpose(0, 1)
        found = self.module(y, y, y) if isinstance(self.module, nn.MultiheadAttention) else self.module(y)
        return found[0].transpose(0, 1)


class Masked(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.attention = kind, nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        length = x.shape[1]
        options = {}
        if self.kind == "padding":
            options["key_padding_mask"] = x[:, :, 0] > 1.0
        elif self.kind == "of examples":
            options["attn_mask"] = (x[:, None, :, :1] * x[:, None, None, :, 0]).expand(-1, 2, -1, -1).flatten(0, 1)
        else:
            options["attn_mask"] = torch.arange(length, dtype=x.dtype).outer(torch.ones(length, dtype=x.dtype)).tril()
        y, weights = self.attention(x, x.flip(1), x, **options, average_attn_weights=False)
        return y + weights.sum((1, 2))[..., None]


class Branching(nn.Module):
    """Cannot be mapped by vmap."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return torch.stack([row * self.weight if row.sum().item() > 0 else row * self.weight**2 for row in x])


class Unrolled(nn.Module):
    """A cell that is called once for every position, with a state."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def forward(self, x):
        state = None
        for position in range(x.shape[1]):
            state = self.cell(x[:, position], state)
        return state[0] if isinstance(state, tuple) else state


class Stated(nn.Module):
    """A recurrent layer that starts in a state from the inputs, and whose last state is used."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        count = self.module.num_layers * (1 + self.module.bidirectional)
        sizes = (self.module.proj_size or 4, 4)
        state = tuple(x[:, 0, :1].expand(count, len(x), size).tanh() for size in sizes)
        output, last = self.module(x, state if isinstance(self.module, nn.LSTM) else state[0])
        last = torch.cat(last, -1) if isinstance(last, tuple) else last
        return torch.cat([output.mean(1), last.movedim(1, 0).flatten(1)], 1)


def twice(self, x):
    return self.layer(x)[0] + self.layer(x.flip(1))[0]


def frozen(module, *names):
    for name in names:
        getattr(module, name).requires_grad_(False)
    return module


DEEP = {"num_layers": 2, "bidirectional": True, "bias": False}
MODULES = [
    (nn.PReLU(3), inputs(6, 3, 2)),
    (nn.ConvTranspose2d(2, 3, 3, stride=2), inputs(6, 2, 4, 3)),
    (nn.EmbeddingBag(9, 3), tokens()),
    (module_of(lambda self, x: self.layer(x, x.flip(1)), layer=nn.Bilinear(3, 3, 2)), inputs(6, 3)),
    (module_of(lambda self, x: self.layer(self.layer(x)), layer=nn.PReLU(3)), inputs(6, 3)),
    (nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True), inputs(6, 4, 6)),
    (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), inputs(6, 4, 3)),
    (Unrolled(nn.LSTMCell(3, 4)), inputs(6, 3, 3)),
    (Unrolled(nn.LSTMCell(3, 4, bias=False)), inputs(6, 3, 3)),
    (Unrolled(frozen(nn.GRUCell(3, 4), "bias_hh")), inputs(6, 3, 3)),
    (Unrolled(nn.RNNCell(3, 4, nonlinearity="relu")), inputs(6, 3, 3)),
    *((First(cls(3, 4, batch_first=True, **DEEP)), inputs(6, 5, 3)) for cls in (nn.RNN, nn.GRU, nn.LSTM)),
    *((Stated(cls(3, 4, batch_first=True)), inputs(6, 5, 3)) for cls in (nn.RNN, nn.GRU, nn.LSTM)),
    (Stated(nn.RNN(3, 4, 2, nonlinearity="relu", batch_first=True)), inputs(6, 5, 3)),
    (module_of(twice, layer=nn.LSTM(3, 4, batch_first=True)), inputs(6, 5, 3)),
    *(
        (First(frozen(nn.LSTM(3, 4, batch_first=True), *names)), inputs(6, 5, 3))
        for names in (["weight_ih_l0"], ["weight_hh_l0"], ["bias_ih_l0", "bias_hh_l0"])
    ),
    (Stated(nn.LSTM(3, 4, 2, batch_first=True, proj_size=2, bidirectional=True)), inputs(6, 5, 3)),
    # also when a sequence is as long as the minibatch
    *((SequenceFirst(cls(3, 4)), inputs(5, 5, 3)) for cls in (nn.RNN, nn.GRU, nn.LSTM)),
    *((SequenceFirst(nn.MultiheadAttention(6, 2)), inputs(examples, 4, 6)) for examples in (6, 4)),
    *((Masked(kind), inputs(n, 4, 6)) for kind in ("padding", "of examples", "shared") for n in (6, 4)),
]


@pytest.mark.parametrize(("module", "x"), MODULES, ids=lambda value: type(value).__name__)
def test_modules(module, x):
    check(replayed(nn.Sequential(module, nn.Tanh())), x)


def test_a_module_that_cannot_be_mapped_over_examples_is_refused():
    model, x = started(nn.Sequential(Branching())), inputs(6, 3)
    message = r"^module '0' \(Branching\) must be a module that torch.func.vmap can map over examples .*\.item"
    with pytest.raises(RuntimeError, match=message):
        model.model(x).sum().backward()


def test_in_several_chunks(monkeypatch):
    monkeypatch.setattr("bayesadam.curvature.replay.LIMIT", 1)
    check(replayed(UsesScale("both")), inputs(6, 3))


def standardised(layer):
    """With a hook of one's own, which also changes the input and takes keyword arguments."""

    def hook(module, args, kwargs):
        rows = module.weight_orig.flatten(1)
        module.weight = ((rows - rows.mean(1, keepdim=True)) / rows.std(1, keepdim=True)).view(module.weight_orig.shape)
        return tuple(value + 1.0 for value in args), kwargs

    layer.weight_orig = layer.weight
    del layer.weight
    layer.register_forward_pre_hook(hook, with_kwargs=True)
    return layer


DERIVED = {
    "weight_norm": weight_norm,
    "spectral_norm": spectral_norm,
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", amount=0.3),
    "pruned bias": lambda layer: prune.random_unstructured(layer, "bias", amount=1),
    "own": standardised,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize(("training", "dtype"), [(False, torch.float64), (True, torch.float32)])
@pytest.mark.parametrize("kind", DERIVED)
def test_weights_that_a_hook_computes(kind, training, dtype):
    layers = [DERIVED[kind](layer) for layer in (nn.Conv1d(2, 3, 3), nn.Linear(12, 4), nn.Linear(4, 2))]
    model = replayed(nn.Sequential(layers[0], nn.Flatten(), layers[1], nn.Tanh(), layers[2])).to(dtype)
    model[4].requires_grad_(False)
    model.train(training)
    x, t = inputs(6, 2, 6).to(dtype), inputs(6, 2).to(dtype)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    found, _ = collected(model, x, t)
    derived = model[0].bias if kind == "pruned bias" else model[0].weight
    assert (derived.detach() + 1.0).isfinite().all()  # no tensor of a function transform is left behind
    assert derived.grad_fn is not None
    after = {name: value.clone() for name, value in model.state_dict().items()}
    model.load_state_dict(state)  # spectral normalisation makes an iteration in every forward pass
    expected = squares_through_one_pass(model, x, t)
    assert all(torch.equal(value, after[name]) for name, value in model.state_dict().items())
    assert all(value.any() for name, value in expected.items() if kind != "pruned")
    assert_near(found, expected, 1e-10 if dtype == torch.float64 else 1e-4)


def test_buffers_and_random_numbers_are_left_alone():
    def forward(self, x):
        self.calls += 1
        return x * self.weight

    model, x = module_of(forward, weight=nn.Parameter(torch.tensor(2.0)), calls=torch.tensor(0)), inputs(6, 3)
    state = torch.get_rng_state()
    found, _ = collected(model, x, torch.zeros_like(x))
    assert model.calls == 1
    assert torch.equal(state, torch.get_rng_state())
    expected = squares_of_examples(model, x, torch.zeros_like(x))
    assert_near(found, expected, 1e-6)


def test_input_changed_in_place_afterwards_is_an_error():
    scaled = module_of(lambda self, x: x.exp() * self.weight, weight=nn.Parameter(torch.tensor(2.0)))
    model = nn.Sequential(nn.Identity(), scaled)
    squares = PerExampleSquares(model)
    squares.start()
    x = inputs(6, 3)
    y = model(x)
    x.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def drops_out():
    parts = {"weight": nn.Parameter(torch.ones(6)), "dropout": nn.Dropout(0.2)}
    return module_of(lambda self, x: self.dropout(x * self.weight), **parts)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (TorchAttention(6, dropout=0.1), "attention"),
        (First(nn.LSTM(6, 4, 2, dropout=0.1, batch_first=True)), "module"),
        (nn.Sequential(drops_out()), "0"),
    ],
)
def test_dropout_is_refused(model, name):
    squares, x = started(model), inputs(6, 4, 6)
    message = rf"module '{name}' \(\w+\) must not draw random numbers .* got dropout 0.[12]"
    with pytest.raises(RuntimeError, match=message):
        model(x)
    squares.stop()
    check(model.eval(), x)


def test_a_transformer_layer_keeps_its_dropout_beside_attention():
    """As the page of VOGN says: without the dropout of attention, the squares are those of the masks drawn."""
    model = nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), nn.Flatten()).double().train()
    model[0].self_attn.dropout = 0.0
    x, t = inputs(5, 4, 6).double(), torch.ones(5, 24, dtype=torch.float64)
    torch.manual_seed(1)
    found, _ = collected(model, x, t)
    torch.manual_seed(1)
    assert_near(found, squares_through_one_pass(model, x, t), 1e-10)
    assert not torch.equal(model(x), model(x))  # another mask


@pytest.mark.parametrize("kind", ["random", "mixing"])
def test_another_output_for_an_example_alone_is_an_error(kind):
    def forward(self, x):
        y = x * self.weight
        return nn.functional.dropout(y, 0.05) if kind == "random" else y - 0.01 * y.mean(0)

    odd = module_of(forward, weight=nn.Parameter(torch.tensor(2.0)))
    model, x = nn.Sequential(odd), inputs(6, 50)
    squares = PerExampleSquares(model)
    squares.start()
    with pytest.raises(
        RuntimeError, match=r"module '0' \(\w+\) must give the same output for an example that is alone"
    ):
        by_example("mean")(model(x), targets(nn.Identity(), x)).backward()


@pytest.mark.parametrize(
    "use",
    [
        lambda x, bare, rows: (x.transpose(0, 1) + bare).transpose(0, 1),
        lambda x, bare, rows: x + bare.expand(x.shape[1], 3),
        lambda x, bare, rows: x @ (rows + bare).T @ rows,
    ],
    ids=["positions first", "expanded to positions", "added to a buffer"],
)
def test_a_bare_parameter_with_as_many_examples_as_positions(use):
    """Beside a layer, and used where no axis, or another one than it seems, is that of the examples."""
    parts = {"bare": nn.Parameter(torch.randn(3)), "last": nn.Linear(3, 2), "rows": torch.randn(4, 3)}
    check(module_of(lambda self, x: self.last(use(x, self.bare, self.rows)), **parts), inputs(4, 4, 3))


@pytest.mark.parametrize("layer", [nn.Linear(5, 4), nn.LayerNorm(5), nn.Embedding(9, 4)])
def test_a_forward_that_is_set_on_a_layer_is_the_one_that_is_squared(layer):
    class_forward = type(layer).forward
    layer.double().forward = lambda x: class_forward(layer, x).sin() * 3.0
    model = nn.Sequential(layer, nn.Tanh())
    x = torch.randint(9, (6,)) if isinstance(layer, nn.Embedding) else inputs(6, 5).double()
    t = targets(model, x)
    found, _ = collected(model, x, t)
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter)
        for i in range(6):
            loss = by_example("mean")(model(x[i : i + 1]), t[i : i + 1])
            expected += torch.autograd.grad(loss, parameter)[0].square() / 6
        torch.testing.assert_close(found[name], expected)


class Louder(nn.InstanceNorm1d):
    def _apply_instance_norm(self, input):
        return super()._apply_instance_norm(input).sin() * 3.0


def test_a_method_that_forward_calls_is_the_one_that_is_squared():
    model = nn.Sequential(Louder(3, affine=True).double(), nn.Tanh())
    x = inputs(6, 3, 5).double()
    t = targets(model, x)
    found, _ = collected(model, x, t)
    assert_near(found, squares_of_examples(model, x, t), 1e-12)
