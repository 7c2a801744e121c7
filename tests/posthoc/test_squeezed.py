"""Laplace approximations of a model that squeezes its output, which then has no axes for a single row."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.posthoc import LaplaceApproximation


@pytest.mark.parametrize("mapped", [True, False])
def test_the_full_curvature_of_a_model_that_squeezes_its_output(mapped):
    class Squeezed(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(2, 1).double()

        def forward(self, x):
            return self.model(x).squeeze() * (1.0 if mapped or x.sum().item() > -1e9 else 0.0)

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 2, dtype=torch.float64, generator=generator)
    y = torch.randn(9, dtype=torch.float64, generator=generator)
    fitted = LaplaceApproximation(Squeezed(), (x, y), likelihood=ba.Gaussian(1.0), structure="full")
    rows = torch.cat([x, torch.ones(9, 1, dtype=torch.float64)], 1)
    torch.testing.assert_close(fitted.curvature, rows.T @ rows, rtol=1e-10, atol=1e-10)
