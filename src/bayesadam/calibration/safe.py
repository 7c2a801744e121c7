"""Widths at which a posterior does not predict worse than its network, and a warning about posteriors that do."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.calibration.held_out import HeldOut, mean
from bayesadam.functional.outputs import log_mean_exp
from bayesadam.likelihoods import Likelihood, RegressionLikelihood
from bayesadam.modules.exclusive import in_eval_mode
from bayesadam.posterior.gaussian_posterior import GaussianPosterior, Self
from bayesadam.predictive.last_layer import outputs_at_weights, run_to_layer
from bayesadam.predictive.pairs import Data, Remembered, batches_of_rows, evenly, is_single

SAFE = "safe"
"""Value of ``prior_precision`` that stands for 1, followed by a reduction to the largest harmless width."""

ROWS = 512
"""Number of rows of the data by which the harmless width is found."""

SAMPLES = 16
"""Number of posterior samples in that search; with few samples the predictive density is slightly low, which is
safe.
"""

RISE = 0.002
"""Largest rise of the mean score above the best score, in nats, that counts as harmless."""

SMALLEST = 2.0**-10
"""Factor of the width that is tried first, the smallest one."""

HARM = 0.1
"""Rise of the mean score above the network's own score, in nats, above which a warning is issued."""

NOISE = 2.0
"""Largest factor between the standard deviation of the noise and that of the residuals, in either direction, without a
warning.
"""

SHARE = 0.05
"""Size of the noise relative to the weights that counts as harmless where there are no data."""


class Watched:
    """Rows of data on which a posterior around a trained network is compared with the network itself.

    Args:
        model: The trained network.
        data: Data as given to a function of this library.
        likelihood: Likelihood of the targets given the network's outputs.
        output: Function that takes the output tensor out of what the model returns, as in :func:`bayesadam.predict`.
        batch_size: Rows per forward pass, as in :func:`bayesadam.predict`.

    Attributes:
        data: Data to iterate over instead of those given; the first rows of a loader are kept in passing.
    """

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        likelihood: Likelihood,
        output: Callable[[Any], Tensor] | None,
        batch_size: int | None,
    ) -> None:
        self.data = data if is_single(data) else Remembered(data, ROWS)
        self._model = model
        self._likelihood = likelihood
        self._options: dict[str, Any] = {"output": output, "batch_size": batch_size}

    def harmless(self, posterior: Self) -> Self:
        """Multiply the posterior's standard deviations by the largest factor up to 1 that does no harm.

        A factor does harm if the mean ``-log p`` of the rows under the predictive distribution is more than ``RISE``
        nats above the lowest one, that of the network itself or of a smaller factor. On rows that the network was
        trained on, noise hardly ever lowers the score, so the factor is smaller than on held-out rows: too small for
        the best predictions, but harmless.
        """
        at = self._scorer(posterior)
        least = min(math.inf, at(0.0).mean().item())  # infinity if the score is NaN

        def harms(factor: float) -> bool:
            nonlocal least
            score = at(factor).mean().item()
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
        """Warn if the posterior's score of the rows is clearly worse than the network's."""
        at = self._scorer(posterior)
        narrow, wide = at(0.0), at(1.0)
        rise = wide - narrow
        error = rise.std().item() / math.sqrt(len(rise)) if len(rise) > 1 else 0.0
        if not rise.mean().item() <= HARM + 2.0 * error:
            warnings.warn(
                f"the posterior is too wide: the loss on the data given is {mean(wide):.3f} nats with it and "
                f"{mean(narrow):.3f} with the network itself. Leave prior_precision out, or make it larger, or "
                "find the width with held-out data (bayesadam.tune_posterior)",
                UserWarning,
                stacklevel=3,
            )

    def _scorer(self, posterior: GaussianPosterior) -> Callable[[float], Tensor]:
        """Return a function of a factor of the standard deviations that gives ``-log p`` of some rows of the data, in
        nats and float64; for a factor of 0 they are those of the network itself.

        For a loader they are the rows that were kept.
        """
        data = self.data.first() if isinstance(self.data, Remembered) else evenly(self.data, ROWS)
        at_layer = self._at_last_layer(posterior, data)
        if at_layer is not None:
            center, target, at = at_layer
        else:
            rows = HeldOut(self._model, data, self._likelihood, mc_samples=SAMPLES, **self._options)
            network, scored = rows.scored(posterior, method="mean"), rows.at_widths(posterior)
            center, target = network.run.outputs[0], rows.target

            def at(factor: float) -> Tensor:
                return (scored(factor) if factor else network)(self._likelihood)

        warn_of_noise(self._likelihood, center, target)
        return at

    @torch.no_grad()
    def _at_last_layer(
        self, posterior: GaussianPosterior, data: Data
    ) -> tuple[Tensor, Tensor, Callable[[float], Tensor]] | None:
        """Return the network's outputs, the targets, and the function of :meth:`_scorer`; None unless the posterior is
        that of a layer which gives the outputs, and whose weights the layers before it do not use.

        The outputs are linear in its weights, so that one pass of the network is enough for all widths.
        """
        settings = posterior.hyperparameters
        if not settings.get("gives_outputs"):
            return None
        parameters = dict(self._model.named_parameters())
        layer, device = self._model.get_submodule(settings["last_layer"]), next(iter(parameters.values())).device
        assert isinstance(layer, nn.Linear)
        passes: list[tuple[Tensor, Tensor, Tensor]] = []
        with in_eval_mode(self._model):
            for rows, target in batches_of_rows(data, device, self._options["batch_size"]):
                with torch.set_grad_enabled(not passes):
                    features, outputs = run_to_layer(self._model, layer, rows, self._options["output"])
                    if features is None:
                        return None
                    if features.requires_grad:  # only in the first batch
                        weights = list(layer.parameters())
                        gradients = torch.autograd.grad(features.sum(), weights, allow_unused=True)
                        if gradients.count(None) < len(weights):
                            return None
                passes.append((features.detach(), outputs.detach(), target))
        features, center, target = map(torch.cat, zip(*passes, strict=True))
        samples = outputs_at_weights(features, layer, posterior, parameters, SAMPLES)
        counted = self._likelihood.counted(target)
        target = (target if counted is None else target.where(counted, 0)).to(center.device)
        wide = torch.promote_types(center.dtype, torch.float32)

        @torch.no_grad()
        def at(factor: float) -> Tensor:
            outputs = torch.lerp(center, samples, factor).to(wide)
            score = -log_mean_exp(self._likelihood.log_density(outputs, target)).double()
            return score if counted is None else score[counted]

        return center, target, at


