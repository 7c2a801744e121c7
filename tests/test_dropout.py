"""MC dropout: against masks applied by hand, its exact moments, and leaving no trace."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam import noise
from bayesadam.dropout import MCDropout
from modules import module_of
from posterior.kinds import F64, draw

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def mask(units, rate, *, number, seed=0, index=0, call=0):
    """By the definition: the beginning of a long draw, below the quantile of the rate."""
    count, place = math.prod(units), {"seed": seed, "step": 2 + call, "sample": number, "stream": noise.POSTERIOR}
    eps = noise.fill_runs(torch.empty(count), [(index, 0, count, 2**33)], **place)
    kept = eps.double() >= torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor(rate))
    return kept.double().view(units) / (1 - rate)


class Network(nn.Module):
    """Dropout on the inputs and on the hidden units, as in Gal and Ghahramani 2016."""

    def __init__(self, rates=(0.2, 0.5)):
        super().__init__()
        self.drop, self.after = nn.Dropout(rates[0]), nn.Dropout(rates[1])
        self.first, self.second = nn.Linear(6, 40, **F64), nn.Linear(40, 3, **F64)

    def forward(self, x):
        return self.second(self.after(self.first(self.drop(x)).relu()))


@pytest.fixture
def model():
    return Network()


def by_hand(model, x, number, seed=0, rates=(0.2, 0.5)):
    """The network with columns of its weights dropped, section 3 of the paper."""
    first = model.first.weight * mask((6,), rates[0], number=number, seed=seed, index=0)
    second = model.second.weight * mask((40,), rates[1], number=number, seed=seed, index=1)
    hidden = functional.linear(x, first, model.first.bias).relu()
    return functional.linear(hidden, second, model.second.bias)


def same_outputs(found, expected):
    torch.testing.assert_close(found, expected, **EXACT)


class TestPredict:
    def test_a_sample_is_the_network_with_columns_dropped(self, model):
        x = draw(7, 6)
        found = ba.predict(model, MCDropout(model), x, likelihood=ba.Gaussian(), mc_samples=5, seed=3)
        same_outputs(found.means, torch.stack([by_hand(model, x, number, 3) for number in range(5)]))
        assert len(found.means[:, 0, 0].unique()) == 5
        found = ba.predict(model, MCDropout(model), x, likelihood=ba.Gaussian(), method="mean")
        assert torch.equal(found.means[0], model.eval()(x))

    def test_another_rate(self, model):
        model.drop.p = 0.0  # stays off
        x = draw(7, 6)
        found = ba.predict(model, MCDropout(model, rate=0.1), x, likelihood=ba.Gaussian(), mc_samples=3)
        weight = torch.stack([model.second.weight * mask((40,), 0.1, number=n) for n in range(3)])
        same_outputs(found.means, model.first(x).relu() @ weight.mT + model.second.bias)

    @pytest.mark.parametrize("batch_size", [None, 4])
    def test_whatever_the_batches(self, model, batch_size):
        x, q = draw(10, 6), MCDropout(model)
        expected = torch.stack([by_hand(model, x, number) for number in range(3)])
        loader = DataLoader(TensorDataset(x, x), batch_size=3)
        for inputs in (x, (x,), {"x": x}, loader):
            found = ba.predict(model, q, inputs, likelihood=ba.Gaussian(), mc_samples=3, batch_size=batch_size)
            same_outputs(found.means, expected)

    def test_in_the_end_nothing_is_left_of_it(self, model):
        model.train()
        model.after.eval()
        x, state = draw(7, 6), {n: v.clone() for n, v in model.state_dict().items()}
        torch.manual_seed(0)
        ba.predict(model, MCDropout(model), x, likelihood=ba.Gaussian(), mc_samples=2)
        assert torch.equal(torch.get_rng_state(), torch.manual_seed(0).get_state())
        self.check_untouched(model)
        assert [model.training, model.drop.training, model.after.training] == [True, True, False]
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())

        with pytest.raises(KeyboardInterrupt), MCDropout(model).applied(model, 0):
            assert not model.drop.training
            raise KeyboardInterrupt
        self.check_untouched(model)
        assert model.drop.training

    def check_untouched(self, model):
        assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


class TestUnits:
    @pytest.mark.parametrize("units", [1, 4097, 16385])
    def test_masks_of_any_size_are_the_beginning_of_one_draw(self, units):
        model = nn.Dropout(0.5)
        with MCDropout(model).applied(model, 1):
            assert torch.equal(model(torch.ones(1, units)).double(), mask((1, units), 0.5, number=1))

    @pytest.mark.parametrize(
        ("module", "shape", "units"),
        [
            (nn.Dropout, (3,), ()),
            (nn.Dropout, (3, 5), (5,)),
            (nn.Dropout1d, (3, 5, 4), (5, 1)),
            (nn.Dropout2d, (3, 5, 4, 2), (5, 1, 1)),
            (nn.Dropout3d, (3, 5, 4, 2, 2), (5, 1, 1, 1)),
        ],
    )
    def test_a_mask_is_the_same_for_all_data_points(self, module, shape, units):
        model, x = module(0.4), draw(*shape)
        with MCDropout(model).applied(model, 3, seed=2):
            same_outputs(model(x), x * mask(units, 0.4, number=3, seed=2))

    def test_in_place(self):
        model, x = nn.Dropout(0.4, inplace=True), draw(3, 5)
        before = x.clone()
        with MCDropout(model).applied(model, 1):
            model(x)
        same_outputs(x, before * mask((5,), 0.4, number=1))

    def test_a_module_in_two_places(self):
        model = module_of(lambda self, x: torch.cat([self.drop(x), self.drop(x[:, :30])], 1), drop=nn.Dropout(0.5))
        x = draw(3, 50)
        q = MCDropout(model)
        expected = torch.cat([x * mask((50,), 0.5, number=2), x[:, :30] * mask((30,), 0.5, number=2, call=1)], 1)
        with q.draws(model) as put:
            for _ in range(2):
                put(2)
                for _ in range(2):
                    same_outputs(model(x), expected)
                put(0)
                assert not torch.equal(model(x), expected)

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
    def test_dtypes_and_the_factor_in_low_precision(self, dtype):
        model, x = nn.Dropout(0.1), draw(1, 1000, dtype=dtype)
        with MCDropout(model).applied(model, 0):
            found = model(x)
        assert found.dtype == dtype
        expected = x.double() * mask((1000,), 0.1, number=0)
        torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-7)
        ratio = found.double()[expected != 0] / expected[expected != 0]
        assert abs(ratio.mean() - 1) < 2e-4  # the rounded factor is 0.16% off in bfloat16


class TestRefusals:
    @pytest.mark.parametrize(
        ("model", "options", "message"),
        [
            (nn.Dropout(0.5), {"rate": 1.0}, r"^rate must be in \(0, 1\), got 1.0$"),
            (nn.Dropout(0.5), {"rate": math.nan}, r"^rate must be in \(0, 1\), got nan$"),
            (nn.Linear(2, 2), {}, "^the model must have a dropout module with p > 0, got none$"),
            (nn.Dropout(0.0), {}, "^the model must have a dropout module with p > 0, got none$"),
        ],
    )
    def test_models(self, model, options, message):
        with pytest.raises(ValueError, match=message):
            MCDropout(model, **options)

    def test_kinds_without_dropout_are_fine(self):
        q = MCDropout(nn.Sequential(nn.Dropout(0.1), nn.GRU(2, 2, num_layers=2), nn.MultiheadAttention(4, 2)))
        assert repr(q) == "MCDropout(1 modules)"

    def test_passes(self, model):
        q, other = MCDropout(model), nn.Sequential(nn.Dropout(0.1))
        message = r"^model must have the dropout modules \['drop', 'after'\], got \['0'\]$"
        with pytest.raises(ValueError, match=message), q.applied(other, 0):
            pass
        message = "^the dropout modules must stay in eval mode while masks are drawn, got training mode$"
        with pytest.raises(RuntimeError, match=message), q.applied(model, 0):
            model.train()
            model(draw(2, 6))
        for number, seed, message in ((-1, 0, "^sample must be an integer in"), (0, -1, "^seed must be an integer in")):
            with pytest.raises(ValueError, match=message), q.applied(model, number, seed=seed):
                model(draw(2, 6))
        model.forward = lambda x: model.second(model.first(x))
        with pytest.raises(RuntimeError, match="^the model must call a dropout module in a forward pass, got a pass"):
            ba.predict(model, q, draw(2, 6), likelihood=ba.Gaussian())


class Padded(nn.TransformerEncoder):
    """An encoder that is told of padding, for which it packs its inputs in evaluation mode."""

    def forward(self, x):
        return super().forward(x, src_key_padding_mask=torch.arange(x.shape[1]).expand(x.shape[:2]) > 2)[:, :3]


@pytest.mark.parametrize("padded", [False, True])
def test_a_transformer_layer_does_not_take_its_fast_path(padded):
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    layer.self_attn.dropout = 0.0
    model = Padded(layer, 1) if padded else layer
    x = draw(3, 4, 8, dtype=torch.float32)
    found = ba.predict(model, MCDropout(model), x, likelihood=ba.Categorical(), mc_samples=4)
    assert (found.log_probs.std(0) > 1e-3).all()
    assert not padded or model.use_nested_tensor


class Random(nn.Module):
    """A module for dropout, and something else that is random in training."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.first, self.second, self.norm = nn.Linear(4, 64), nn.Linear(64, 4), nn.BatchNorm1d(64)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, target=None):
        hidden = self.drop(self.norm(self.first(x)).relu())
        if self.kind == "functional":
            hidden = functional.dropout(hidden, 0.5, self.training)
        if self.kind == "depth" and (not self.training or torch.rand(()) < 0.5):
            hidden = hidden + hidden.sin()
        if self.kind == "target" and self.training:
            assert target is not None
        return self.second(hidden)


