"""Second derivatives against torch's own functional ones, and the probes of Hutchinson's estimate."""

import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.core import sources
from bayesadam.functional import hessian
from curvature.models import First

NETS = {
    "tanh": (lambda: nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2)), (5, 4)),
    "batch norm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Softplus(), nn.Linear(3, 2)), (5, 4)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.GELU(), nn.Linear(3, 2)), (5, 4)),
    "convolution": (lambda: nn.Sequential(nn.Conv2d(2, 3, 2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()), (3, 2, 4, 4)),
    "recurrent": (lambda: First(nn.LSTM(2, 2, batch_first=True)), (3, 4, 2)),
}


def setting(name, dtype=torch.float64):
    """A network, its parameters, and its loss as a function of a callable that computes its outputs."""
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x = make().to(dtype), torch.randn(*shape).to(dtype)
    return net, list(net.parameters()), lambda call: call(x).pow(3).mean() + call(x).square().mean()


def whole_by_torch(function, parameters):
    """The matrix of :func:`torch.autograd.functional.hessian`, of a function of all parameters."""
    sizes = [p.numel() for p in parameters]
    blocks = torch.autograd.functional.hessian(function, tuple(p.detach().clone() for p in parameters))
    each = range(len(sizes))
    return torch.cat([torch.cat([blocks[i][j].reshape(sizes[i], sizes[j]) for j in each], dim=1) for i in each])


def by_torch(net, loss):
    names = [name for name, _ in net.named_parameters()]
    state = {name: buffer.clone() for name, buffer in net.named_buffers()}

    def function(*values):
        given = {**dict(zip(names, values, strict=True)), **state}
        return loss(lambda x: torch.func.functional_call(net, given, x))

    return whole_by_torch(function, list(net.parameters()))


def flat(diagonals, parameters):
    return torch.cat(
        [(torch.zeros_like(p) if d is None else d).flatten() for d, p in zip(diagonals, parameters, strict=True)]
    )


def signs(parameters, generator):
    return [torch.randint(0, 2, p.shape, generator=generator).double() * 2 - 1 for p in parameters]


@pytest.mark.parametrize("chunk", [hessian.CHUNK, 1, 7])
@pytest.mark.parametrize(("name", "dtype"), [*((name, torch.float64) for name in NETS), ("convolution", torch.float32)])
def test_matrix_and_diagonal_equal_torchs(monkeypatch, name, dtype, chunk):
    """In batches of rows, whatever their size; gradients are those of a backward pass, and ``.grad`` is left alone."""
    monkeypatch.setattr(hessian, "CHUNK", chunk)
    net, parameters, loss = setting(name, dtype)
    expected = by_torch(net, loss)
    assert expected.abs().max() > 0.05
    grads = hessian.gradients(loss(net), parameters)
    matrix, diagonal = hessian.matrix(grads, parameters), hessian.diagonal(grads, parameters)
    tolerance = {"rtol": 1e-11, "atol": 1e-13} if dtype == torch.float64 else {"rtol": 1e-4, "atol": 1e-5}
    assert matrix.dtype == dtype
    assert torch.allclose(matrix, expected, **tolerance)
    assert torch.equal(matrix, matrix.T)
    assert [d.shape for d in diagonal] == [p.shape for p in parameters]
    assert torch.allclose(flat(diagonal, parameters), expected.diagonal(), **tolerance)
    assert all(p.grad is None for p in parameters)
    loss(net).backward()
    assert all(torch.equal(g.detach(), p.grad) for g, p in zip(grads, parameters, strict=True))


