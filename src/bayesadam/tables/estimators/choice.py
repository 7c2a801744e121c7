"""The choice of the likelihood and the transform that describe left-out rows best, by models that are quick to fit.

As Box and Cox (1964) choose a power by the likelihood of a linear model, the choice is made by regressions on random
hidden units, which are drawn like the initial weights of the networks. Their predictions of left-out rows are compared
by the negative log density in the units of the targets. The training of the networks and their random numbers are not
affected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import RidgeCV
from torch import Tensor

from bayesadam.likelihoods import Likelihood
from bayesadam.scaling import column_scales, standardized
from bayesadam.tables.estimators import likelihoods
from bayesadam.tables.estimators.calibration import SMALLEST
from bayesadam.tables.estimators.clock import Clock, OutOfTimeError
from bayesadam.tables.estimators.linear import PENALTIES
from bayesadam.tables.estimators.rows import numbered
from bayesadam.tables.estimators.target_transform import NAMES, fitted, require

Floats = NDArray[np.float64]

ROWS = 2_000
"""Maximum number of rows that are used for the choice."""

LEAST = 50
"""Minimum number of rows for a choice. With fewer rows, or rows of a single group, targets are not transformed."""

FOLDS = 5
FEATURES = 200
FEW_FEATURES = 100
"""Number of hidden units for likelihoods that are not Gaussian. It is small because their regressions are iterative."""

FEW_PENALTIES = (1.0, 10.0, 100.0)
ITERATIONS = 8
"""Number of iterations of Fisher scoring."""

LONGEST = 2.0
"""Largest change of an output in one iteration."""

MARGIN = 2.0
"""Number of standard errors of the paired difference by which a choice must beat a Gaussian without transform."""

MOST = 10.0
"""Largest gain or loss, in nats, with which a row counts for a choice."""

ALIKE = 0.005
"""Largest difference, in nats per row, between choices that are considered equal."""

COMMON = 0.05
"""Largest share of rows with the same target for which quantiles and Student's t are considered, and largest share of
rows at the end of the targets' range at which a transform may be steep.

A density has no point masses: that of Student's t would grow without bound at the repeated value. A transform that is
steep there describes a pile of rows well and the means badly.
"""

SENTENCES = {
    "log": "the logarithm of the target is modelled",
    "log1p": "the logarithm of 1 + the target is modelled",
    "sqrt": "the square root of the target is modelled",
    "yeo-johnson": "the target is modelled after a power transform (Yeo and Johnson)",
    "quantile": "the target is modelled after a transform that makes its distribution about normal",
    "student_t": "the noise has heavy tails (Student's t)",
    "poisson": "the target is modelled as counts (Poisson)",
    "negative_binomial": "the target is modelled as counts (negative binomial)",
    "log_normal": "the target is modelled as positive (log-normal)",
    "gamma": "the target is modelled as positive (gamma)",
}


def described(estimator: Any) -> str:
    """Return a sentence on a fitted regressor's likelihood and transform, or "" for a Gaussian without transform."""
    name, given = estimator.target_transform_, estimator.target_transform
    if estimator.likelihood_ != "gaussian":
        name, given = estimator.likelihood_, estimator.likelihood
    if not isinstance(name, str) or name not in SENTENCES:
        return ""
    why = ", because this describes training rows that were left out better" if given == "auto" else ""
    return f"{SENTENCES[name]}{why}; predictions and intervals are in the target's own units"