class TestOtherRandomness:
    """Two passes in training mode with the same masks."""

    @pytest.mark.parametrize("kind", ["functional", "depth"])
    def test_is_refused(self, kind):
        torch.manual_seed(4)
        model, x = Random(kind), torch.randn(5, 4)
        q = MCDropout(model)
        for _ in range(2):
            with pytest.raises(
                RuntimeError, match="^the model must be random in training by its modules nn.Dropout only"
            ):
                ba.predict(model, q, x, likelihood=ba.Gaussian())

    @pytest.mark.parametrize(
        "module", [nn.AlphaDropout(0.3), nn.FeatureAlphaDropout(0.3), nn.LSTM(4, 4, num_layers=2, dropout=0.3)]
    )
    def test_of_modules_is_refused(self, module):
        model = nn.Sequential(nn.Dropout(0.1), module)
        with pytest.raises(RuntimeError, match="^the model must be random in training by its modules nn.Dropout only"):
            ba.predict(
                model, MCDropout(model), torch.randn(5, 6, 4), likelihood=ba.Gaussian(), output=lambda out: out[0]
            )

    @pytest.mark.parametrize("kind", ["none", "target"])
    @pytest.mark.parametrize("training", [True, False])
    def test_none_leaves_no_trace(self, kind, training):
        model, x = Random(kind).train(training), torch.randn(5, 4)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        state, q, calls = torch.get_rng_state(), MCDropout(model), []
        model.first.register_forward_hook(lambda *_: calls.append(1))
        found = [ba.predict(model, q, x, likelihood=ba.Gaussian(), mc_samples=8).means for _ in range(2)]
        assert torch.equal(*found)
        assert found[0].std(0).min() > 0
        assert len(calls) == 16 + (1 if kind == "target" else 2)  # for the first prediction only
        assert torch.equal(torch.get_rng_state(), state)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert all(module.training == training for module in model.modules())
        assert not model._forward_pre_hooks

    def test_inputs_are_not_changed(self):
        model, x = nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4, 1)), torch.randn(5, 4)
        expected = ba.predict(model, MCDropout(model), x.clone(), likelihood=ba.Gaussian()).mean
        assert torch.equal(ba.predict(model, MCDropout(model), x, likelihood=ba.Gaussian()).mean, expected)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("inside", [False, True])