def test_odd_parameters():
    """A scalar, an empty tensor, one that is used linearly, an unused one, and two that only meet in a product."""
    ones = torch.ones(2)
    values = torch.tensor(0.7), torch.zeros(0, 3), ones, torch.ones(2, 2), torch.tensor([0.3, -0.2]), ones
    parameters = [nn.Parameter(value.double()) for value in values]

    def loss(scalar, empty, linear, unused, first, second):
        return scalar.pow(3) + empty.sum() + (2 * linear).sum() + first @ second + (scalar * first).sum()

    grads = hessian.gradients(loss(*parameters), parameters)
    assert [g is None for g in grads] == [False, False, False, True, False, False]
    diagonal = hessian.diagonal(grads, parameters)
    assert diagonal[3] is None
    assert diagonal[1].shape == (0, 3)
    expected = whole_by_torch(
        lambda scalar, *others: loss(scalar, parameters[1], *others) + 0.0 * others[1].sum(),
        [p for p in parameters if p.numel()],
    )
    assert expected.abs().sum() > 6
    assert torch.allclose(hessian.matrix(grads, parameters), expected, rtol=1e-14)
    assert torch.allclose(flat(diagonal, parameters), expected.diagonal(), rtol=1e-14)
    estimate = hessian.hutchinson(grads, parameters, [[torch.ones_like(p) for p in parameters]])
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


def test_hutchinson_is_the_mean_of_its_probes():
    net, parameters, loss = setting("tanh")
    grads = hessian.gradients(loss(net), parameters)
    generator = torch.Generator().manual_seed(1)
    probes = [signs(parameters, generator) for _ in range(3)]
    matrix, vectors = hessian.matrix(grads, parameters), [flat(probe, parameters) for probe in probes]
    expected = torch.stack([v * (matrix @ v) for v in vectors]).mean(0)
    found = flat(hessian.hutchinson(grads, parameters, iter(probes)), parameters)
    assert torch.allclose(found, expected, rtol=1e-11, atol=1e-13)


def probes_of(monkeypatch, sizes=((100, 50), (3_000,)), seed=0, dtype=torch.float32):
    """Every probe that the optimiser draws, in its order: of 3 steps, 2 samples, 2 calls, 2 probes, all parameters."""
    seen, original = [], sources.hessian.hutchinson

    def record(grads, parameters, vectors):
        vectors = [list(vector) for vector in vectors]
        seen.extend(tensor for vector in vectors for tensor in vector)
        return original(grads, parameters, vectors)

    monkeypatch.setattr(sources.hessian, "hutchinson", record)
    parameters = [nn.Parameter(torch.zeros(size, dtype=dtype)) for size in sizes]
    opt = ba.VON(parameters, num_data=10, hessian="hutchinson", probes=2, mc_samples=2, seed=seed)
    for _ in range(3):
        for _ in range(2):
            with opt.sampled_params():
                for _ in range(2):
                    opt.backward(sum(p.square().sum() for p in parameters))
        opt.step()
    monkeypatch.undo()
    assert [t.shape for t in seen] == [p.shape for p in parameters] * 24
    assert {t.dtype for t in seen} == {dtype}
    return [tensor.flatten().double() for tensor in seen]


def test_probes_are_fair_and_independent_signs(monkeypatch):
    """Over steps, samples, calls, numbers, parameters and elements."""
    found = probes_of(monkeypatch)
    everything = torch.cat(found)
    assert set(everything.tolist()) == {-1.0, 1.0}
    assert abs(everything.sum().item()) / math.sqrt(len(everything)) < 4
    for tensor in found:
        assert abs(tensor.sum().item()) / math.sqrt(len(tensor)) < 4.5
        neighbours = (tensor[1:] * tensor[:-1]).sum().item() / math.sqrt(len(tensor) - 1)
        assert abs(neighbours) < 4.5
    rows = torch.stack([tensor[:3_000] for tensor in found])
    correlation = rows @ rows.T / math.sqrt(3_000)
    correlation.fill_diagonal_(0.0)
    assert correlation.abs().max() < 4.5  # 1128 pairs


def test_probes_depend_on_the_seed_only_and_not_on_the_weights_noise(monkeypatch):
    before = torch.get_rng_state()
    first, again, other = (probes_of(monkeypatch, seed=seed, dtype=torch.bfloat16) for seed in (3, 3, 4))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))
    parameter = nn.Parameter(torch.zeros(5_000))
    opt = ba.VON([parameter], num_data=10, hessian="hutchinson", seed=3)
    with opt.sampled_params():
        noise = parameter.detach().sign().double()
    agreement = (probes_of(monkeypatch, sizes=((5_000,),), seed=3)[0] * noise).sum()
    assert abs(agreement.item()) / math.sqrt(5_000) < 4
    assert torch.equal(torch.get_rng_state(), before)
