"""Black-box minimisation: variational optimisation of a function without gradients."""

from bayesadam.black_box.front import minimize as minimize
from bayesadam.black_box.result import MinimizeResult as MinimizeResult
