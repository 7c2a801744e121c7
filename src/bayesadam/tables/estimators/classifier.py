"""``BayesianMLPClassifier``."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from bayesadam.likelihoods import Categorical, Likelihood
from bayesadam.predictive import ClassificationPredictive, Predictive
from bayesadam.tables.estimators.base import Array, BayesianMLP
from bayesadam.tables.estimators.calibration import pool, temperature, tempered
from bayesadam.tables.estimators.companions import Companion, Companions
from bayesadam.tables.estimators.inputs import checked
from bayesadam.tables.estimators.member_training import weighted_mean
from bayesadam.tables.estimators.rows import TrainingRows, as_array, require_comparable, require_single, require_targets
from bayesadam.tables.estimators.threads import few_threads


@dataclass(eq=False, repr=False)
class BayesianMLPClassifier(ClassifierMixin, BayesianMLP):  # type: ignore[misc]
    """Classification with calibrated probabilities: a small ensemble of Bayesian networks, trained as one population.

    Inputs are standardised; inputs that share a unit, such as pixels, are divided by one common standard deviation.
    Every member leaves out a part of the rows, and every row is left out by two members. The probabilities that these
    members give to the labels determine a temperature, by which all log probabilities are divided. Probabilities are
    averages over the members and their posterior samples.

    The networks are complemented by companions: a linear logistic regression, one with a piecewise linear function of
    every input, and boosted trees (from 100 rows on). Their log probabilities are added to those of the networks (a
    logarithmic pool), with weights that are fitted to the rows left out, and are 0 for companions that do not help.
    Linear trends continue for one range of an input beyond its training rows. Companions are not used with fewer than
    40 rows or with ``calibrate=False``. The second regression is not used if 1,000 rows would have
    more than 4 million features.

    Args:
        method: One of ``bayesadam.sklearn.METHODS``.
        hidden: Numbers of units of the hidden layers.
        activation: Activation function: ``"tanh"``, ``"relu"``, ``"silu"`` or ``"gelu"``.
        members: Number of networks in the ensemble. The default, ``None``, is 20 for up to 5,000 rows, 10 for up to
            20,000, and 5 for more. With more than 20,000 rows, all members leave out the same tenth of the rows, but at
            most 10,000 rows.
        epochs: Number of epochs. With ``None``, there are 500 steps, or 20 epochs if that is more, but at most 20,000
            steps.
        batch_size: Rows of a minibatch. With ``None``, it has all rows, but at most 1,024.
        lr: Learning rate. It is constant in the first half of the training, and decreases to 0 along half a cosine in
            the second half.
        prior_precision: Prior precision of all weights. For methods that are trained without a posterior ("laplace",
            "badam" and "ensemble") it is the strength of the weight decay.
        mc_samples: Number of posterior samples per member.
        standardize: Whether to shift and scale the inputs; with ``False`` they must be standardised already.
        early_stopping: Whether to keep the weights of the epoch at which the members predicted the rows that they leave
            out best, and to stop the training after three times as many epochs. The predictions are scored at intervals
            of three tenths of the epochs so far. Without it the weights of the last epoch are kept.
        calibrate: Whether to fit the temperature and the weights of the companions on the rows left out. Otherwise the
            temperature is 1, and there are no companions.
        time_budget: Duration of the fit in seconds. It limits the number of epochs and the companions. A warning says
            what is left out.
        device: Device of PyTorch on which the networks are trained.
        random_state: Seed of the random numbers: a number, a ``RandomState`` or ``None``, as in scikit-learn.
        encoder: A :class:`bayesadam.sklearn.TableEncoder` for the columns of a data frame; ``None`` is one with its
            defaults.
        verbose: Whether to show a progress bar.

    Attributes:
        classes_: Sorted labels, in the order of the columns of ``predict_proba``.
        posterior_: :class:`bayesadam.Mixture` of the members' posteriors, over the weights of ``network_``
            (for standardised inputs).
        network_: ``nn.Module`` that returns a logit per class.
        calibration_: ``{"temperature": T, "weights": weights}``, with the weights of those companions that have one.
        history_: Arrays ``"loss"`` and ``"held_out_nll"``, ``(members, epochs)``. The latter is NaN for epochs at which
            it was not computed.
        left_out_: Indices of the training rows, among those given, that members left out, and the predictive
            distribution of their labels by these members; ``None`` without calibration and for a loaded estimator.
        epochs_: Number of epochs for which the members were trained.
        stopped_: Reason for the end of the training: ``"end"`` (all epochs), ``"early"`` (early stopping), ``"time"``
            (the time budget) or ``"interrupted"`` (Ctrl-C).
        interrupted_: Whether Ctrl-C ended the training.
        inputs_: The fitted :class:`bayesadam.sklearn.TableEncoder`, which says how columns are interpreted. It is
            ``None`` if ``X`` consisted of numbers without missing values.
        n_features_in_: Number ``D`` of columns.
        feature_names_in_: Names of the columns; missing if they had none.
    """

    default_steps = 500

    method: str = "vadam"
    _: KW_ONLY
    prior_precision: float = 1.0
    mc_samples: int = 16

    def predict(self, X: ArrayLike) -> Array:
        """Return the most probable labels, ``(N,)``."""
        probs = self.predict_proba(X)  # raises an error if the estimator is not fitted
        return np.asarray(self.classes_[probs.argmax(1)])

    @few_threads
    def predict_proba(self, X: ArrayLike) -> Array:
        """Return the probabilities of the classes, ``(N, C)`` in the order of ``classes_``."""
        probs = self.predictive(X).probs.cpu().numpy()
        return np.asarray(probs / probs.sum(1, keepdims=True))

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Return the logarithms of the probabilities of the classes, ``(N, C)`` in the order of ``classes_``."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    @few_threads
    def predictive(self, X: ArrayLike) -> ClassificationPredictive:
        """Return the whole predictive distribution in float64, with ``entropy`` and ``mutual_information``.

        Its labels are indices of ``classes_``.
        """
        parts = []
        for part in self._in_parts(X):
            log_probs = torch.cat([*map(_log_probs, self._all_predictions(part))])
            parts.append(tempered(log_probs, self.calibration_["temperature"], self._beside(part)))
        return ClassificationPredictive(torch.cat(parts, dim=1))

    _companions: list[Companion] = field(init=False)

    def _validated(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None) -> tuple[Array, Array]:
        require_targets(y)
        labels = np.asarray(y)
        if labels.ndim and labels.dtype == object:  # scikit-learn has messages for other types
            require_comparable("y", labels)
        inputs, labels = checked(self, X, y, reset=True, sample_weight=sample_weight)
        require_single("X", inputs)
        check_classification_targets(labels)
        names, codes = np.unique(labels, return_inverse=True)
        if len(names) < 2:
            raise ValueError(f"y must have at least 2 classes, got {len(names)} class: {names.tolist()!r}")
        self.classes_ = names
        return inputs, codes.astype(np.int64)

    def _learn_scales(self, X: Array, y: Array, weight: Array | None, groups: Array | None) -> None:
        self._learn_x(X, weight)
        self._companions = []

    def _targets(self, y: Array) -> Tensor:
        return torch.from_numpy(y).to(self.device)

    def _outputs(self) -> int:
        return len(self.classes_)

    def _likelihood(self) -> Likelihood:
        return Categorical()

    def _center(self, pred: Predictive) -> Tensor:
        return pred.probs.double()  # type: ignore[union-attr]

    def _held_out_error(self, center: Tensor, targets: Tensor, weight: Tensor | None) -> float:
        return -float(weighted_mean(center.gather(1, targets[:, None])[:, 0].clamp_min(1e-12).log(), weight))

    def _classes(self) -> int:
        return len(self.classes_)

    def _complements(self, training_rows: TrainingRows) -> bool:
        return bool(self.calibrate) and len(training_rows.left_out) >= 2

    def _calibrate(self, training_rows: TrainingRows, complements: Companions) -> None:
        self.calibration_ = {"temperature": 1.0, "weights": []}
        rows, left_out = training_rows.left_out, training_rows.plan.left_out
        self.left_out_ = None
        if not self.calibrate or len(rows) < 2:
            return
        slots = left_out[:, rows].cumsum(0) - 1
        unscaled: Any = None
        for member, places, pred in self._unseen(training_rows):
            draws = _log_probs(pred).movedim(1, 0)
            if unscaled is None:
                unscaled = draws.new_full((int(slots.max()) + 1, len(rows), *draws.shape[1:]), torch.nan)
            unscaled[slots[member, places], places] = draws
        log_probs = unscaled.movedim(1, 2).flatten(0, 1)
        labels, own_weight = training_rows.targets.cpu()[rows], torch.from_numpy(training_rows.counts)
        beside: Tensor | None = None
        self.calibration_["temperature"] = alone = temperature(log_probs, labels, own_weight)
        if complements:
            unseen = torch.from_numpy(np.stack([log_probs[rows] for _, log_probs in complements]))
            share, weights = pool(tempered(log_probs, alone), unseen, labels, own_weight)
            useful = np.flatnonzero(weights)
            self._companions = [complements[place][0] for place in useful]
            self.calibration_ = {"temperature": alone / share, "weights": [weights[place] for place in useful]}
            beside = torch.tensordot(torch.tensor(weights, dtype=unseen.dtype), unseen, 1)
        pooled = tempered(log_probs, self.calibration_["temperature"], beside)
        self.left_out_ = rows, ClassificationPredictive(pooled)

    def _beside(self, X: Tensor) -> Tensor | None:
        """Return the weighted sum of the companions' log probabilities, ``(N, C)``; ``None`` without companions."""
        if not self._companions:
            return None
        inputs = as_array(X)
        pairs = zip(self.calibration_["weights"], self._companions, strict=True)
        return torch.from_numpy(sum(weight * log_softmax(part.outputs(inputs), axis=1) for weight, part in pairs))


def _log_probs(pred: Predictive) -> Tensor:
    assert isinstance(pred, ClassificationPredictive)
    return pred.log_probs.double().cpu()
