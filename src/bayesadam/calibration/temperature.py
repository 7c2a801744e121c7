"""Temperature scaling: how sure predictions should be, by held-out data."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from bayesadam.calibration.held_out import HeldOut, best_temperature, check_apart, check_surer, is_coldest, mean
from bayesadam.likelihoods import Likelihood, check_likelihood
from bayesadam.posterior import NetworkDistribution
from bayesadam.predictive.pairs import Data


class AsItIs(NetworkDistribution):
    """The network with its own weights."""

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """Nothing is put into the network."""
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
    batch_norm: Any = None,
) -> Likelihood:
    """The likelihood at the temperature that gives held-out targets the largest density: temperature scaling.

    Of classes, logits are divided by the temperature (Guo et al. 2017); of Gaussian targets, the variance of the noise
    is multiplied by it. The network stays as it is, and so do its most probable classes; what is returned goes to
    :func:`bayesadam.predict`, whatever the method there::

        likelihood = ba.calibrate(model, (x_val, y_val), likelihood=ba.Categorical())
        ba.predict(model, q, x_new, likelihood=likelihood)

    It is what every posterior around a trained network has to be compared with; :func:`bayesadam.tune_posterior` finds
    width and temperature together. A warning says where rows look like such that the network was trained on: they are
    in ``train``, or they ask for clearly surer predictions.

    Args:
        model: Trained.
        held_out: Rows that the network was *not* trained on: a pair ``(inputs, targets)``, or a loader of such pairs.
        likelihood: What the outputs mean.
        posterior: Whose predictive distribution is calibrated; default none: the network itself.
        train: The training data, to be compared with: rows that are in both are warned of.
        method: Of :func:`bayesadam.predict`, with a posterior.
        mc_samples: Of :func:`bayesadam.predict`, with a posterior.
        seed: Of :func:`bayesadam.predict`, with a posterior.
        output: Of :func:`bayesadam.predict`.
        batch_size: Of :func:`bayesadam.predict`.
        batch_norm: Of :func:`bayesadam.predict`.

    Returns:
        ``likelihood.tempered(temperature)``: of classes a temperature in [0.1, 10], of noise in [1e-4, 1e4]. Where
        every lower one is better (all rows are predicted right), 1, with a warning.

    Raises:
        MissingCapabilityError: A likelihood that cannot be ``tempered``.
        ValueError: As for :func:`bayesadam.predict`, no data, or predictions that are not finite.
    """
    check_likelihood(likelihood)
    likelihood.tempered(1.0)  # raises before the network is run
    options = {"seed": seed, "output": output, "batch_size": batch_size, "batch_norm": batch_norm}
    rows = HeldOut(model, held_out, likelihood, mc_samples=mc_samples, **options)
    check_apart(rows, train)
    given, method = (AsItIs(), "mean") if posterior is None else (posterior, method)
    score = rows.scored(given, method=method)
    temperature, after = best_temperature(score, likelihood)
    if not math.isfinite(after):
        raise ValueError("the predictions of held_out must be finite, got inf or nan")
    if is_coldest(likelihood, temperature):
        return likelihood.tempered(1.0)
    before = score(likelihood)
    check_surer(likelihood, temperature, mean(before) - after, before.numel())
    return likelihood.tempered(temperature)
