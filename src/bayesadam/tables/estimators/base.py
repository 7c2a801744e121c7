"""The base class of the estimators: checks of parameters and data, and the training of the members."""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from bayesadam import population
from bayesadam.checks import check, check_count, check_positive, is_whole
from bayesadam.functional.generators import GENERATORS
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior import Mixture
from bayesadam.predictive import Predictive
from bayesadam.scaling import input_scales, standardized
from bayesadam.tables.encoder.encoder import Encoded, TableEncoder
from bayesadam.tables.encoder.findings import Findings, TableError
from bayesadam.tables.encoder.memory import require_memory
from bayesadam.tables.estimators.calibration import effective_rows
from bayesadam.tables.estimators.companions import Companions, companions
from bayesadam.tables.estimators.failures import all_or_nothing
from bayesadam.tables.estimators.inputs import checked
from bayesadam.tables.estimators.member_training import Training, TrainingStatus
from bayesadam.tables.estimators.members import ROWS, posteriors, predictions, randomized
from bayesadam.tables.estimators.methods import method_named
from bayesadam.tables.estimators.network import ACTIVATIONS, perceptron, require_device
from bayesadam.tables.estimators.plan import FULL_BATCH, default_steps, plan
from bayesadam.tables.estimators.rows import TrainingRows, member_parts, numbered, warn_of_copies, weighed
from bayesadam.tables.estimators.stack import stacked_predictions
from bayesadam.tables.estimators.storage import save_estimator

Array = NDArray[Any]

FARTHEST = 1e15
"""Largest standardised input. The variance of an output grows with its square, which has to be finite in single
precision.
"""

MOST_SAMPLES = 10_000
"""Largest number of posterior samples per member, each of which is a forward pass."""


