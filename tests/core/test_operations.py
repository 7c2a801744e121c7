"""The cost of a step is per element: how many operations are dispatched does not depend on the number of tensors."""

import pytest
import torch

import bayesadam as ba
from bayesadam import native, noise
from operations import Counted

SYNCHRONISING = ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "item")


def operations(cls, tensors, mode, **options):
    """What a step dispatches once it is in its stride, with gradients that are there already."""
    params = [torch.nn.Parameter(torch.full((16,), 0.1)) for _ in range(tensors)]
    grads = [torch.full((16,), 0.01) for _ in params]
    opt = cls(params, num_data=50.0, **options)

    def give_gradients():
        for p, grad in zip(params, grads, strict=True):
            p.grad = grad

    def step():
        if mode == "block":
            with opt.sampled_params():
                give_gradients()
        opt.step()

    if mode == "train":
        opt.train()
    give_gradients()
    for _ in range(3):
        step()
    with Counted() as counted:
        step()
    return counted.calls


def assert_the_number_of_tensors_does_not_matter(*args, limit, **options):
    few, many = (operations(args[0], tensors, args[1], **options) for tensors in (16, 400))
    assert few == many
    assert not any(few[name] for name in SYNCHRONISING)
    assert sum(few.values()) <= limit


@pytest.mark.parametrize("mode", ["train", "block"])
@pytest.mark.parametrize(
    ("compile", "limit"),
    [
        (False, 90),
        pytest.param(True, 15, marks=pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")),
    ],
)
@pytest.mark.parametrize(("cls", "nonfinite"), [(ba.Vadam, "raise"), (ba.IVON, "skip")])
def test_are_as_many_for_hundreds_of_tensors_as_for_sixteen(cls, nonfinite, compile, limit, mode):
    assert_the_number_of_tensors_does_not_matter(cls, mode, limit=limit, compile=compile, nonfinite=nonfinite)


def test_without_a_compiler_too(monkeypatch):
    """What draws the noise on a GPU is the same code."""
    monkeypatch.setattr(noise, "_native", lambda out: None)
    assert_the_number_of_tensors_does_not_matter(ba.IVON, "train", limit=1_000, compile=False)
