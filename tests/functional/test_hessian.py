"""Second derivatives against torch's own functional ones, and Hutchinson's estimate against its mean and variance."""

import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.engine import sources
from bayesadam.functional import hessian


class Picked(nn.Module):
    """The first output of a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


NETS = {
    "one layer": (lambda: nn.Linear(4, 2), (5, 4)),
    "tanh": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), (5, 4)),
    "relu": (lambda: nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), (5, 4)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softplus(), nn.Linear(3, 2)), (5, 4)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.GELU(), nn.Linear(3, 2)), (5, 4)),
    "group norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.GroupNorm(2, 4), nn.ELU(), nn.Linear(4, 2)), (5, 4)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3, 2)),
        (3, 2, 4, 4),
    ),
    "recurrent": (lambda: Picked(nn.LSTM(2, 2, batch_first=True)), (3, 4, 2)),
}


def setting(name, dtype):
    make, shape = NETS[name]
    torch.manual_seed(0)
    net = make().to(dtype)
    return net, torch.randn(*shape).to(dtype)


def loss_of(net, x):
    return net(x).pow(3).mean() + net(x).square().mean()


def whole_by_torch(function, parameters):
    """The matrix of :func:`torch.autograd.functional.hessian`, of a function of all parameters."""
    points = tuple(p.detach().clone() for p in parameters)
    blocks = torch.autograd.functional.hessian(function, points)
    sizes = [p.numel() for p in points]
    return torch.cat(
        [
            torch.cat([blocks[i][j].reshape(sizes[i], sizes[j]) for j in range(len(points))], dim=1)
            for i in range(len(points))
        ]
    )


def by_torch(net, x):
    names = [name for name, _ in net.named_parameters()]
    state = {name: buffer.clone() for name, buffer in net.named_buffers()}

    def function(*values):
        return loss_of(
            lambda inputs: torch.func.functional_call(net, {**dict(zip(names, values, strict=True)), **state}, inputs),
            x,
        )

    return whole_by_torch(function, list(net.parameters()))


def flat(diagonals, parameters):
    return torch.cat(
        [(torch.zeros_like(p) if d is None else d).flatten() for d, p in zip(diagonals, parameters, strict=True)]
    )


@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float64) for name in NETS), ("convolution", torch.float32)])
def test_matrix_and_diagonal_equal_torchs(name, dtype):
    net, x = setting(name, dtype)
    parameters = list(net.parameters())
    expected = by_torch(net, x)
    assert expected.abs().max() > 0.05
    grads = hessian.gradients(loss_of(net, x), parameters)
    matrix, diagonal = hessian.matrix(grads, parameters), hessian.diagonal(grads, parameters)
    tolerance = {"rtol": 1e-11, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    assert matrix.dtype == dtype
    assert torch.allclose(matrix, expected, **tolerance)
    assert torch.equal(matrix, matrix.T)
    assert [d.shape for d in diagonal] == [p.shape for p in parameters]
    assert torch.allclose(flat(diagonal, parameters), expected.diagonal(), **tolerance)


@pytest.mark.parametrize("chunk", [1, 7, 100])
def test_batches_of_rows_do_not_change_the_numbers(monkeypatch, chunk):
    net, x = setting("tanh", torch.float64)
    parameters = list(net.parameters())
    grads = hessian.gradients(loss_of(net, x), parameters)
    expected = hessian.matrix(grads, parameters), flat(hessian.diagonal(grads, parameters), parameters)
    monkeypatch.setattr(hessian, "CHUNK", chunk)
    assert torch.allclose(hessian.matrix(grads, parameters), expected[0], rtol=1e-13, atol=1e-15)
    assert torch.allclose(flat(hessian.diagonal(grads, parameters), parameters), expected[1], rtol=1e-13, atol=1e-15)


def test_gradients_are_backwards_and_grad_is_left_alone():
    net, x = setting("tanh", torch.float64)
    parameters = list(net.parameters())
    grads = hessian.gradients(loss_of(net, x), parameters)
    hessian.matrix(grads, parameters)
    hessian.diagonal(grads, parameters)
    hessian.hutchinson(grads, parameters, [[torch.ones_like(p) for p in parameters]])
    assert all(p.grad is None for p in parameters)
    loss_of(net, x).backward()
    assert all(torch.equal(g.detach(), p.grad) for g, p in zip(grads, parameters, strict=True))


def odd_parameters():
    """A scalar, an empty tensor, one that is used linearly, an unused one, and two that only meet in a product."""
    values = (
        torch.tensor(0.7),
        torch.zeros(0, 3),
        torch.ones(2),
        torch.ones(2, 2),
        torch.tensor([0.3, -0.2]),
        torch.ones(2),
    )
    return [nn.Parameter(v.double()) for v in values]


def odd_loss(scalar, empty, linear, unused, first, second):
    return scalar.pow(3) + empty.sum() + (2 * linear).sum() + first @ second + (scalar * first).sum()


def test_odd_parameters():
    parameters = odd_parameters()
    grads = hessian.gradients(odd_loss(*parameters), parameters)
    assert [g is None for g in grads] == [False, False, False, True, False, False]
    diagonal = hessian.diagonal(grads, parameters)
    assert diagonal[3] is None
    assert diagonal[1].shape == (0, 3)
    expected = whole_by_torch(
        lambda scalar, *others: odd_loss(scalar, parameters[1], *others) + 0.0 * others[1].sum(),
        [p for p in parameters if p.numel()],
    )
    assert expected.abs().sum() > 6
    assert torch.allclose(hessian.matrix(grads, parameters), expected, rtol=1e-14)
    assert torch.allclose(flat(diagonal, parameters), expected.diagonal(), rtol=1e-14)
    signs = [torch.ones_like(p) for p in parameters]
    estimate = hessian.hutchinson(grads, parameters, [signs])
    assert estimate[3] is None
    assert torch.allclose(flat(estimate, parameters), expected.sum(1), rtol=1e-14)


def test_the_matrix_has_the_widest_dtype():
    narrow, wide = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1, dtype=torch.float64))
    loss = wide.pow(3).sum() / 7 + narrow.double().square().sum() * wide.sum()
    for place, parameters in enumerate(([wide, narrow], [narrow, wide])):
        matrix = hessian.matrix(hessian.gradients(loss, parameters), parameters)
        assert matrix.dtype == torch.float64
        assert matrix.diagonal()[place].item() == pytest.approx(6 / 7, rel=1e-14)


def test_the_loss_must_be_one_number():
    parameter = nn.Parameter(torch.ones(1))
    assert hessian.matrix(hessian.gradients(parameter.square(), [parameter]), [parameter]).item() == 2.0
    with pytest.raises(ValueError, match="loss must be one number, got a tensor of shape"):
        hessian.gradients(parameter.repeat(2).square(), [parameter])


# Hutchinson


def random_signs(parameters, generator):
    return [torch.randint(0, 2, p.shape, generator=generator).double() * 2 - 1 for p in parameters]


def test_hutchinson_is_the_mean_of_its_probes():
    net, x = setting("tanh", torch.float64)
    parameters = list(net.parameters())
    grads = hessian.gradients(loss_of(net, x), parameters)
    generator = torch.Generator().manual_seed(1)
    probes = [random_signs(parameters, generator) for _ in range(3)]
    singles = [flat(hessian.hutchinson(grads, parameters, [probe]), parameters) for probe in probes]
    together = flat(hessian.hutchinson(grads, parameters, iter(probes)), parameters)
    assert torch.allclose(together, torch.stack(singles).mean(0), rtol=1e-12, atol=1e-14)
    matrix = hessian.matrix(grads, parameters)
    for single, probe in zip(singles, probes, strict=True):
        v = flat(probe, parameters)
        assert torch.allclose(single, v * (matrix @ v), rtol=1e-11, atol=1e-13)


# The probes that the optimiser draws


def probes_of(monkeypatch, *, sizes=((100, 50), (3_000,)), steps=3, samples=2, probes=2, calls=2, seed=0, dtype=None):
    """Every probe in the order in which it was used, by (step, sample, call, number, parameter)."""
    seen = []
    original = sources.hessian.hutchinson

    def record(grads, parameters, vectors):
        vectors = [list(vector) for vector in vectors]
        seen.append(vectors)
        return original(grads, parameters, vectors)

    monkeypatch.setattr(sources.hessian, "hutchinson", record)
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]
    opt = ba.VON(parameters, num_data=10, hessian="hutchinson", probes=probes, mc_samples=samples, seed=seed)
    for _ in range(steps):
        for _ in range(samples):
            with opt.sampled_params():
                for _ in range(calls):
                    opt.backward(sum(p.square().sum() for p in parameters))
        opt.step()
    monkeypatch.undo()
    found, position = {}, iter(seen)
    for step in range(steps):
        for sample in range(samples):
            for call in range(calls):
                for number, vector in enumerate(next(position)):
                    for index, tensor in enumerate(vector):
                        assert tensor.shape == parameters[index].shape
                        assert tensor.dtype == parameters[index].dtype
                        found[step, sample, call, number, index] = tensor.flatten().double()
    return found


def test_probes_are_fair_signs(monkeypatch):
    found = probes_of(monkeypatch)
    everything = torch.cat(list(found.values()))
    assert set(everything.tolist()) == {-1.0, 1.0}
    assert abs(everything.sum().item()) / math.sqrt(len(everything)) < 4
    for tensor in found.values():
        assert abs(tensor.sum().item()) / math.sqrt(len(tensor)) < 4.5
        neighbours = (tensor[1:] * tensor[:-1]).sum().item() / math.sqrt(len(tensor) - 1)
        assert abs(neighbours) < 4.5


def test_probes_are_independent_over_steps_samples_calls_numbers_and_parameters(monkeypatch):
    found = probes_of(monkeypatch)
    length = min(len(t) for t in found.values())
    assert len(found) == 3 * 2 * 2 * 2 * 2
    rows = torch.stack([t[:length] for t in found.values()])
    correlation = rows @ rows.T / math.sqrt(length)
    correlation.fill_diagonal_(0.0)
    assert correlation.abs().max() < 4.5  # 1128 pairs


def test_probes_depend_on_the_seed_only_and_not_on_the_weights_noise(monkeypatch):
    first, again, other = (probes_of(monkeypatch, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(first[key], again[key]) for key in first)
    before = torch.get_rng_state()
    assert not any(torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), before)
    parameter = nn.Parameter(torch.zeros(5_000))
    opt = ba.VON([parameter], num_data=10, hessian="hutchinson", seed=3)
    with opt.sampled_params():
        signs = parameter.detach().sign().double()
    agreement = (probes_of(monkeypatch, sizes=((5_000,),), seed=3)[0, 0, 0, 0, 0] * signs).sum()
    assert abs(agreement.item()) / math.sqrt(5_000) < 4


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_probes_have_the_parameters_dtype(monkeypatch, dtype):
    found = probes_of(monkeypatch, sizes=((50,), ()), steps=1, dtype=dtype)
    assert {value for t in found.values() for value in t.tolist()} == {-1.0, 1.0}
