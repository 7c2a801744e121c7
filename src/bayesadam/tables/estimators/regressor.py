"""``BayesianMLPRegressor``."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from bayesadam.checks import check
from bayesadam.likelihoods import Gaussian, HeteroscedasticGaussian, Likelihood
from bayesadam.predictive import GaussianPredictive, MixturePredictive, TransformedPredictive
from bayesadam.scaling import column_scales
from bayesadam.tables.encoder.table_target import numbers_of_text
from bayesadam.tables.estimators import named_likelihoods, target_transform
from bayesadam.tables.estimators.base import Array
from bayesadam.tables.estimators.choice import choose
from bayesadam.tables.estimators.conformal import check_method
from bayesadam.tables.estimators.ensemble import RegressionEnsemble
from bayesadam.tables.estimators.input_noise import check_noise
from bayesadam.tables.estimators.inputs import checked
from bayesadam.tables.estimators.rows import as_array, require_single, require_targets
from bayesadam.tables.estimators.threads import few_threads


@dataclass(eq=False, repr=False)
class BayesianMLPRegressor(RegressorMixin, RegressionEnsemble):  # type: ignore[misc]
    """Regression with calibrated uncertainty: a small ensemble of Bayesian networks, trained as one population.

    Inputs and targets are standardised; inputs that share a unit, such as pixels, are divided by one common standard
    deviation. Every member leaves out a part of the rows, and every row is left out by two members. The errors on the
    rows that were left out determine how the noise depends on the inputs, and calibrate the predictive variance ``a
    epistemic + b aleatoric``. The networks are complemented by companions: a linear ridge regression, one with a
    piecewise linear function of every input, and boosted trees (from 100 rows on). The predictive mean is a weighted
    sum of networks and companions, with weights that are fitted to the rows left out, and are 0 for companions that do
    not help. Linear trends continue for one range of an input beyond its training rows. Far away from these rows the
    epistemic variance grows without bound, but it may be too small for a trend that ends. The prediction for a row is a
    Gaussian. The defaults are intended for tables with a hundred to some ten thousand rows and need no tuning.

    If the targets are not Gaussian around the network's output, they are transformed, provided that the transformed
    model describes left-out rows better. Predictions are always in the units of the targets. With the default of
    ``target_transform``, if no training target is negative, no quantile, end of an interval or draw is: the probability
    below 0 is assigned to 0. Without a transform, the mean, the variances and the density are still those of the
    Gaussian.

    For counts, positive numbers and errors with heavy tails there are other values of ``likelihood``. The prediction is
    then a mixture over the members' posterior samples.
    Targets are standardised only if the network's output is a location parameter. Training starts from the constant
    output that describes the targets best.

    Args:
        method: One of ``bayesadam.sklearn.METHODS``. The default, ``"auto"``, is ``"anchored"`` if ``noise`` is a
            number and ``"laplace"`` otherwise. With ``"anchored"``, members differ as draws from the posterior do
            (:func:`bayesadam.anchored_ensemble`), and the prior is meant literally, so that 1 is a better precision
            than the default. If the noise is known, too, the posterior is determined by the model: every member is
            trained on all rows, and nothing is calibrated.
        hidden: Numbers of units of the hidden layers.
        activation: Activation function: ``"tanh"``, ``"relu"``, ``"silu"`` or ``"gelu"``.
        members: Number of networks in the ensemble. The default, ``None``, is 20 for up to 5,000 rows, 10 for up to
            20,000, and 5 for more. With more than 20,000 rows, all members leave out the same tenth of the rows, but at
            most 10,000 rows.
        epochs: Number of epochs. With ``None``, there are 1,000 steps (2,000 with ``"anchored"``), or 20 epochs if that
            is more, but at most 20,000 steps.
        batch_size: Rows of a minibatch. With ``None``, it has all rows, but at most 1,024.
        lr: Learning rate. It is constant in the first half of the training, and decreases to 0 along half a cosine in
            the second half.
        prior_precision: Prior precision of all weights. For methods that are trained without a posterior ("laplace",
            "badam" and "ensemble") it is the strength of the weight decay.
        noise: Model of the noise. With ``"constant"`` it has one standard deviation for all rows. With ``"input"`` the
            standard deviation depends on the inputs: after the training of the mean, which it does not change, small
            networks are fitted to the errors on the rows left out. ``"auto"`` chooses ``"input"`` if it improves the
            log density of these rows by more than the standard error of the improvement. A positive number is the known
            standard deviation in the units of the targets: training uses it, and calibration scales the epistemic
            variance at most. With a ``likelihood`` other than ``"gaussian"`` this must be ``"auto"``.
        likelihood: Distribution of the targets: ``"gaussian"``; ``"student_t"``; ``"poisson"`` or
            ``"negative_binomial"`` for counts; ``"log_normal"`` or ``"gamma"`` for positive targets; or a
            :class:`bayesadam.likelihoods.Likelihood` of the targets in their units. Parameters of named ones are
            learned, one per target.
        target_transform: Transform of Gaussian targets, which is fitted to the training targets, one for each target:
            ``"log"`` (for positive targets), ``"log1p"`` and ``"sqrt"`` (for targets that are not negative),
            ``"yeo-johnson"`` (Yeo and Johnson 2000), ``"quantile"`` (piecewise linear, to normal scores), ``"none"`` or
            ``None``. ``"auto"`` chooses the transform that describes left-out rows best: up to 2,000 rows are modelled
            by regressions on random hidden units in five folds, and their negative log densities in the units of the
            targets are compared. Targets are not transformed unless that is better by more than two standard errors,
            nor if there are fewer than 50 rows or the likelihood is not Gaussian.
        mc_samples: Number of posterior samples per member, for methods that predict by sampling.
        standardize: Whether to shift and scale the inputs; with ``False`` they must be standardised already.
        early_stopping: Whether to keep the weights of the epoch at which the members predicted the rows that they leave
            out best, and to stop the training after three times as many epochs. The predictions are scored at intervals
            of three tenths of the epochs so far. Without it the weights of the last epoch are kept. It has no effect on
            ``"anchored"``.
        calibrate: Whether to fit the scales of the variances, and the weights of the companions, on the rows left out.
            Otherwise both scales are 1, the noise is constant, and there are no companions. There are none either with
            fewer than 40 rows, with a known standard deviation of the noise, and if the targets are not Gaussian. With
            a likelihood that is not Gaussian, one scale is fitted: that of the variance of each member's outputs.
        time_budget: Duration of the training of the networks in seconds. Their learning rate then decreases with the
            time. The companions and the calibration, whose sizes are limited, take some seconds more.
        device: Device of PyTorch on which the networks are trained.
        random_state: Seed of the random numbers: a number, a ``RandomState`` or ``None``, as in scikit-learn.
        encoder: A :class:`bayesadam.sklearn.TableEncoder` for the columns of a data frame; ``None`` is one with its
            defaults.
        verbose: Whether to show a progress bar.

    Attributes:
        posterior_: :class:`bayesadam.Mixture` of the members' posteriors, over the weights of ``network_``
            (for standardised inputs and targets).
        network_: ``nn.Module`` of one member.
        target_transform_: Name of the transform; a list of names for targets ``(N, K)``.
        method_: Name of the method that trained the members.
        likelihood_: The likelihood with its learned parameters, in the units of the targets, for example
            ``likelihood_.dispersion`` with ``"negative_binomial"``. If it is not Gaussian, all members share it in
            predictions: its parameters are fitted to the rows left out, or without calibration they are the averages of
            those that each member has learned. For a Gaussian one they are always these averages, in the units of the
            transformed targets, before ``calibration_`` and a noise that depends on the inputs.
        calibration_: ``{"epistemic": a, "aleatoric": b, "error": e, "weights": w}`` with one number per output: the
            factors of both variances, and the standard deviation of the logarithm of ``a`` (0 without calibration). If
            this is above about 0.5, the rows left out hardly distinguish epistemic from aleatoric variance. With a
            likelihood that is not Gaussian, ``a`` is the factor of the variance of each member's outputs, the same for
            all targets, and ``b`` is 1. The rows of ``w`` are the weights of the networks and of those companions that
            have one.
        noise_: Model of the noise for each output: ``"constant"``, ``"input"``, ``"known"``, or ``"likelihood"`` if the
            likelihood describes the noise.
        history_: Arrays ``"loss"`` and ``"held_out_nll"``, ``(members, epochs)``. The latter is NaN for epochs at which
            it was not computed.
        left_out_: Indices of the training rows, among those given, that members left out, and the predictive
            distribution of their targets by these members; ``None`` without calibration, for a likelihood that is not
            Gaussian, and for a loaded estimator.
        epochs_: Number of epochs for which the members were trained.
        stopped_: Reason for the end of training: ``"end"``, ``"early"`` (stopping), ``"time"`` or ``"interrupted"``.
        interrupted_: Whether Ctrl-C ended the training.
        inputs_: The fitted :class:`bayesadam.sklearn.TableEncoder`, which says how columns are interpreted. It is
            ``None`` if ``X`` consisted of numbers without missing values.
        n_features_in_: Number ``D`` of columns.
        feature_names_in_: Names of the columns; missing if they had none.
    """

    _: KW_ONLY
    noise: str | float = "auto"
    likelihood: Any = "gaussian"
    target_transform: str | None = "auto"

    @few_threads
    def predict(self, X: ArrayLike, return_std: bool = False, quantiles: Sequence[float] | None = None) -> Any:
        """Return predictive means, ``(N,)`` or ``(N, K)``, in the units of the targets.

        Args:
            X: ``(N, D)``.
            return_std: Whether to return a pair of means and standard deviations.
            quantiles: Probabilities in (0, 1). If given, return the quantiles at them, ``(N, Q)`` or ``(N, K, Q)``.
                ``Pipeline`` and ``TransformedTargetRegressor`` of scikit-learn pass this argument on.

        Raises:
            ValueError: Both quantiles and standard deviations were requested, or a probability is not in (0, 1).
        """
        if quantiles is not None and return_std:
            raise ValueError(f"return_std must be False with quantiles={quantiles!r}, got {return_std!r}")
        if quantiles is not None and np.ndim(quantiles) != 1:
            raise ValueError(f"quantiles must be a list of probabilities, got {quantiles!r}")
        pred = self.predictive(X)
        if quantiles is not None:
            return as_array(pred.quantile(list(quantiles)).movedim(0, -1))
        mean = as_array(pred.mean)
        return (mean, as_array(pred.variance.sqrt())) if return_std else mean

    @few_threads
    def predictive(self, X: ArrayLike) -> GaussianPredictive | TransformedPredictive | MixturePredictive:
        """Return the whole predictive distribution, in the units of the targets and float64: a Gaussian for every row.

        Its epistemic variance is the mean of the members' epistemic variances, if they have any, plus the variance
        between their means. If the targets are transformed, it is the distribution of a target whose transform is
        Gaussian. Otherwise only its quantiles are limited to 0 if targets are never negative, as explained above. With
        a likelihood that is not Gaussian it is a mixture over the posterior samples of all members, whose distances
        from the mean of their member are calibrated, and the parameters of the likelihood are fitted to the rows left
        out, or, without calibration, the means of those that the members have learned.
        """
        check_is_fitted(self, "posterior_")
        if not self._gaussian:
            return self._mixture(X)
        moments = [self._standardised(part) for part in self._in_parts(X)]
        return self._in_units(*(np.concatenate(parts) for parts in zip(*moments, strict=True)))

    @few_threads
    def predict_interval(self, X: ArrayLike, coverage: float = 0.95, *, method: str = "bayes") -> Array:
        """Return intervals that contain the target with a given probability, ``(N, 2)`` or ``(N, K, 2)``, in its units.

        The coverage of the method ``"bayes"`` is right if the predictive distribution is right. The method ``"cross"``
        is conformal: for exchangeable rows, its coverage holds on average over the rows even if the distribution is
        wrong. If the targets are transformed, it uses the errors of the transformed targets.

        Args:
            X: ``(N, D)``.
            coverage: Probability that a target is in its interval, in (0, 1).
            method: ``"bayes"``: central intervals of the predictive distribution, without a guarantee.

                ``"cross"``: intervals from the errors on the rows that members left out in training, so that no rows
                are lost (CV+, Barber et al. 2021). Their theorem guarantees ``1 - 2 alpha - sqrt(2 / n)``, with ``alpha
                = 1 - coverage``, if a fold has no influence at all on its model. Here the guarantee is approximate: the
                folds share the scales, the transform, the number of epochs and, for new rows, the companions,
                and the model of a row is the mean of the two members that left it out. Rows count by their weights,
                and groups as rows. It needs a Gaussian likelihood and ``calibrate=True``.

        Raises:
            ValueError: The coverage is out of range, the method is unknown or not available, or there are too few rows
                for the coverage.
        """
        check("coverage", coverage, "in (0, 1)", lambda value: 0 < value < 1)
        check_is_fitted(self, "posterior_")
        check_method(method, self._left_out)
        if method == "cross":
            return self._cross_interval(X, coverage)
        levels = [0.5 - 0.5 * coverage, 0.5 + 0.5 * coverage]
        return as_array(self.predictive(X).quantile(levels).movedim(0, -1))

    @few_threads
    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> Array:
        """Draw targets from the predictive distribution, ``(N, n_samples)`` or ``(N, K, n_samples)``.

        The rows are independent. With a likelihood that is not Gaussian, all rows of a draw use the same network
        instead.
        """
        pred = self.predictive(X)
        if isinstance(pred, MixturePredictive):
            seed = int(check_random_state(random_state).randint(2**31 - 1))
            return as_array(pred.sample(n_samples, seed=seed).movedim(0, -1))
        noise = check_random_state(random_state).standard_normal((*pred.mean.shape, n_samples))
        if isinstance(pred, TransformedPredictive):
            return as_array(pred.at(torch.from_numpy(noise).movedim(-1, 0)).movedim(0, -1))
        mean, std = as_array(pred.mean)[..., None], as_array(pred.variance.sqrt())[..., None]
        return np.asarray(np.maximum(mean + std * noise, self._least[..., None]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags

    def _check(self) -> None:
        super()._check()
        named_likelihoods.check(self.likelihood)
        target_transform.check(self.target_transform)
        if self.target_transform not in (None, "none", "auto") and self.likelihood != "gaussian":
            raise ValueError(
                f"target_transform must be 'none' or 'auto' with likelihood={self.likelihood!r}, "
                f"got {self.target_transform!r}"
            )
        check_noise(self.noise, self.likelihood)
        if self._known_noise and self.target_transform not in (None, "none", "auto"):
            raise ValueError(
                f"target_transform must be 'none' or 'auto' with noise={self.noise!r}, got {self.target_transform!r}"
            )
        if self.noise == "input" and not self.calibrate:
            raise ValueError("calibrate must be True with noise='input', got False")

    @property
    def _method_name(self) -> str:
        if self.method == "auto":
            return "anchored" if self._known_noise else "laplace"
        return self.method

    def _validated(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None) -> tuple[Array, Array]:
        inputs: Array
        target: Array
        y = numbers_of_text(y)
        require_targets(y)
        inputs, target = checked(self, X, y, reset=True, sample_weight=sample_weight, multi_output=True, y_numeric=True)
        target = np.ascontiguousarray(target, dtype=np.float64)  # PyTorch does not read reversed arrays
        require_single("X", inputs)
        require_single("y", target)
        if len(inputs) < 2:
            raise ValueError(f"X must have at least 2 rows, got n_samples={len(inputs)}")
        self._several = target.ndim > 1
        return inputs, target.reshape(len(target), -1)

    def _learn_scales(self, X: Array, y: Array, weight: Array | None, groups: Array | None) -> None:
        self._learn_x(X, weight)
        scales = (self._x_mean, self._x_std)
        wanted = "none" if self._known_noise else self.target_transform  # the noise is in the targets' units
        self._likelihood_given = self.likelihood
        if wanted == "auto" and isinstance(self.likelihood, str) and self.likelihood == "gaussian":
            names = choose(X, scales, y, weight, groups)
        else:
            names = ["none" if wanted in (None, "auto") else wanted] * y.shape[1]
        if isinstance(self.likelihood, str) and self._gaussian and any(map(named_likelihoods.may_be_counts, y.T)):
            advice = "likelihood='negative_binomial' or likelihood='poisson'"
            told = f"the targets are small whole numbers (if they are counts: {advice})"
            warnings.warn(told, UserWarning, stacklevel=4)
        fitted = [target_transform.fitted(name, column, weight) for name, column in zip(names, y.T, strict=True)]
        if self._gaussian and wanted == "auto":
            fitted = target_transform.limited(fitted, y)
        self._functions = fitted
        self.target_transform_ = target_transform.names_of(fitted, self._several)
        self._template, self._start = self._likelihood_of(y.shape[1]), None
        if self._template.defines("rescaled") or isinstance(self._template, HeteroscedasticGaussian):
            self._y_mean, self._y_std = column_scales(target_transform.transformed(fitted, y), weight)
            given = isinstance(self.likelihood, Likelihood) or self._known_noise
            if given and self._template.defines("rescaled"):
                self._template = self._template.rescaled(torch.from_numpy(1.0 / self._y_std)).float()
        else:
            self._y_mean, self._y_std = np.zeros(y.shape[1]), np.ones(y.shape[1])
        if not self._gaussian:
            self._template, self._start = named_likelihoods.best_constant(self._template, self._targets(y))

    @property
    def _least(self) -> Array:
        """Least values of the targets, ``(K,)`` or 0-d."""
        least = np.array([function.least for function in self._functions])
        return least if self._several else least.reshape(())

    def _targets(self, y: Array) -> Tensor:
        values = target_transform.transformed(self._functions, y)
        return torch.from_numpy(((values - self._y_mean) / self._y_std).astype(np.float32)).to(self.device)

    def _outputs(self) -> int:
        return len(self._y_mean) * self._template.outputs_per_target

    def _network(self, inputs: int) -> nn.Module:
        network = super()._network(inputs)
        if self._start is not None:
            with torch.no_grad():
                network[-1].bias.copy_(self._start)  # type: ignore[index]
        return network

    def _offset(self, y: Array) -> float:
        return float(np.log(self._y_std).sum()) - target_transform.mean_log_slope(self._functions, y)

    def _likelihood(self) -> Likelihood:
        return copy.deepcopy(self._template)

    def _likelihood_of(self, outputs: int) -> Likelihood:
        """Return the likelihood for a number of targets, with default parameters in single precision."""
        if self._known_noise:
            noise = torch.full((outputs,), float(self.noise), dtype=torch.float64)
            return Gaussian(torch.ones(outputs)).rescaled(noise).float()
        if self._likelihood_given == "gaussian":
            return Gaussian(torch.full((outputs,), 10.0), learned=True).float()
        return named_likelihoods.made(self._likelihood_given, outputs).float()
