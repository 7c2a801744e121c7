"""Choosing prior precision and number of data of a posterior by its predictions of held-out data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from bayesadam.calibration import PosteriorTuning, tune_posterior
from bayesadam.calibration.tuning import PRECISIONS
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior import Posterior
from bayesadam.predictive.pairs import Data


def tune_laplace(
    make: Callable[..., Posterior],
    model: nn.Module,
    data: Data,
    *,
    likelihood: Likelihood,
    num_data: Sequence[float] | None = None,
    prior_precision: Sequence[float] | None = None,
    method: str = "auto",
    mc_samples: int = 64,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    progress: bool | None = None,
) -> PosteriorTuning:
    """Try all combinations of candidates, and keep the one that gives held-out targets the highest density.

    This is :func:`bayesadam.tune_posterior` for these two numbers alone, with neither a factor of the width nor a
    temperature. The number of data points may be seen as a number of "pseudo-observations" that is tuned on a
    validation set (Kessler et al. 2018, appendix C)::

        tune_laplace(partial(ba.badam, adam, model), model, validation, likelihood=likelihood, num_data=[100, 1e3, 1e4])
        tune_laplace(Laplace(model, train, likelihood=likelihood).posterior, model, validation, likelihood=likelihood)

    Args:
        make: Function that makes a posterior from the keyword argument ``prior_precision``, and ``num_data`` if there
            are candidates for it.
        model: The network that the posteriors belong to.
        data: Held-out data, on any device: a pair ``(inputs, targets)``, or a loader of such pairs, which is iterated
            over once and kept in memory.
        likelihood: Likelihood of the targets given the network's outputs.
        num_data: Candidates; by default there are none, and ``make`` is called without this argument.
        prior_precision: Candidates; default 1e-4, 1e-3, ..., 1e4.
        method: Method of prediction, as in :func:`bayesadam.predict`.
        mc_samples: Number of samples, as in :func:`bayesadam.predict`.
        seed: Seed of the samples, as in :func:`bayesadam.predict`.
        output: Function that takes the output tensor out of what the model returns, as in :func:`bayesadam.predict`.
        batch_size: Rows per forward pass, as in :func:`bayesadam.predict`.
        progress: Whether to show a progress bar; by default it is shown in a terminal.

    Returns:
        The best posterior, with the scores of all candidates.

    Raises:
        ValueError: There are no candidates or no data, or ``make`` or ``predict`` raises it.
        RuntimeError: No candidate has a finite score.
    """
    grid = {"num_data": num_data, "prior_precision": PRECISIONS if prior_precision is None else prior_precision}
    return tune_posterior(
        make,
        model,
        data,
        likelihood=likelihood,
        candidates={name: values for name, values in grid.items() if values is not None},
        scale=[1.0],
        temperature=[1.0],
        method=method,
        mc_samples=mc_samples,
        seed=seed,
        output=output,
        batch_size=batch_size,
        progress=progress,
    )
