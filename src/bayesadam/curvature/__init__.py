"""Curvature of a module's loss: squared gradients of single examples, collected during the backward pass."""

from bayesadam.curvature.per_example import PerExampleSquares
from bayesadam.curvature.reduction import reduction_of

__all__ = ["PerExampleSquares", "reduction_of"]
