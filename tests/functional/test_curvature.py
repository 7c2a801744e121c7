"""What differs off the CPU: how squares are added, how much is treated at a time, and how exact products are."""

import pytest
import torch

from bayesadam.functional.curvature import add_squares_, precision
from bayesadam.native.device import WORKING_SET, working_set


class Elsewhere(torch.Tensor):
    """A tensor that says that it is not on the CPU."""

    is_cpu = False


@pytest.mark.parametrize("size", [3, 40_000])
@pytest.mark.parametrize("place", [torch.Tensor, Elsewhere])
def test_squares_are_added(size, place):
    gradients, total, summed = torch.randn(5, size), torch.rand(size), torch.rand(size)
    expected = total + 0.5 * gradients.square().sum(0), summed + gradients.sum(0)
    total, summed = total.as_subclass(place), summed.as_subclass(place)
    add_squares_(total, gradients.clone(), alpha=0.5, summed=summed)
    torch.testing.assert_close(total.as_subclass(torch.Tensor), expected[0])
    torch.testing.assert_close(summed.as_subclass(torch.Tensor), expected[1])


def test_products_of_float32_may_be_rounded_to_ten_bits_off_the_cpu():
    assert precision(torch.empty(1)) == torch.finfo(torch.float32).eps
    assert precision(torch.empty(1, device="meta")) == 2.0**-10
    for dtype in (torch.float64, torch.bfloat16):
        assert precision(torch.empty(1, dtype=dtype, device="meta")) == torch.finfo(dtype).eps


def test_devices_treat_more_at_a_time_than_fits_a_cache():
    assert working_set(torch.device("cpu"), 1000) == 1000
    assert working_set(torch.device("cuda"), 1000) == WORKING_SET
