"""Factors of the learning rate."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR

from bayesadam.optim import half_cosine


def test_half_cosine_is_that_of_torch():
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = CosineAnnealingLR(optimizer, T_max=20)
    for step in range(21):
        assert half_cosine(step / 20) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-14)
        optimizer.step()
        scheduler.step()


@pytest.mark.parametrize("flat", [0.25, 0.5])
def test_half_cosine_after_a_flat_part(flat):
    assert half_cosine(0.0, flat=flat) == half_cosine(flat - 1e-9, flat=flat) == half_cosine(flat, flat=flat) == 1.0
    assert half_cosine(flat + (1.0 - flat) / 3.0, flat=flat) == pytest.approx(0.5 * (1.0 + math.cos(math.pi / 3.0)))
    assert half_cosine(1.0, flat=flat) == 0.0
