"""Noise that depends on the inputs: small networks, fitted to the members' errors on the rows that they left out."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.adam import adam

from bayesadam.tables.estimators.calibration import SMALLEST, Scales, variance_scales

Floats = NDArray[Any]

NOISE = ("auto", "constant", "input")

FEWEST = 20
"""Minimum number of rows for noise that is not constant."""

UNITS, LR, DECAY = 8, 0.02, 1.0
STEPS, LOOK, PATIENCE = 400, 10, 6
"""Maximum number of steps, number of steps between two evaluations on the rows that the networks leave out, and number
of evaluations without improvement after which the training ends."""

ADAM: dict[str, Any] = {"amsgrad": False, "maximize": False, "weight_decay": 0.0, "eps": 1e-8}
ADAM |= {"lr": LR, "beta1": 0.9, "beta2": 0.999}

BATCH = 2_048
BEND = 3.0
"""Bound, in standard deviations, of the features, which are squashed by a tanh."""


def check_noise(value: object, likelihood: object) -> None:
    """Raise ``ValueError`` if ``value`` is not a model of the noise, or if the likelihood already has a model of it."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool) and 0 < value < np.inf
    if not number and not (isinstance(value, str) and value in NOISE):
        raise ValueError(f"noise must be one of {NOISE} or a positive standard deviation, got {value!r}")
    if value != "auto" and likelihood != "gaussian":
        raise ValueError(f"noise must be 'auto' with likelihood={likelihood!r}, got {value!r}")


@dataclass(frozen=True)
class LeftOut:
    """Standardised rows, and the predictions of one output by members that have not seen these rows.

    Attributes:
        inputs: ``(N, D)``.
        mean: Predictive means, ``(N,)``.
        residual: Targets minus means, ``(N,)``.
        epistemic: Epistemic variances, ``(N,)``.
        aleatoric: Variances of the noise, ``(N,)``.
        weight: Weights of the rows, ``(N,)``, which add up to the number of independent rows.
        fold: Number of the fold of each row, ``(N,)``. Rows of a fold are left out together.
    """

    inputs: Floats
    mean: Floats
    residual: Floats
    epistemic: Floats
    aleatoric: Floats
    weight: Floats
    fold: NDArray[np.int64]


@dataclass(frozen=True)
class NoisePattern:
    """The dependence of the noise's log variance on the inputs.

    The term ``strength * clip(g - center, low, high)`` is added to the log variance. Here ``g`` is a network with one
    hidden layer and a linear part: the mean of several networks that were trained on different rows. Its features are
    the inputs and the predictive mean, squashed.

    Attributes:
        linear: Weights of the linear part, ``(D + 1,)``.
        hidden: Weights of the hidden layer, ``(D + 1, H)``.
        bias: Biases of the hidden layer, ``(H,)``.
        out: Weights of the output, ``(H,)``.
        center: Mean of ``g`` over the rows to which it was fitted.
        low: Smallest value of ``g - center`` for these rows. The bounds prevent extrapolation.
        high: Largest value of ``g - center`` for these rows.
        strength: Factor in [0, 1].
    """

    linear: Floats
    hidden: Floats
    bias: Floats
    out: Floats
    center: float
    low: float
    high: float
    strength: float = 1.0

    def log_factor(self, inputs: Floats, mean: Floats) -> Floats:
        """Return the term ``(N,)`` of the noise's log variance, for inputs ``(N, D)`` and predictive means ``(N,)``."""
        features = _features(inputs, mean)
        log_variance = features @ self.linear + np.tanh(features @ self.hidden + self.bias) @ self.out
        return np.asarray(self.strength * np.clip(log_variance - self.center, self.low, self.high))


def calibrated(left_out: LeftOut, noise: str | float) -> tuple[Scales, NoisePattern | None, Floats]:
    """Return the factors of both variances, the pattern of the noise if there is one, and the calibrated variances of
    the noise, ``(N,)``, of which each is from a pattern that was fitted to the rows of other folds.

    Args:
        left_out: The rows to which they are fitted.
        noise: ``"constant"``; ``"input"``; ``"auto"``, which chooses ``"input"`` if it increases the mean log density
            of the rows by more than the standard error of the increase; or a number, the known standard deviation.
    """
    parts = (left_out.residual, left_out.epistemic, left_out.aleatoric, left_out.weight)
    fixed = not isinstance(noise, str)
    constant = variance_scales(*parts, fixed_noise=fixed)
    if fixed or noise == "constant" or left_out.weight.sum() < FEWEST:
        return constant, None, constant.aleatoric * left_out.aleatoric
    # The factor is at most 1: epistemic variances that resemble the noise could otherwise be scaled to explain it.
    fitted = _fit(left_out, min(1.0, constant.epistemic) * left_out.epistemic)
    if fitted is None:
        return constant, None, constant.aleatoric * left_out.aleatoric
    pattern, values = fitted
    scales = variance_scales(*parts, pattern=values)
    gain = _loss(left_out, constant, values) - _loss(left_out, scales, values)
    mean = np.average(gain, weights=left_out.weight)
    error = math.sqrt(float((left_out.weight**2 * (gain - mean) ** 2).sum())) / float(left_out.weight.sum())
    if scales.strength == 0 or (noise == "auto" and mean <= error):
        return constant, None, constant.aleatoric * left_out.aleatoric
    noise_variance = scales.aleatoric * np.exp(scales.strength * values) * left_out.aleatoric
    return scales, replace(pattern, strength=scales.strength), noise_variance


