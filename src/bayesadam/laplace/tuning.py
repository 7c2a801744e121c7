"""Choosing the numbers of a posterior by how well it predicts held-out data, its width and temperature as they are."""

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
    """Try every combination of candidates, and keep the one that gives held-out targets the largest density.

    This is :func:`bayesadam.tune_posterior` for these two numbers alone, with neither a factor of the width nor a
    temperature (Kessler et al. 2018, appendix C: the number of data points may be seen as a number of
    "pseudo-observations" that is tuned on a validation set)::

        tune_laplace(partial(ba.badam, adam, model), model, validation, likelihood=likelihood, num_data=[100, 1e3, 1e4])
        tune_laplace(Laplace(model, train, likelihood=likelihood).posterior, model, validation, likelihood=likelihood)

    Args:
        make: Makes a posterior from the keyword arguments ``prior_precision``, and ``num_data`` if candidates for that
            are given.
        model: That the posteriors are of.
        data: Held out, on any device: a pair ``(inputs, targets)``, or a loader of such pairs, which is gone through
            once and kept.
        likelihood: What the outputs mean.
        num_data: Candidates; default none, and ``make`` is called without.
        prior_precision: Candidates; default 1e-4, 1e-3, ..., 1e4.
        method: Of :func:`bayesadam.predict`.
        mc_samples: Of :func:`bayesadam.predict`.
        seed: Of :func:`bayesadam.predict`.
        output: Of :func:`bayesadam.predict`.
        batch_size: Of :func:`bayesadam.predict`.
        progress: Show a progress bar; default in a terminal.

    Raises:
        ValueError: No candidates, or no data; and what ``make`` and ``predict`` raise.
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