def choose(
    likelihood: Any,
    transform: str | None,
    inputs: NDArray[Any],
    scales: tuple[Floats, Floats],
    target: Floats,
    weight: Floats | None,
    groups: NDArray[Any] | None,
    clock: Clock,
) -> tuple[Any, list[str]]:
    """Return the likelihood and the transform of every target that describe left-out rows best.

    Args:
        likelihood: The argument of the regressor. Anything but ``"auto"`` is kept.
        transform: The argument of the regressor. Anything but ``"auto"`` is kept; with a likelihood that is not
            Gaussian, targets are not transformed.
        inputs: ``(N, D)``; missing values are replaced by the mean.
        scales: Means and standard deviations by which inputs are standardised, ``(D,)`` each.
        target: ``(N, K)``.
        weight: Weights of the rows, ``(N,)``; with ``None`` they are equal.
        groups: Groups of the rows, ``(N,)``. Rows of one group are left out together.
        clock: The time for the choice. If it is too short, targets are Gaussian, and not transformed unless that is
            given.

    Returns:
        The given likelihood or the name of the chosen one, and ``K`` names of transforms.
    """
    count = target.shape[1]
    given = "none" if transform is None else transform
    searched = isinstance(likelihood, str) and likelihood == "auto"
    gaussian = searched or (isinstance(likelihood, str) and likelihood == "gaussian")
    names = ["none" if given == "auto" else given] * count
    rows = np.random.default_rng(0).permutation(len(target))[:ROWS]
    numbers = numbered(None if groups is None else groups[rows], len(rows))
    folds = numbers % FOLDS
    few = len(rows) < LEAST or len(rows) - np.bincount(folds).max() < LEAST // 2  # beside the fold of a large group
    if not gaussian or few or not (given == "auto" or (searched and given == "none")):
        return ("gaussian" if searched else likelihood), names
    tried = [[name for name in NAMES if _allowed(name, own)] if given == "auto" else ["none"] for own in target.T]
    others = _candidates(target, given) if searched else []
    known, target = np.nan_to_num(standardized(inputs[rows], *scales).astype(np.float64)), target[rows]
    weight = np.ones(len(rows)) if weight is None else weight[rows]
    try:
        found = transform_nlls(tried, known, target, weight, folds, clock)
        best = [_best(own, weight) for own in found]
        chosen = [own[place] for own, place in zip(tried, best, strict=True)]
        totals = [np.sum([own[0] for own in found], axis=0)]
        totals.append(np.sum([own[place] for own, place in zip(found, best, strict=True)], axis=0))
        check = clock.rounds(len(others))
        for name in others:
            check()
            totals.append(likelihood_nlls(name, known, target, weight, folds))
    except OutOfTimeError:
        clock.left_out.append("the choice of a transform or a likelihood")
        return "gaussian", names
    place = _best(np.stack(totals), weight)
    return ("gaussian", chosen) if place < 2 else (others[place - 2], ["none"] * count)


def transform_nlls(
    names: Sequence[Sequence[str]],
    inputs: Floats,
    target: Floats,
    weight: Floats,
    folds: NDArray[np.int64],
    clock: Clock,
) -> list[Floats]:
    """Return the negative log density of every row under Gaussian models that have not seen it, in the target's units.

    The models are ridge regressions; one decomposition serves all transforms and penalties. For every transform, the
    penalty and the variance of the noise are chosen by the leave-one-out errors of the training rows, which have a
    closed form.

    Args:
        names: Names of transforms, for each of the targets.
        inputs: Standardised, ``(N, D)``.
        target: ``(N, K)``.
        weight: Weights of the rows, ``(N,)``.
        folds: Number of the fold of each row, ``(N,)``.
        clock: The time for all folds.

    Returns:
        ``(transforms, N)`` for each of the targets.

    Raises:
        OutOfTimeError: There is not enough time.
    """
    design = _features(inputs, FEATURES)
    pairs = [(own, name) for own, tried in zip(target.T, names, strict=True) for name in tried]
    found = np.empty((len(pairs), len(target)))
    check = clock.rounds(FOLDS)
    for fold in np.unique(folds):
        check()
        train, test = folds != fold, folds == fold
        functions = [fitted(name, own[train], weight[train]) for own, name in pairs]
        values = np.stack([f(torch.tensor(own)).numpy() for f, (own, _) in zip(functions, pairs, strict=True)], axis=1)
        mean, std = column_scales(values[train], weight[train])
        share = weight[train] / weight[train].mean()
        model = RidgeCV(PENALTIES, alpha_per_target=True, gcv_mode="svd").fit(
            design[train], (values[train] - mean) / std, share
        )
        center, variance = model.predict(design[test]).reshape(-1, len(pairs)), np.maximum(-model.best_score_, SMALLEST)
        white = ((values[test] - mean) / std - center) / np.sqrt(variance)
        slopes = [f.log_slope(torch.tensor(own[test])).numpy() for f, (own, _) in zip(functions, pairs, strict=True)]
        noise = 0.5 * np.log(2.0 * math.pi * variance) + np.log(std)
        found[:, test] = (0.5 * white**2 + noise).T - np.stack(slopes)
    return np.split(found, np.cumsum([len(tried) for tried in names])[:-1])


def likelihood_nlls(name: str, inputs: Floats, target: Floats, weight: Floats, folds: NDArray[np.int64]) -> Floats:
    """Return the negative log density of every row, summed over its targets, under models that have not seen it.

    The models are penalised generalised linear models: they are fitted by Fisher scoring, which starts from the best
    constant and uses the likelihood's ``score`` and ``fisher_factor``. The penalty and the parameters of the likelihood
    are those with the best approximate leave-one-out predictions of the training rows.

    Returns:
        ``(N,)``.
    """
    design = np.concatenate([np.ones((len(inputs), 1)), _features(inputs, FEW_FEATURES)], axis=1)
    found = np.zeros(len(target))
    for own in target.T:
        template = likelihoods.made(name, 1)
        location = template.defines("rescaled")
        for fold in np.unique(folds):
            train, test = folds != fold, folds == fold
            (mean,), (std,) = column_scales(own[train, None], weight[train]) if location else ([0.0], [1.0])
            y = torch.from_numpy((own - mean) / std)[:, None]
            changed, start = likelihoods.best_constant(template, y[train])
            a, w, new = (torch.from_numpy(part) for part in (design[train], weight[train], design[test]))
            tried = [_scored(changed.double(), float(start), a, y[train], w, new, penalty) for penalty in FEW_PENALTIES]
            _, learned, output = min(tried, key=lambda one: one[0])
            with torch.no_grad():
                found[test] += math.log(std) - learned.log_density(output[:, None], y[test]).numpy()
    return found