@torch.no_grad()
def warn_of_noise(likelihood: Likelihood, outputs: Tensor, target: Tensor) -> None:
    """Warn if the noise of a regression is not of the size of the residuals, for its intervals are wrong then.

    Residuals of training rows are too small if the network overfits, so noise that was found on held-out rows is right.
    """
    if likelihood.calibrated or not isinstance(likelihood, RegressionLikelihood):
        return
    mean, log_variance = likelihood.mean_and_log_variance(outputs)
    residual = target.to(mean.device) - mean
    ratio = (residual.square() / log_variance.exp()).double().mean().sqrt().item()
    if not 1.0 / NOISE <= ratio <= NOISE:
        times, size = (1.0 / ratio if ratio else math.inf, "large") if ratio < 1.0 else (ratio, "small")
        warnings.warn(
            "the noise of the likelihood must fit the residuals of the network, got a standard deviation that is "
            f"{times:.2g} times too {size} on the data given, so that intervals are wrong. Find the noise with "
            "held-out data first: likelihood = bayesadam.calibrate(model, held_out, likelihood=likelihood)",
            UserWarning,
            stacklevel=7,  # the caller of laplace and badam, which are in a decorator of torch, as this function is
        )


def harmless_share(posterior: Self) -> Self:
    """Scale widths, without data, by the largest factor up to 1 for which the noise is 5% of the weights in every
    matrix.

    Root mean squares are compared. Tensors with one axis (biases and the weights of norm layers) are used only if there
    are no others.
    """
    names = [name for name, value in posterior.mean.items() if value.ndim > 1] or list(posterior.mean)
    noises = [posterior.variance[name].double().mean().sqrt() for name in names]
    sizes = [posterior.mean[name].double().square().mean().sqrt() for name in names]
    read = torch.stack([value.to(noises[0].device) for value in (*noises, *sizes)]).tolist()
    pairs = zip(read[: len(names)], read[len(names) :], strict=True)
    factor = min([1.0, *(SHARE * size / noise for noise, size in pairs if noise > 0.0)])
    return posterior if factor == 1.0 else posterior.scaled(factor)
