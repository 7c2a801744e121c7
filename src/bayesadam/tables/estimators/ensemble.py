"""The ensemble of a regression: its prediction is a calibrated Gaussian or a mixture over posterior samples."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from bayesadam.functional.monotone import Monotone
from bayesadam.likelihoods import Gaussian, Likelihood
from bayesadam.predictive import (
    GaussianPredictive,
    MixturePredictive,
    Predictive,
    RegressionPredictive,
    TransformedPredictive,
)
from bayesadam.tables.estimators import named_likelihoods, target_transform
from bayesadam.tables.estimators.base import Array, BayesianMLP
from bayesadam.tables.estimators.calibration import Scales, mean_weights, output_scale, scaled
from bayesadam.tables.estimators.companions import Companion, Companions
from bayesadam.tables.estimators.conformal import LeftOutScores, cross_intervals
from bayesadam.tables.estimators.input_noise import LeftOut, NoisePattern, calibrated
from bayesadam.tables.estimators.linear import Reach
from bayesadam.tables.estimators.member_training import weighted_mean
from bayesadam.tables.estimators.rows import TrainingRows, as_array

_FACTORS = ("epistemic", "aleatoric", "error")
"""What ``calibration_`` has of the scales."""


class RegressionEnsemble(BayesianMLP):
    """The ensemble of a regression, with variances and cross-conformal intervals from the rows left out."""

    noise: str | float

    likelihood_: Likelihood
    noise_: Any
    _likelihood_given: Any
    """The value of ``likelihood`` in the fit, a name or a likelihood."""
    _several: bool
    _template: Likelihood
    _start: Tensor | None = None
    _functions: list[Monotone]
    _y_mean: Array
    _y_std: Array
    _patterns: list[NoisePattern | None]
    _reach: Reach
    _companions: list[Companion]
    _left_out: LeftOutScores | None
    """Errors on the rows that members left out, for cross-conformal intervals."""

    @property
    def _gaussian(self) -> bool:
        """Whether targets are Gaussian, so that predictions have a closed form and are calibrated."""
        given = self._likelihood_given
        return given.defines("mean_and_log_variance") if isinstance(given, Likelihood) else given == "gaussian"

    @property
    def _known_noise(self) -> bool:
        return not isinstance(self.noise, str)

    @property
    def _calibrates(self) -> bool:
        return self.calibrate and not (self._known_noise and self._method.posterior == "anchored")

    def _noise_names(self) -> Any:
        """The model of the noise of each output, as ``noise_`` says it."""
        names = ["constant" if pattern is None else "input" for pattern in self._patterns]
        if self._known_noise:
            names = ["known"] * len(names)
        elif not self._learned_noise:
            names = ["likelihood"] * len(names)
        return names if self._several else names[0]

    @property
    def _learned_noise(self) -> bool:
        """Whether training learns a variance of the noise, which is the same for all rows."""
        return isinstance(self._template, Gaussian) and any(p.requires_grad for p in self._template.parameters())

    def _complements(self, training_rows: TrainingRows) -> bool:
        return bool(self._calibrates and self._gaussian and self._learned_noise and len(training_rows.left_out) >= 2)

    def _calibrate(self, training_rows: TrainingRows, complements: Companions) -> None:
        width, plan = len(self._y_mean), training_rows.plan
        inputs, targets, _ = training_rows.arrays()
        rows = training_rows.left_out
        shares = np.ones((1, width))
        scales = [Scales(1.0, 1.0, 0.0, 0.0)] * width
        self._patterns: list[NoisePattern | None] = [None] * width
        self._reach, self._companions = Reach.of(inputs, training_rows.weight), []
        self._left_out = self.left_out_ = None
        if self._calibrates and self._gaussian and len(rows) >= 2:
            counts, there = training_rows.counts, plan.left_out[:, rows, None]
            members_moments = np.zeros((3, *there.shape[:2], width))
            for member, each, pred in self._unseen(training_rows):
                members_moments[:, member, each] = _member_moments(pred)
            mean, epistemic, aleatoric, between = _moments(members_moments, there)
            if self._learned_noise:
                # A row is left out by few members, whose mean varies more than that of all members.
                fewer = 1.0 / there.sum(0) - 1.0 / len(there)
                excess = np.average(between * fewer, axis=0, weights=training_rows.weight[rows])
                shares, unseen = self._weigh_companions(targets[rows], rows, counts, mean, excess, complements)
                mean, disagreement = _combined(mean, unseen, shares)
                epistemic = epistemic + disagreement
            residual = targets[rows] - mean
            self._left_out = LeftOutScores.of(plan.left_out[:, rows], np.abs(residual), counts)
            described = self.noise if self._known_noise or self._learned_noise else "constant"
            noise = np.empty_like(aleatoric)
            for output in range(width):
                moments = mean[:, output], residual[:, output], epistemic[:, output], aleatoric[:, output]
                left_out = LeftOut(inputs[rows], *moments, counts, plan.fold[rows])
                scales[output], self._patterns[output], noise[:, output] = calibrated(left_out, described)
            epistemic = epistemic * [each.epistemic for each in scales]
            self.left_out_ = rows, self._in_units(mean, self._beyond(inputs[rows], epistemic, noise), noise)
        elif self._calibrates and not self._gaussian and len(rows) >= 2:
            scales = [self._output_scale(training_rows)] * width
        self.likelihood_ = self._shared_likelihood()
        self.noise_ = self._noise_names()
        factors = {name: np.array([getattr(each, name) for each in scales]) for name in _FACTORS}
        self.calibration_ = {**factors, "weights": shares}

    def _weigh_companions(
        self,
        targets: Array,
        rows: Array,
        counts: Array,
        mean: Array,
        excess: Array,
        complements: Companions,
    ) -> tuple[Array, Array]:
        """Weigh the companions and the networks' mean, ``(R, K)``, on the ``R`` rows left out.

        Companions without a weight are not kept.

        Returns:
            The weights, ``(1 + P, K)``, and predictions of the companions for the rows left out, ``(P, R, K)``, by
            fits that have not seen them.
        """
        models = np.stack([mean, *(predicted[rows] for _, predicted in complements)])
        shares = np.ones((len(models), targets.shape[1]))
        for output in range(targets.shape[1] if complements else 0):
            shares[:, output] = mean_weights(models[..., output], targets[:, output], counts, excess[output])
        useful = np.flatnonzero(shares[1:].any(1))
        self._companions = [complements[place][0] for place in useful]
        networks = shares[:1] if len(useful) else np.ones_like(shares[:1])
        return np.concatenate([networks, shares[1:][useful]]), models[1:][useful]

    def _complemented(self, inputs: Array) -> Array:
        """Return the predictions of the companions, ``(P, N, K)``."""
        outputs = [part.outputs(inputs) for part in self._companions]
        return np.stack(outputs) if outputs else np.empty((0, len(inputs), len(self._y_mean)))

    def _output_scale(self, training_rows: TrainingRows) -> Scales:
        """Return the factor of the variance of each member's outputs, and fit the parameters of the likelihood, which
        all members then share, both to the rows left out.
        """
        outputs, places = [], []
        for _, indices, pred in self._unseen(training_rows):
            assert isinstance(pred, MixturePredictive)
            outputs.append(pred.outputs.double().cpu())
            places.append(torch.from_numpy(indices))
        likelihood = named_likelihoods.average(self._likelihoods).double().cpu()
        for parameter, given in zip(likelihood.parameters(), self._template.parameters(), strict=True):
            parameter.requires_grad_(given.requires_grad)
        targets = training_rows.targets.cpu().double()[training_rows.left_out]
        scale = output_scale(outputs, places, likelihood, targets, torch.from_numpy(training_rows.counts))
        fitted = likelihood.requires_grad_(False).float().to(training_rows.targets.device)
        self._likelihoods = [fitted for _ in self._likelihoods]
        return scale

    def _shared_likelihood(self) -> Likelihood:
        """Return the likelihood with the averages of the members' parameters, in the units of the targets."""
        likelihood = named_likelihoods.average(self._likelihoods).double()
        if not self._template.defines("rescaled"):
            return likelihood
        scale = self._y_std if self._several else self._y_std[0]
        return likelihood.rescaled(torch.as_tensor(scale, device=self.device))

    def _mixture(self, X: ArrayLike) -> MixturePredictive:
        """Return the mixture over the samples of all members, in the units of the targets and float64."""
        parts = []
        factor = float(self.calibration_["epistemic"][0])
        for rows in self._in_parts(X):
            predicted: Any = self._all_predictions(rows)
            parts.append(torch.cat([scaled(pred.outputs.double(), factor, pred.likelihood) for pred in predicted]))
        outputs = torch.cat(parts, dim=1)
        mean, std = torch.as_tensor(self._y_mean).to(outputs), torch.as_tensor(self._y_std).to(outputs)
        outputs = mean + std * outputs  # as they are if the targets are not standardised
        if not self._several:
            outputs = outputs[..., 0]
        return MixturePredictive(outputs, self.likelihood_, independent=self._method.predict == "linearized")

    def _standardised(self, X: Tensor) -> tuple[Array, Array, Array]:
        """Return mean, epistemic and aleatoric variance of the calibrated ensemble, each ``(N, K)``."""
        members_moments = np.stack([_member_moments(pred) for pred in self._all_predictions(X)], axis=1)
        mean, epistemic, aleatoric, _ = _moments(members_moments, np.ones((members_moments.shape[1], 1, 1), dtype=bool))
        inputs = as_array(X)
        mean, disagreement = _combined(mean, self._complemented(inputs), self.calibration_["weights"])
        epistemic = epistemic + disagreement
        aleatoric = self.calibration_["aleatoric"] * aleatoric
        for output, pattern in enumerate(self._patterns):
            if pattern is not None:
                aleatoric[:, output] *= np.exp(pattern.log_factor(inputs, mean[:, output]))
        epistemic = self.calibration_["epistemic"] * epistemic
        return mean, self._beyond(inputs, epistemic, aleatoric), aleatoric

    def _beyond(self, inputs: Array, epistemic: Array, aleatoric: Array) -> Array:
        """Return epistemic variances, ``(N, K)``, which are larger beyond the region of the training rows."""
        return np.asarray(epistemic + self._reach.leverage(inputs)[:, None] * aleatoric)

    def _in_units(self, mean: Array, epistemic: Array, aleatoric: Array) -> GaussianPredictive | TransformedPredictive:
        """Return the predictive distribution in the units of the targets, given standardised moments, ``(N, K)``."""
        scale = self._y_std
        values = (self._y_mean + scale * mean, scale**2 * epistemic, scale**2 * aleatoric)
        pred = GaussianPredictive(*(torch.from_numpy(rows if self._several else rows[:, 0]) for rows in values))
        return target_transform.in_units(pred, self._functions)

    def _cross_interval(self, X: ArrayLike, coverage: float) -> Array:
        """Return intervals from the errors on the rows left out, computed in training units and transformed back."""
        left_out = self._left_out
        assert left_out is not None
        errors, folds, weights = map(torch.from_numpy, (left_out.scores, left_out.folds, left_out.weights))
        parts = []
        for part in self._in_parts(X):
            means = np.stack([_member_moments(pred)[0] for pred in self._all_predictions(part)])
            means = _pooled(means, self._complemented(as_array(part)), self.calibration_["weights"])
            ends = cross_intervals(errors, folds, weights, left_out.models(means), coverage)
            values = [self._y_mean + self._y_std * as_array(end) for end in ends]
            parts.append(np.stack([target_transform.inverted(self._functions, target) for target in values], axis=-1))
        intervals = np.concatenate(parts)
        return intervals if self._several else intervals[:, 0]

    def _center(self, pred: Predictive) -> Tensor:
        return pred.outputs[0] if isinstance(pred, MixturePredictive) else pred.mean  # type: ignore[union-attr]

    def _held_out_error(self, center: Tensor, targets: Tensor, weight: Tensor | None) -> float:
        """Return the log mean squared error, summed over the outputs: twice the NLL of a Gaussian with that variance.

        For other likelihoods it is the negative log density, with the parameters at the start of the training.
        """
        if not self._gaussian:
            likelihood = copy.deepcopy(self._template).to(center.device)
            with torch.no_grad():
                return -float(weighted_mean(likelihood.log_density(center, targets).double(), weight))
        return float(weighted_mean((center - targets).double().square(), weight).log().sum())


