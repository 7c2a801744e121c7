"""Buffers of a network, such as batch norm statistics: every posterior carries them, and none loses them."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from posterior.kinds import GAUSSIANS, KINDS, around, assert_same, draw, means


def network(seed=0):
    """With statistics and random features of its own, and a table that its state dict leaves out."""
    torch.manual_seed(seed)
    net = ba.distance.distance_aware(nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), features=3)
    net.register_buffer("table", torch.randn(2), persistent=False)
    net(draw(30, 3, seed=seed, dtype=torch.float32))
    return net.eval()


def buffers_of(net):
    saved = net.state_dict()
    return {name: buffer.clone() for name, buffer in net.named_buffers() if name in saved}


def moved(buffers):
    return {name: value + 1 for name, value in buffers.items()}


def posterior_of(kind, net, buffers):
    q = KINDS[kind](means({n: p.shape for n, p in net.named_parameters()}, seed=3, dtype=torch.float32))
    if kind == "mixture":
        first, second, inner = q.components
        inner = ba.Mixture([part.with_buffers(buffers) for part in inner.components])
        return ba.Mixture([first.with_buffers(moved(buffers)), second.with_buffers(buffers), inner])
    return q.with_buffers(buffers)


@pytest.mark.parametrize("kind", KINDS)
def test_are_in_the_network_in_every_sample_and_only_then(kind):
    """Also those of a scaled, moved or loaded posterior; each component of a mixture has its own."""
    net, other = network(0), buffers_of(network(1))
    before, q = buffers_of(net), posterior_of(kind, net, other)
    for made in (q, q.scaled(0.5), q.to(dtype=torch.float64), type(q).from_tensors(q.tensors(), q.hyperparameters)):
        for number in (0, 1, 2):
            with made.applied(net, number):
                assert_same(buffers_of(net), moved(other) if kind == "mixture" and number == 0 else other)
        assert_same(buffers_of(net), before)


@pytest.mark.parametrize("kind", GAUSSIANS)
def test_are_kept_by_what_makes_another_posterior(kind, tmp_path):
    net = network()
    other = buffers_of(network(1))
    q = posterior_of(kind, net, other)
    q.save(tmp_path / "q.safetensors")
    made = [ba.load_posterior(tmp_path / "q.safetensors"), q.marginal(), q.to(dtype=torch.bfloat16), q.scaled(0.0)]
    if "kronecker" not in kind:
        made.append(q.prune(0.5))
    for another in made:
        assert_same(dict(another.buffers), other)
    assert not q.with_buffers({}).buffers
    assert_same(dict(q.buffers), other)


def test_may_be_those_of_the_network_itself():
    net = network()
    q = around(net).with_buffers(dict(net.named_buffers()))
    before = buffers_of(net)
    with q.applied(net, 0):
        net[1].running_mean += 1
        with q.applied(net, 0):
            net[1].running_mean += 1
    assert_same(buffers_of(net), before)


def test_of_another_network_are_refused_before_anything_changes():
    net, before = network(), buffers_of(network())
    q = around(net)
    for buffers, message in (
        ({"none": torch.zeros(2)}, r"^the model must have a buffer 'none' of .* shape \(2,\), got none of that name$"),
        (
            {"1.running_mean": torch.zeros(2)},
            r"'1.running_mean' of .*'s shape \(2,\), got one of shape \(4,\)$",
        ),
    ):
        with pytest.raises(ValueError, match=message), q.with_buffers(buffers).applied(net, 0):
            pass
    assert_same(buffers_of(net), before)


def test_merged_ones_are_weighted_averages_where_they_differ():
    net = network()
    parts = [around(net).with_buffers(buffers_of(network(seed))) for seed in (0, 1)]
    merged = ba.merge(parts, weights=[1.0, 3.0])
    mean = 0.25 * parts[0].buffers["1.running_mean"] + 0.75 * parts[1].buffers["1.running_mean"]
    torch.testing.assert_close(merged.buffers["1.running_mean"], mean)
    assert merged.hyperparameters["batch_norm"] == "training"
    same = ba.merge([parts[0]] * 3)
    assert_same(dict(same.buffers), dict(parts[0].buffers))
    assert "batch_norm" not in same.hyperparameters
