"""Networks for tests of predictions, and whether they are left as they were."""

import torch
from torch import nn

import bayesadam as ba
from posterior.kinds import draw

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def close(a, b, **tolerances):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype), **(tolerances or EXACT))


def posterior_of(model, seed=0, std=0.3):
    mean = {n: draw(*p.shape, seed=seed).to(p.dtype) for n, p in model.named_parameters()}
    return ba.DiagonalGaussian(mean, {n: std**2 * torch.ones_like(m) for n, m in mean.items()})


class Scale(nn.Module):
    """``weight * x + bias``, element by element: the same bits in whatever chunks."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.zeros(1, dtype=dtype)) for _ in range(2))
        self.rows = []

    def forward(self, x):
        self.rows.append(len(x))
        return torch.addcmul(self.bias, x, self.weight)


class Halves(Scale):
    """Memory for at most ``limit`` rows."""

    def __init__(self, limit, error):
        super().__init__()
        self.limit, self.error = limit, error

    def forward(self, x):
        result = super().forward(x)
        if len(x) > self.limit:
            self.error()
        return result


def raise_(error):
    raise error


OUT_OF_MEMORY = {
    "accelerator": lambda: raise_(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")),
    "CPU": lambda: torch.empty(10**15),  # the allocator's own error on this system
    "CPU, another system": lambda: raise_(RuntimeError("DefaultCPUAllocator: not enough memory: you tried to ...")),
    "Apple": lambda: raise_(RuntimeError("MPS backend out of memory (MPS allocated: 9.00 GB)")),
}


class Network(nn.Module):
    """With everything that behaves differently in training; ``during`` is called in every forward pass."""

    def __init__(self, during=lambda model: None):
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.frozen, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.frozen.requires_grad_(False)
        self.last.weight.grad = torch.ones_like(self.last.weight)
        self.norm.eval()  # as people do when they fine-tune
        self.drop.train()
        self.calls, self.during = 0, during

    def forward(self, x):
        self.calls += 1
        self.during(self)
        return self.last(self.drop(self.norm(self.frozen(self.first(x)))))


def trained_part(model):
    return ba.DiagonalGaussian(
        {n: p.detach() + 1 for n, p in model.named_parameters() if p.requires_grad},
        {n: torch.ones_like(p) for n, p in model.named_parameters() if p.requires_grad},
    )


def snapshot(model):
    state = {n: (t.clone(), t.data_ptr()) for n, t in (*model.named_parameters(), *model.named_buffers())}
    modes = {n: m.training for n, m in model.named_modules()}
    gradients = {n: (p.requires_grad, None if p.grad is None else p.grad.clone()) for n, p in model.named_parameters()}
    return state, modes, gradients


def bits(tensor):
    return tensor.detach().reshape(-1).view(torch.uint8)


def assert_unchanged(model, before):
    state, modes, gradients = snapshot(model)
    assert modes == before[1]
    for name, (value, address) in state.items():
        assert bits(value).equal(bits(before[0][name][0])), name
        assert address == before[0][name][1], name
    for name, (required, gradient) in gradients.items():
        assert required == before[2][name][0]
        assert (gradient is None) == (before[2][name][1] is None)
        assert gradient is None or gradient.equal(before[2][name][1])