def _moments(parts: Array, there: Array) -> tuple[Array, Array, Array, Array]:
    """Return the ensemble's moments and the variance between its members, ``(N, K)`` each; 0 for a single member.

    Args:
        parts: Moments of the members, ``(3, M, N, K)``.
        there: Mask of the members that count for each row, ``(M, N, 1)``.
    """
    count = there.sum(0)
    center, spread, noise = (parts * there).sum(1) / count
    between = ((parts[0] - center) ** 2 * there).sum(0) / np.maximum(count - 1, 1)
    return center, spread + between, noise, between


def _pooled(mean: Array, complements: Array, shares: Array) -> Array:
    """Return the sum of the networks' means, ``(..., N, K)``, and of the companions' predictions, by their weights."""
    return np.asarray(shares[0] * mean + (shares[1:, None] * complements).sum(0))


def _combined(mean: Array, complements: Array, shares: Array) -> tuple[Array, Array]:
    """Return the weighted sum of networks and companions, and the variance between them, ``(N, K)`` each.

    The variance, by the weights, is part of the epistemic variance: in a gap of the data the sum may be wrong where
    they differ.
    """
    pooled = _pooled(mean, complements, shares)
    squares = (shares[:, None] * (np.stack([mean, *complements]) - pooled) ** 2).sum(0)
    return pooled, np.asarray(squares / np.maximum(shares.sum(0), 1e-12))


def _member_moments(pred: Predictive) -> Array:
    """Return mean, epistemic and aleatoric variance of a member, ``(3, N, K)``."""
    assert isinstance(pred, RegressionPredictive)
    return as_array(torch.stack([pred.mean, pred.epistemic, pred.aleatoric]))
