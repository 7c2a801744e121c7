"""Curvature of the loss as the module sees it: squared gradients of the examples, collected during backward."""

from bayesadam.curvature.per_example import PerExampleSquares as PerExampleSquares
from bayesadam.curvature.reduction import reduction_of as reduction_of
