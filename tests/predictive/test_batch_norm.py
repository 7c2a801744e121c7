"""``predict(batch_norm=...)``: statistics of batch norm layers that are every sample's own."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.testing import assert_close

import bayesadam as ba
from bayesadam.predictive import batch_norm
from modules import module_of
from posterior.kinds import around, draw

GAUSSIAN = ba.Gaussian(noise_precision=1.0)


def network():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(3, 5),
        nn.BatchNorm1d(5),
        nn.Tanh(),
        nn.Dropout(0.5),
        nn.Linear(5, 4),
        nn.BatchNorm1d(4),
        nn.Linear(4, 2),
    ).double()
    net(draw(50, 3, seed=9))  # running statistics of something else
    return net


def state(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}, [m.training for m in net.modules()]


def assert_unchanged(net, before):
    assert [m.training for m in net.modules()] == before[1]
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[0][name]), name
    assert {m.momentum for m in net.modules() if isinstance(m, nn.BatchNorm1d)} == {0.1}


def by_hand(net, weights, batches, x, shares=None):
    """Outputs of a network with batch norm, the statistics averages over the batches; no dropout."""
    counts = draw(len(batches)).new_tensor(shares or [1] * len(batches))

    def average(values):
        return torch.stack(values).T @ counts / counts.sum()

    def run(value, statistics, own):
        for index, layer in enumerate(net):
            if isinstance(layer, nn.Linear):
                value = value @ weights[f"{index}.weight"].T + weights[f"{index}.bias"]
            elif isinstance(layer, nn.BatchNorm1d):
                found = (value.mean(0), value.var(0, correction=0), value.var(0, correction=1))
                if own:
                    statistics.setdefault(index, []).append((found[0], found[2]))
                    center, spread = found[0], found[1]
                else:
                    center, spread = (average(s) for s in zip(*statistics[index], strict=True))
                value = (value - center) / (spread + layer.eps).sqrt()
                value = value * weights[f"{index}.weight"] + weights[f"{index}.bias"]
            elif isinstance(layer, nn.Tanh):
                value = value.tanh()
        return value

    statistics = {}
    for batch in batches:
        run(batch, statistics, own=True)
    return run(x, statistics, own=False)


def test_every_sample_has_statistics_of_its_own():
    net, x, like = network(), draw(7, 3), draw(600, 3, seed=1)
    q, before = around(net, 0.25), state(net)
    prediction = ba.predict(net, q, x, likelihood=GAUSSIAN, mc_samples=4, seed=3, batch_norm=like, batch_size=2)
    assert_unchanged(net, before)
    theta = q.sample(4, seed=3)
    parts = like.tensor_split(3)  # of 200
    for i in range(4):
        weights = {name: value[i] for name, value in theta.items()}
        assert_close(prediction.means[i], by_hand(net, weights, parts, x), rtol=1e-9, atol=1e-9)
    running = ba.predict(net, q, x, likelihood=GAUSSIAN, mc_samples=4, seed=3)
    assert not torch.allclose(prediction.means, running.means, atol=0.05)


def test_a_short_last_batch_is_left_out():
    net, x, like = network(), draw(7, 3), draw(58, 3, seed=1)
    options = {"likelihood": GAUSSIAN, "method": "mean"}
    q, loader = around(net, 0.25), torch.utils.data.DataLoader
    for size in (50, 56, 57):
        found = ba.predict(net, q, x, batch_norm=loader(like, size), **options).means
        assert_close(found, ba.predict(net, q, x, batch_norm=like[:size], **options).means)
    uneven = ba.predict(net, q, x, batch_norm=[like[:20], like[20:]], **options).means
    expected = by_hand(
        net, {n: p.detach() for n, p in net.named_parameters()}, [like[:20], like[20:]], x, shares=(20, 38)
    )
    assert_close(uneven[0], expected)


def test_a_layer_that_is_called_twice_has_the_statistics_of_both_calls():
    layer = nn.BatchNorm1d(2)
    model = module_of(lambda self, x: self.layer(x) + self.layer(10.0 - 3.0 * x), layer=layer)
    x = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    batch_norm.estimate(model, [layer], map(batch_norm.Rows, (x[:8], x[8:])))
    parts = [part for rows in (x[:8], x[8:]) for part in (rows, 10.0 - 3.0 * rows)]
    weights = [len(part) / 24 for part in parts]
    for found, of in ((layer.running_mean, lambda part: part.mean(0)), (layer.running_var, lambda part: part.var(0))):
        assert torch.allclose(found, sum(weight * of(part) for weight, part in zip(weights, parts, strict=True)))
    assert layer.momentum == 0.1
    assert not layer._forward_pre_hooks


@pytest.mark.parametrize("method", ["mean", "linearized", "moments"])
def test_without_samples_they_are_those_of_the_mean(method):
    net, x, like = network(), draw(7, 3), draw(200, 3, seed=1)
    net = net[:3].append(nn.Linear(5, 2).double()) if method == "moments" else net
    q, before = around(net), state(net)
    prediction = ba.predict(net, q, x, likelihood=GAUSSIAN, method=method, batch_norm=like)
    assert_unchanged(net, before)
    running = ba.predict(net, q, x, likelihood=GAUSSIAN, method=method)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    update_bn([like], net)
    expected = ba.predict(net, q, x, likelihood=GAUSSIAN, method=method)
    assert_close(prediction.mean, expected.mean, rtol=1e-9, atol=1e-9)
    assert_close(prediction.epistemic, expected.epistemic, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(prediction.mean, running.mean, atol=0.01)


def rows(inputs):
    return [len(part) for part in batch_norm._batches(inputs, torch.device("cpu"))]


def test_about_a_thousand_rows_are_used_spread_evenly():
    assert rows(draw(30, 3)) == [30]
    assert rows(draw(501, 3)) == [167] * 3
    assert rows(torch.utils.data.DataLoader(draw(2500, 3), 300)) == [300] * 4
    parts = list(batch_norm._batches(torch.arange(2500.0), torch.device("cpu")))
    assert torch.cat(parts).tolist() == [number * 5 // 2 for number in range(1000)]


def test_inputs_may_have_any_form():
    """With a keyword, and with something that has no rows."""
    net = module_of(lambda self, x, scale: self.inner(x * scale), inner=network())
    scale = torch.tensor(2.0, dtype=torch.float64)
    x, like, q = draw(7, 3), draw(600, 3, seed=1), around(net, 0.25)
    options = {"likelihood": GAUSSIAN, "mc_samples": 3}
    named = ba.predict(net, q, {"x": x, "scale": scale}, batch_norm={"x": like, "scale": scale}, **options)
    ordered = ba.predict(net, q, (x, scale), batch_norm=(like, scale), **options)
    plain = ba.predict(net.inner, around(net.inner, 0.25), 2 * x, batch_norm=2 * like, **options)
    assert_close(named.means, ordered.means, rtol=0, atol=0)
    assert_close(named.means, plain.means)


def test_errors_change_nothing():
    net, x = network(), draw(7, 3)
    q, before = around(net, 0.25), state(net)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ba.predict(net, q, x, likelihood=GAUSSIAN, batch_norm=draw(20, 4))
    assert_unchanged(net, before)
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ba.predict(net, q, draw(7, 4), likelihood=GAUSSIAN, batch_norm=draw(20, 3))
    assert_unchanged(net, before)
    with pytest.raises(ValueError, match="at least one batch, got an empty loader"):
        ba.predict(net, q, x, likelihood=GAUSSIAN, batch_norm=[])
    linear = nn.Linear(3, 2).double()
    untracked = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, track_running_stats=False)).double()
    for plain in (linear, untracked):
        with pytest.raises(ValueError, match="batch_norm must be None for a model without batch norm statistics"):
            ba.predict(plain, around(plain, 0.25), x, likelihood=GAUSSIAN, batch_norm=x)