def _loss(left_out: LeftOut, scales: Scales, values: Floats) -> Floats:
    noise = scales.aleatoric * np.exp(scales.strength * values) * left_out.aleatoric
    variance = scales.epistemic * left_out.epistemic + noise
    return np.asarray(0.5 * (left_out.residual**2 / variance + np.log(variance)))


def _features(inputs: Floats, mean: Floats) -> Floats:
    return np.asarray(BEND * np.tanh(np.concatenate([inputs, mean[:, None]], axis=1, dtype=np.float64) / BEND))


class _Networks:
    """One network per fold with a hidden layer and a linear part, in single precision, which starts as a constant."""

    def __init__(self, folds: int, columns: int, level: float) -> None:
        generator = torch.Generator().manual_seed(0)
        made: dict[str, Any] = {"generator": generator, "dtype": torch.float32}
        self.linear = torch.zeros(folds, columns, 1, dtype=torch.float32)
        self.hidden = torch.randn(folds, columns, UNITS, **made) / math.sqrt(columns)
        self.bias = torch.randn(folds, 1, UNITS, **made)
        self.out = torch.zeros(folds, UNITS, 1, dtype=torch.float32)
        self.level = torch.full((folds, 1), level, dtype=torch.float32)
        for value in self.parameters():
            value.requires_grad_()

    def parameters(self) -> list[Tensor]:
        return list(vars(self).values())

    def __call__(self, x: Tensor) -> Tensor:
        """Return log variances, ``(folds, N)``, for features ``(N, columns)``."""
        return (x @ self.linear + torch.tanh(x @ self.hidden + self.bias) @ self.out)[..., 0] + self.level

    def decay(self) -> Tensor:
        """Return the sum of the squared weights."""
        return self.linear.square().sum() + self.hidden.square().sum() + self.out.square().sum()

    def average(self) -> tuple[dict[str, Any], float]:
        """Return the arrays of a :class:`NoisePattern` that averages the networks, and the constant term left out."""
        linear, hidden, bias, out, level = (value.detach().numpy() for value in self.parameters())
        arrays = {
            "linear": linear[..., 0].mean(0),
            "hidden": hidden.transpose(1, 0, 2).reshape(hidden.shape[1], -1),
            "bias": bias.flatten(),
            "out": out.reshape(-1) / np.float32(len(out)),
        }
        return arrays, float(level.mean())


def _fit(left_out: LeftOut, epistemic: Floats) -> tuple[NoisePattern, Floats] | None:
    """Return a pattern and its values for rows that the networks have not seen, or ``None`` if there is no pattern.

    Each network is trained on the rows of the other folds, by the Gaussian log density with the given epistemic
    variances. All networks are trained together. The weights of the step with the largest density of the left-out rows
    are kept.
    """
    names, numbers = np.unique(left_out.fold, return_inverse=True)
    if len(names) < 2:
        return None
    in_fold = (torch.from_numpy(numbers) == torch.arange(len(names))[:, None]).float()
    features = torch.from_numpy(_features(left_out.inputs, left_out.mean)).float()
    square, spread, weight = (
        torch.from_numpy(np.asarray(values, dtype=np.float32))
        for values in (left_out.residual**2, epistemic, left_out.weight / left_out.weight.mean())
    )
    rows = len(features)
    whole = float((weight * square).mean())
    level = math.log(max(whole - float((weight * spread).mean()), 0.1 * whole, SMALLEST))
    networks = _Networks(len(names), features.shape[1], level)
    parameters = networks.parameters()
    means, squares = ([torch.zeros_like(value) for value in parameters] for _ in range(2))
    counts = [torch.zeros(()) for _ in parameters]
    generator = torch.Generator().manual_seed(0)

    def losses(log_noise: Tensor, at: Any) -> Tensor:
        variance = spread[at] + log_noise.exp()
        return 0.5 * weight[at] * (square[at] / variance + variance.log())

    least, best, chosen, values = math.inf, 0, networks.average(), torch.zeros(rows)
    for step in range(STEPS + 1):
        if step % LOOK == 0:
            with torch.no_grad():
                unseen = (in_fold * networks(features)).sum(0)
                error = float(losses(unseen, slice(None)).mean())
            if error < least:
                least, best, chosen, values = error, step, networks.average(), unseen
            elif step >= best + PATIENCE * LOOK:
                break
        at = torch.randint(rows, (BATCH,), generator=generator) if rows > BATCH else torch.arange(rows)
        others = 1.0 - in_fold[:, at]
        of_folds = (losses(networks(features[at]), at) * others).sum(1) / others.sum(1).clamp_min(1.0)
        grads = torch.autograd.grad(of_folds.sum() + 0.5 * DECAY / rows * networks.decay(), parameters)
        with torch.no_grad():  # the optimiser as a function: the class imports the compiler, which takes seconds
            adam(parameters, [*grads], means, squares, [], counts, **ADAM)
    if best == 0:
        return None
    arrays, constant = chosen
    pattern = values.double().numpy()
    center = float(np.average(pattern, weights=left_out.weight))
    ends = float(pattern.min()) - center, float(pattern.max()) - center
    return NoisePattern(**arrays, center=center - constant, low=ends[0], high=ends[1]), pattern - center
