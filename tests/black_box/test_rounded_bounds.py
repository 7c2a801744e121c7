"""Bounds that are no numbers of the dtype of ``x0``."""

import math

import pytest
import torch

import bayesadam as ba


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_bounds_hold_in_every_dtype(dtype):
    """Points are rounded to the dtype of ``x0``, which may move them outwards; the bounds are no numbers of it."""
    seen = []

    def f(x):
        seen.extend(x.tolist())
        return math.sqrt(0.1 - float(x[0])) + math.sqrt(0.3 + float(x[1]))

    x0 = torch.tensor([0.1, -0.3], dtype=dtype)  # outside of the bounds in some dtypes
    found = ba.minimize(f, x0, bounds=[(0.0, 0.1), (-0.3, None)], maxfev=400)
    assert min(seen[0::2]) >= 0.0
    assert max(seen[0::2]) <= 0.1
    assert min(seen[1::2]) >= -0.3
    spacing = 0.3 * torch.finfo(dtype).eps
    assert found.x.tolist() == pytest.approx([0.1, -0.3], abs=spacing)
    assert seen[:2] == pytest.approx([0.1, -0.3], abs=spacing)
    assert torch.equal(x0, torch.tensor([0.1, -0.3], dtype=dtype))


def test_bounds_without_a_number_between_them():
    bounds = [(0.1, 0.1 + 1e-9)]
    with pytest.raises(
        ValueError, match=r"^bounds must have each lower bound below the upper one in torch.float32, got "
    ):
        ba.minimize(torch.sum, torch.tensor([0.1]), bounds=bounds)
    ba.minimize(torch.sum, torch.tensor([0.1], dtype=torch.float64), bounds=bounds, maxfev=20)
    with pytest.raises(ValueError, match=r"^x0 must be within the bounds, got 0.1000000\d* at position 0, where they"):
        ba.minimize(torch.sum, torch.tensor([0.1]).nextafter(torch.tensor(1.0)), bounds=[(0.0, 0.1)])
