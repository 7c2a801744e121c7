"""Bayes by Backprop: any network made variational, trained by any PyTorch optimiser."""

from bayesadam.bayes_by_backprop.module import VariationalModule, variational

__all__ = ["VariationalModule", "variational"]
