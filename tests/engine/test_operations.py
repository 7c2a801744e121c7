"""The cost of a step is per element: how many operations are dispatched does not depend on the number of tensors."""

import collections

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bayesadam as ba
from bayesadam import native, noise

SYNCHRONISING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item")


class Counted(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operations(make, tensors, mode, **options):
    """What a step dispatches once it is in its stride, with gradients that are there already."""
    params = [torch.nn.Parameter(torch.full((16,), 0.1)) for _ in range(tensors)]
    opt = make(params, num_data=50.0, **options)
    if mode == "train":
        opt.train()

    def step():
        if mode == "train":
            opt.step()
            return
        with opt.sampled_params():
            for p, g in zip(params, grads, strict=True):
                p.grad = g
        opt.step()

    grads = [torch.full((16,), 0.01) for _ in params]
    for p, g in zip(params, grads, strict=True):
        p.grad = g
    for _ in range(3):
        step()
    with Counted() as counted:
        step()
    return counted.calls


@pytest.mark.parametrize("nonfinite", ["raise", "skip"])
@pytest.mark.parametrize("mode", ["train", "block"])
@pytest.mark.parametrize(
    "compile",
    [False, pytest.param(True, marks=pytest.mark.skipif(not native.has_compiler(), reason="there is no C++ compiler"))],
)
@pytest.mark.parametrize("make", [ba.Vadam, ba.IVON])
def test_are_as_many_for_a_thousand_tensors_as_for_sixteen(make, compile, mode, nonfinite):
    found = [operations(make, n, mode, compile=compile, nonfinite=nonfinite) for n in (16, 100, 1000)]
    assert found[0] == found[1] == found[2]
    assert not any(found[0][name] for name in SYNCHRONISING)
    assert sum(found[0].values()) <= (15 if compile else 90)


def test_without_a_compiler_too(monkeypatch):
    """What draws the noise on a GPU is the same code."""
    monkeypatch.setattr(noise, "_native", lambda out: None)
    found = [operations(ba.IVON, n, "train", compile=False) for n in (16, 100, 1000)]
    assert found[0] == found[1] == found[2]
    assert not any(found[0][name] for name in SYNCHRONISING)