def _scored(
    likelihood: Likelihood, start: float, design: Tensor, target: Tensor, weight: Tensor, new: Tensor, penalty: float
) -> tuple[float, Likelihood, Tensor]:
    """Return the mean leave-one-out loss, the likelihood with fitted parameters, and the outputs of new rows."""
    output = torch.full_like(target, start)
    ridge = penalty * torch.eye(design.shape[1], dtype=torch.float64)
    ridge[0, 0] = 1e-9
    for _ in range(ITERATIONS):
        slope = likelihood.score(output, target)[:, 0]
        curvature = likelihood.fisher_factor(output, target).square().flatten().clamp_min(1e-9)
        scaled = (weight * curvature)[:, None] * design
        inverse = torch.linalg.inv(design.T @ scaled + ridge)
        coefficients = inverse @ (scaled.T @ (output[:, 0] + slope / curvature - start))
        wanted = start + design @ coefficients
        output = output + (wanted[:, None] - output).clamp(-LONGEST, LONGEST)
    leverage = (scaled @ inverse * design).sum(1).clamp(0.0, 0.99)
    step = likelihood.score(output, target)[:, 0] / curvature
    left_out = output[:, 0] - leverage / (1.0 - leverage) * step
    learned, loss = likelihoods.settled(likelihood, left_out[:, None], target, weight)
    return loss, learned, (start + new @ coefficients)


def _candidates(target: Floats, transform: str) -> list[str]:
    """Return the names of the likelihoods besides the Gaussian that the targets allow."""
    names = [] if any(_repeats(own) for own in target.T) else ["student_t"]
    if (target >= 0).all() and (target == target.round()).all():
        names += ["poisson", "negative_binomial"]
    if (target > 0).all():
        names += ["gamma"] if transform == "auto" else ["gamma", "log_normal"]  # log_normal: Gaussian of the log
    return names


def _allowed(name: str, target: Floats) -> bool:
    """Whether a transform is considered. Quantiles are considered only if no value occurs in many rows, and others only
    if none piles up where they may be steep: at the smallest value, for Yeo and Johnson's also at the largest.
    """
    try:
        require(name, target)
    except ValueError:
        return False
    if name == "quantile":
        return not _repeats(target)
    piles = {"none": (), "yeo-johnson": (0, -1)}.get(name, (0,))
    return not any(_piles_up(target, end) for end in piles)


def _piles_up(target: Floats, end: int) -> bool:
    """Whether the smallest value (``end`` 0) or the largest one (-1) occurs in more than the share ``COMMON`` of the
    rows, and more than twice as often as each value between both, as the values of counts do not.
    """
    counts = np.unique(target, return_counts=True)[1]
    return bool(counts[end] > max(COMMON * len(target), 2.0 * counts[1:-1].max(initial=0)))


def _repeats(target: Floats) -> bool:
    """Whether one value occurs in more than the share ``COMMON`` of the rows."""
    return bool(np.unique(target, return_counts=True)[1].max() > COMMON * len(target))


def _best(found: Floats, weight: Floats) -> int:
    """Return the candidate with the largest gain over the first, less ``MARGIN`` standard errors of the gain.

    If several candidates are nearly equal, the first of them is returned. The gain of a row is limited, since that of a
    single wrong target would be the mean gain and its error alike.
    """
    gains = np.where(np.isfinite(found), found[0] - found, -np.inf)
    gains[0] = 0.0
    limited = gains.clip(-MOST, MOST)
    mean = np.average(limited, axis=1, weights=weight)
    error = np.sqrt(((limited - mean[:, None]) ** 2) @ weight**2) / weight.sum()
    bound = np.where(np.isfinite(gains).all(1), mean - MARGIN * error, -np.inf)
    return int(np.argmax(bound >= bound.max() - ALIKE))


def _features(inputs: Floats, most: int) -> Floats:
    """Return random hidden units, and the inputs themselves unless there are too many, ``(N, features)``."""
    generator = np.random.default_rng(0)
    count = min(most, len(inputs) // 2)
    weights = generator.standard_normal((inputs.shape[1], count)) / math.sqrt(inputs.shape[1])
    hidden = np.tanh(inputs @ weights + generator.standard_normal(count))
    design = np.concatenate([inputs, hidden], axis=1) if inputs.shape[1] <= FEATURES else hidden
    mean, std = column_scales(design)
    return np.asarray((design - mean) / std)
