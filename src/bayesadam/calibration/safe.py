"""The width with which a posterior does not make its network worse, and a warning where it does."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from bayesadam.calibration.held_out import HeldOut, mean
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior.gaussian import Self
from bayesadam.predictive.pairs import Data, Remembered, evenly

SAFE = "safe"
"""In the place of a prior precision: 1, and then the largest width that does no harm."""

ROWS = 512
"""Of the data, by which that is found."""

SAMPLES = 16
"""Of the posterior, likewise: with few, the predictive density is a little lower, which is on the safe side."""

RISE = 0.002
"""Of the mean score above the best one, in nats, that is no harm yet."""

SMALLEST = 2.0**-10
"""Factor of the width that is tried first."""

HARM = 0.1
"""Rise above the network's own score, in nats, that is warned of."""

SHARE = 0.05
"""Of the weights' size: that of the noise which is taken to be harmless where there are no data."""


class Watched:
    """Some rows of data, by which a posterior around a trained network is compared with the network itself.

    Args:
        model: Trained.
        data: As given to a function of this library.
        likelihood: What the outputs mean.
        output: Of :func:`bayesadam.predict`.
        batch_size: Of :func:`bayesadam.predict`.

    Attributes:
        data: To be gone through in the place of those given: of a loader, the rows that come first are kept.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        likelihood: Likelihood,
        output: Callable[[Any], Tensor] | None,
        batch_size: int | None,
    ) -> None:
        self.data = data if isinstance(data, tuple) else Remembered(data, ROWS)
        self._model = model
        self._likelihood = likelihood
        self._options = {"output": output, "batch_size": batch_size, "mc_samples": SAMPLES}

    def harmless(self, posterior: Self) -> Self:
        """The posterior, its standard deviations multiplied by the largest factor up to 1 that does no harm.

        Harm is a mean ``-log p`` of the rows, under the predictive distribution, of more than ``RISE`` nats above the
        least: that of the network itself or with a smaller factor. On rows that the network was trained on, hardly any
        noise makes it less, so that the factor is smaller than on others: too small for the best predictions, but
        harmless.
        """
        rows = self._rows()
        least = mean(rows.scored(posterior, method="mean")(self._likelihood))

        whole = rows.scored(posterior)

        def harms(factor: float) -> bool:
            nonlocal least
            if whole.takes_scale:
                score = mean(whole(self._likelihood, scale=factor))
            else:
                score = mean(rows.scored(posterior.scaled(factor))(self._likelihood))
            least = min(least, score)
            return not score <= least + RISE

        factor = SMALLEST
        if harms(factor):
            return posterior.scaled(0.0)
        while factor < 1.0 and not harms(2.0 * factor):
            factor *= 2.0
        if factor < 1.0 and not harms(math.sqrt(2.0) * factor):
            factor *= math.sqrt(2.0)
        return posterior if factor == 1.0 else posterior.scaled(factor)

    def warn_of_harm(self, posterior: Self) -> None:
        """Warn where the posterior's score of the rows is clearly worse than the network's."""
        rows = self._rows()
        own = rows.scored(posterior, method="mean")(self._likelihood)
        wide = rows.scored(posterior)(self._likelihood)
        rise = wide - own
        error = rise.std().item() / math.sqrt(len(rise)) if len(rise) > 1 else 0.0
        if not rise.mean().item() <= HARM + 2.0 * error:
            warnings.warn(
                f"the posterior is too wide: the loss on the data given is {mean(wide):.3f} nats with it and "
                f"{mean(own):.3f} with the network itself. Leave prior_precision out, or make it larger, or find the "
                "width with held-out data (bayesadam.tune_posterior)",
                UserWarning,
                stacklevel=3,
            )

    def _rows(self) -> HeldOut:
        """A part of the data; of a loader, what was kept of it."""
        data = self.data.first() if isinstance(self.data, Remembered) else evenly(self.data, ROWS)
        return HeldOut(self._model, data, self._likelihood, **self._options)


def harmless_share(posterior: Self) -> Self:
    """Without data: widths times the largest factor up to 1 for which noise is 5% of the weights in every matrix.

    Root mean squares are compared; those of tensors with one axis, biases and the weights of norm layers, only if there
    are no others.
    """
    names = [name for name, value in posterior.mean.items() if value.ndim > 1] or list(posterior.mean)
    factor = 1.0
    for name in names:
        noise = posterior.variance[name].double().mean().sqrt().item()
        size = posterior.mean[name].double().square().mean().sqrt().item()
        factor = min(factor, SHARE * size / noise if noise > 0.0 else 1.0)
    return posterior if factor == 1.0 else posterior.scaled(factor)
