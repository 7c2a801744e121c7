"""Bayes by Backprop: any network made variational, trained by any PyTorch optimiser."""

from bayesadam.variational.module import VariationalModule as VariationalModule
from bayesadam.variational.module import variational as variational
