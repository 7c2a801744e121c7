"""Black-box minimisation: variational optimisation of a function without gradients."""

from bayesadam.minimize.front import minimize as minimize
from bayesadam.minimize.result import MinimizeResult as MinimizeResult