def test_activation_checkpointing_is_refused_in_a_backward_pass(reentrant, inside):
    model = Network()
    body, x = model.forward, draw(5, 6).requires_grad_()
    model.forward = lambda x: checkpoint(body, x, use_reentrant=reentrant)
    with MCDropout(model).applied(model, 0):
        output = model(x)
        if inside:
            with pytest.raises(RuntimeError, match="must not run a part of the model again"):
                output.sum().backward()
    if not inside:
        with pytest.raises(RuntimeError, match="must not run a part of the model again"):
            output.sum().backward()


class Loud(nn.Dropout):
    def forward(self, x):
        return x * (1.0 + 0.5 * torch.randn_like(x)) if self.training else x


class Named(nn.Dropout1d):
    """Nothing of its own."""


def test_a_dropout_of_ones_own_is_refused():
    with pytest.raises(ValueError, match="^dropout modules must compute as PyTorch's, got Loud '1'"):
        MCDropout(nn.Sequential(nn.Linear(3, 2), Loud(0.5)))


def test_a_subclass_drops_what_its_parent_drops():
    """The channels of a single example."""
    x = draw(5, 7)
    found = []
    for make in (nn.Dropout1d, Named):
        model = make(0.5)
        with MCDropout(model).applied(model, 0):
            found.append(model(x))
    assert torch.equal(*found)
    assert {len(row.unique()) == 1 for row in found[0] / x} == {True}
