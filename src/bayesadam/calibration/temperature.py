"""Temperature scaling of predictions by held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from bayesadam.calibration.held_out import (
    HeldOut,
    best_temperature,
    check_apart,
    check_surer,
    mean,
    tempered_by_data,
)
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.posterior import NetworkDistribution
from bayesadam.predictive.pairs import Data


class AsItIs(NetworkDistribution):
    """The network with its own weights, as a distribution without uncertainty."""

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """Return a context whose function leaves the network unchanged."""
        yield lambda _: None


def calibrate(
    model: nn.Module,
    held_out: Data,
    *,
    likelihood: Likelihood,
    posterior: NetworkDistribution | None = None,
    train: Data | None = None,
    method: str = "auto",
    mc_samples: int = 64,
    seed: int = 0,
    output: Callable[[Any], Tensor] | None = None,
    batch_size: int | None = None,
    batch_norm: Any = "auto",
    progress: bool | None = None,
) -> Likelihood:
    """Find the temperature that gives held-out targets the highest density, and return the likelihood at it.

    This is temperature scaling. For classes the logits are divided by the temperature (Guo et al. 2017); for Gaussian
    targets the variance of the noise is multiplied by it. The network and its most probable classes do not change. The
    result is passed to :func:`bayesadam.predict`, with any method::

        likelihood = ba.calibrate(model, (x_val, y_val), likelihood=ba.Categorical())
        ba.predict(model, q, x_new, likelihood=likelihood)

    The logarithm of a temperature of classes has a standard Cauchy prior, so that few rows without mistakes do not make
    the predictions certain. From 0.1 to 10 it weighs less than two nats in all.

    Every posterior around a trained network should be compared with this baseline. :func:`bayesadam.tune_posterior`
    finds width and temperature together. A warning is issued if the network seems to have been trained on the held-out
    rows: they occur in ``train``, or the best temperature is clearly below 1.

    Args:
        model: The trained network.
        held_out: Rows that the network was *not* trained on: a pair ``(inputs, targets)``, a dict with ``"labels"``, or
            a loader of such batches, from which :func:`bayesadam.predict` takes the inputs.
        likelihood: Likelihood of the targets given the network's outputs.
        posterior: Posterior whose predictive distribution is calibrated; by default the network itself is calibrated.
        train: Training data. Held-out rows that also occur in them are reported in a warning.
        method: Method of prediction, as in :func:`bayesadam.predict`; used with a posterior only.
        mc_samples: Number of samples, as in :func:`bayesadam.predict`; used with a posterior only.
        seed: Seed of the samples, as in :func:`bayesadam.predict`; used with a posterior only.
        output: Function that takes the output tensor out of what the model returns, as in :func:`bayesadam.predict`.
        batch_size: Rows per forward pass, as in :func:`bayesadam.predict`.
        batch_norm: How batch norm statistics are found, as in :func:`bayesadam.predict`. Without a posterior
            ``"auto"`` leaves the network as it is.
        progress: Whether to show a progress bar, as in :func:`bayesadam.predict`.

    Returns:
        ``likelihood.tempered(temperature)``, with a temperature in [1e-20, 1e4] for classes and in [1e-20, 1e20] for
        noise. A warning is issued if every lower temperature is better, down to the lower limit (all rows are predicted
        correctly, or exactly); the temperature is 1 then. If every higher one is better, up to the upper limit, a
        warning is issued as well, and the temperature is this limit.

    Raises:
        MissingCapabilityError: The likelihood cannot be ``tempered``.
        ValueError: There are no data, predictions are not finite, or :func:`bayesadam.predict` raises it.
    """
    check_likelihood(likelihood)
    likelihood.tempered(1.0)  # raises before the network is run
    if posterior is None and isinstance(batch_norm, str):
        batch_norm = None
    options = {"output": output, "batch_size": batch_size, "batch_norm": batch_norm, "progress": progress}
    rows = HeldOut(model, held_out, likelihood, mc_samples=mc_samples, seed=seed, **options)
    check_apart(rows, train)
    given, method = (AsItIs(), "mean") if posterior is None else (posterior, method)
    score = rows.scored(given, method=method)
    temperature, after = best_temperature(score, likelihood, warn=True)
    if not math.isfinite(after):
        raise ValueError("the predictions of held_out must be finite, got inf or nan")
    before = score(likelihood)
    check_surer(likelihood, temperature, mean(before) - after, before.numel())
    return tempered_by_data(likelihood, temperature)