@dataclass(eq=False, repr=False)
class BayesianMLP(BaseEstimator):  # type: ignore[misc]
    """The base class of both estimators, which document the parameters."""

    default_steps = 1_000

    method: str = "auto"
    _: KW_ONLY
    hidden: Any = (50,)
    activation: str = "tanh"
    members: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    lr: float = 0.01
    prior_precision: float = 0.1
    mc_samples: int = 32
    standardize: bool = True
    early_stopping: bool = True
    calibrate: bool = True
    time_budget: float | None = None
    device: str = "cpu"
    random_state: Any = None
    encoder: Any = None
    verbose: bool = False

    inputs_: TableEncoder | None = field(init=False)
    method_: str = field(init=False)
    calibration_: dict[str, Any] = field(init=False)
    left_out_: tuple[NDArray[np.int64], Any] | None = field(init=False)
    _likelihoods: list[Likelihood] = field(init=False)

    @all_or_nothing
    def fit(
        self,
        X: ArrayLike | Encoded,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        on_epoch: Callable[[TrainingStatus], None] | None = None,
    ) -> Any:
        """Train the members and calibrate their predictions on the rows that each member leaves out.

        Ctrl-C ends the training, but not the fit: the members have their weights after the last complete epoch, or with
        early stopping those of the best epoch so far. ``interrupted_`` is then true, and a ``UserWarning`` is issued.

        Args:
            X: Inputs ``(N, D)``: numbers, or a data frame whose columns may hold numbers, truth values, categories,
                text or dates, and may have missing values. ``inputs_`` describes how the columns were interpreted.
            y: Targets ``(N,)``; for regression also ``(N, K)``. Rows without a target must be left out.
            sample_weight: Weights of the rows, ``(N,)``. Only their ratios matter. They are importances: the noise and
                the calibration are those of rows that occur as often as their weights say. They must be ``None`` with
                the method ``"anchored"``.
            groups: Group of each row, ``(N,)``. Rows of one group, such as the measurements of one patient, are left
                out together. Without groups, a warning tells if many rows are copies of others.
            on_epoch: Function that is called with a :class:`TrainingStatus` after every epoch.

        Raises:
            ValueError: A parameter is out of range, or the data cannot be used. As after any other error, the estimator
                is what it was before.
        """
        self._check()
        if sample_weight is not None and self._method.posterior == "anchored":
            raise ValueError("sample_weight must be None with method='anchored', got weights")
        X, y = self._validated(X, y, sample_weight)
        X, y, weight, groups, rows = weighed(X, y, sample_weight, groups)
        if groups is None:
            warn_of_copies(X, y, stacklevel=3)
        self._learn_scales(X, y, weight, groups)
        return self._train(X, y, weight, groups, rows, on_epoch)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``posterior.safetensors`` and ``model.json`` into a folder; :func:`load_estimator` reads them."""
        check_is_fitted(self, "posterior_")
        save_estimator(self, folder)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    @property
    def _method_name(self) -> str:
        return self.method

    @property
    def _calibrates(self) -> bool:
        """Whether predictions are calibrated on the rows that members leave out."""
        return self.calibrate

    def _check(self) -> None:
        """Check the parameters before anything is changed."""
        self._method = method_named(self._method_name)
        hidden = self.hidden
        if not isinstance(hidden, tuple | list) or not all(is_whole(units) for units in hidden):
            raise ValueError(f"hidden must be a tuple of whole numbers of at least 1, got {hidden!r}")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {tuple(ACTIVATIONS)}, got {self.activation!r}")
        for name in ("members", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and not is_whole(value):
                raise ValueError(f"{name} must be None or a whole number of at least 1, got {value!r}")
        check_count("mc_samples", self.mc_samples)
        check("mc_samples", self.mc_samples, f"at most {MOST_SAMPLES:,}", lambda count: count <= MOST_SAMPLES)
        check_positive("lr", self.lr)
        check_positive("prior_precision", self.prior_precision)
        if self.time_budget is not None:
            check_positive("time_budget", self.time_budget)
        if self.encoder is not None and not isinstance(self.encoder, TableEncoder):
            raise ValueError(f"encoder must be None or a TableEncoder, got {self.encoder!r}")
        for name in ("standardize", "early_stopping", "calibrate"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name} must be True or False, got {getattr(self, name)!r}")
        require_device(self.device)

    def _train(
        self,
        X: Array,
        y: Array,
        weight: Array | None,
        groups: Array | None,
        rows: Array,
        on_epoch: Callable[[TrainingStatus], None] | None,
    ) -> Any:
        """Train the members on standardised data.

        The indices of the rows among those that the user gave, ``rows``, are for ``left_out_``.
        """
        count = len(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        divided = plan(count, self.members, numbered(groups, count), seed)
        if self._method.posterior == "anchored" and not self._calibrates:  # all rows are for training
            divided.left_out[:] = False
        inputs, targets = self._inputs(X), self._targets(y)
        data, held_out, weights, held_out_weights = member_parts(divided, inputs, targets, weight)
        widths = [X.shape[1], *self.hidden, self._outputs()]
        size = sum((before + 1) * units for before, units in itertools.pairwise(widths))
        what = f"training {len(data)} networks of {size:,} weights"
        # In single precision: the weights, their gradients, two averages of the optimiser.
        require_memory(16.0 * size * len(data), what, "use fewer members or smaller hidden layers")
        self.network_ = self._network(X.shape[1])
        members = range(len(data))
        models = population.initialize(lambda: self._network(X.shape[1]), seeds=[seed + member for member in members])
        likelihoods = [self._likelihood().to(self.device) for _ in members]
        sizes = [float(len(x)) for x, _ in data] if weights is None else [effective_rows(each) for each in weights]
        options = self._options(sizes)
        training_rows = TrainingRows(inputs, targets, np.ones(count) if weight is None else weight, divided)
        complements = companions(training_rows, self._classes()) if self._complements(training_rows) else []
        shown = data
        if self._method.posterior == "anchored":
            shown, weights, options["prior"] = randomized(self.network_, data, likelihoods, self.prior_precision, seed)
        batch_size = self.batch_size or min(count, FULL_BATCH)
        least = self.default_steps * (2 if self._method.posterior == "anchored" else 1)  # its members end at an optimum
        longest = max(len(x) for x, _ in data)
        training = Training(
            models,
            shown,
            held_out,
            held_out_weights,
            likelihoods,
            self._method.train,
            options,
            self.epochs or max(1, default_steps(longest, batch_size, least) // -(-longest // batch_size)),
            batch_size,
            seed,
            sample_weight=weights,
            time_budget=self.time_budget,
            error=self._error(training_rows, weight),
            on_epoch=on_epoch,
            offset=self._offset(y),
            verbose=self.verbose,
        )
        nets = training.run()
        self.method_ = self._method_name
        self.stopped_ = training.stopped
        self.interrupted_ = training.stopped == "interrupted"
        self.history_ = {"loss": training.loss.numpy(), "held_out_nll": training.held_out_nll.numpy()}
        self.epochs_ = training.best
        members_posteriors, learned = posteriors(
            self._method,
            nets,
            models,
            data,
            weights,
            sizes,
            prior_precision=self.prior_precision,
            steps=self.epochs_ * training.steps_per_epoch,
        )
        self._likelihoods = learned
        self.posterior_ = Mixture(members_posteriors, hyperparameters={"method": self.method_})
        self._calibrate(training_rows, complements)
        if self.left_out_ is not None:
            self.left_out_ = rows[self.left_out_[0]], self.left_out_[1]
        return self

    def _network(self, inputs: int) -> nn.Module:
        """Create a network with new random weights, without changing the state of PyTorch's generator."""
        with GENERATORS, torch.random.fork_rng(devices=[]):
            return perceptron(inputs, self.hidden, self._outputs(), self.activation).to(self.device)

    def _options(self, sizes: Sequence[float]) -> dict[str, Any]:
        """Return options of the training, among them the effective number of rows of every member."""
        options: dict[str, Any] = {"lr": self.lr}
        if self._method.posterior == "anchored":
            return options
        if self._method.train == "adam":
            return options | {"weight_decay": [self.prior_precision / size for size in sizes]}
        if self._method.train == "von":  # whose curvature, read off the noise, is often negative
            options["correction"] = "elementwise"
        return options | {"num_data": list(sizes), "prior_precision": self.prior_precision}

    def _error(
        self, training_rows: TrainingRows, weight: Array | None
    ) -> Callable[[Sequence[Predictive]], float] | None:
        """Return a function that scores the members' predictions of the rows that they left out; lower is better."""
        rows, left_out, device = training_rows.left_out, training_rows.plan.left_out, training_rows.targets.device
        if not self.early_stopping or not len(rows) or self._method.posterior == "anchored":
            return None
        places = [torch.from_numpy(np.flatnonzero(mask[rows])).to(device) for mask in left_out]
        truth = training_rows.targets[torch.from_numpy(rows).to(device)]
        count = torch.from_numpy(left_out.sum(0)[rows]).to(device)
        row_weights = None if weight is None else torch.from_numpy(weight[rows]).to(device)

        def error(predicted: Sequence[Predictive]) -> float:
            centers = [self._center(pred) for pred in predicted]
            total = centers[0].new_zeros(len(rows), centers[0].shape[-1])
            for center, place in zip(centers, places, strict=True):
                total[place] += center
            return self._held_out_error(total / count[:, None], truth, row_weights)

        return error

    def _predictions(self, X: Tensor, member: int) -> Predictive:
        return predictions(
            self._method,
            self.network_,
            self.posterior_.components[member],
            self._likelihoods[member],
            X,
            mc_samples=self.mc_samples,
            seed=member,
        )

    def _unseen(self, training_rows: TrainingRows) -> Iterator[tuple[int, NDArray[np.int64], Predictive]]:
        """Yield members with the places, among all rows left out, of those that they left out, and predictions."""
        rows, left_out, inputs = training_rows.left_out, training_rows.plan.left_out, training_rows.inputs
        for member in np.flatnonzero(left_out.any(1)).tolist():
            places = np.flatnonzero(left_out[member, rows])
            yield member, places, self._predictions(inputs[torch.from_numpy(rows[places]).to(inputs.device)], member)

    def _all_predictions(self, X: Tensor) -> list[Predictive]:
        """Return the predictive distribution of every member, evaluated together where that is possible."""
        stacked = stacked_predictions(
            self._method.predict, self.network_, self.posterior_, self._likelihoods, X, mc_samples=self.mc_samples
        )
        return stacked or [self._predictions(X, member) for member in range(len(self.posterior_.components))]

    def _in_parts(self, X: Any) -> list[Tensor]:
        """Check and standardise new inputs, and split them into parts of a few thousand rows."""
        check_is_fitted(self, "posterior_")
        return list(torch.split(self._inputs(checked(self, X, reset=False)), ROWS))

    def _inputs(self, X: Array) -> Tensor:
        with np.errstate(over="ignore"):
            inputs = standardized(X, self._x_mean, self._x_std)
        far = np.abs(inputs) > FARTHEST
        if far.any():
            row, column = np.argwhere(far)[0].tolist()
            names = range(X.shape[1]) if self.inputs_ is None else self.inputs_.get_feature_names_out()
            raise TableError(
                f"X must be near the training inputs, got {X[row, column]:g} in row {row}, column {names[column]!r}"
            )
        if (absent := np.isnan(X)).any():  # missing values of a column that had none in training become its mean
            inputs[absent] = 0.0
            findings = Findings()
            for name, rows in zip(getattr(self, "feature_names_in_", range(X.shape[1])), absent.T, strict=True):
                findings.missing(name, rows)
            warnings.warn("; ".join(findings.cells), UserWarning, stacklevel=4)
        return torch.from_numpy(inputs).to(self.device)

    def _learn_x(self, X: Array, weight: Array | None) -> None:
        if self.standardize:
            self._x_mean, self._x_std = input_scales(X, weight)
        else:
            self._x_mean, self._x_std = np.zeros(X.shape[1]), np.ones(X.shape[1])

    # The following methods differ between the estimators.

    def _validated(self, X: Any, y: ArrayLike, sample_weight: ArrayLike | None) -> tuple[Array, Array]:
        """Return the checked inputs ``(N, D)``, and targets ``(N, K)`` or indices of classes ``(N,)``."""
        raise NotImplementedError

    def _learn_scales(self, X: Array, y: Array, weight: Array | None, groups: Array | None) -> None:
        raise NotImplementedError

    def _targets(self, y: Array) -> Tensor:
        raise NotImplementedError

    def _outputs(self) -> int:
        raise NotImplementedError

    def _offset(self, y: Array) -> float:
        return 0.0

    def _likelihood(self) -> Likelihood:
        """Return the likelihood of a member with its initial parameters."""
        raise NotImplementedError

    def _center(self, pred: Predictive) -> Tensor:
        """Return the prediction that is averaged over the ensemble, ``(n, K)``."""
        raise NotImplementedError

    def _held_out_error(self, center: Tensor, targets: Tensor, weight: Tensor | None) -> float:
        raise NotImplementedError

    def _classes(self) -> int:
        """Number of classes; 0 for a regression."""
        return 0

    def _complements(self, training_rows: TrainingRows) -> bool:
        """Whether companions complement the networks."""
        raise NotImplementedError

    def _calibrate(self, training_rows: TrainingRows, complements: Companions) -> None:
        """Calibrate predictions on the rows left out."""
        raise NotImplementedError
