"""Boosted trees that complement an estimator's networks; they are ahead of them where few inputs have thresholds."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

from bayesadam.tables.estimators import plan
from bayesadam.tables.estimators.clock import Clock

Floats = NDArray[Any]
Whole = NDArray[np.int64]

FEWEST = 100
"""Minimum number of rows for trees."""

FOLDS = 4

LEAVES = (6, 24)
"""Candidates for the number of leaves of a tree, which is chosen on left-out rows."""

BOOSTING: dict[str, Any] = {
    "max_iter": 60,
    "max_bins": 63,
    "l2_regularization": 1.0,
    "early_stopping": False,
    "random_state": 0,
}

COLUMNS = 50
"""Number of columns by which the time for the bins of more columns is estimated."""

AT_ONCE = 2**22
"""Maximum size of an intermediate result, which limits the number of rows that are predicted together."""


@dataclass(frozen=True)
class TreesPart:
    """A sum of regression trees, whose nodes are stored one tree after another.

    A leaf is its own child; all other children come after their node, so that there are no cycles.

    Attributes:
        column: Input that a node compares, ``(V,)``.
        threshold: Largest value of the input for the left child, ``(V,)``.
        left: Left child, ``(V,)``.
        right: Right child, ``(V,)``.
        value: Output of the node, ``(V,)``, if it is a leaf.
        root: First node of every tree, ``(T,)``.
        output: Output to which the tree belongs, ``(T,)``.
        baseline: Constant terms of the outputs, ``(K,)``.

    Raises:
        ValueError: A tree has more nodes than ``LEAVES`` allow, or a child is before its node or in another tree.
    """

    column: Whole
    threshold: Floats
    left: Whole
    right: Whole
    value: Floats
    root: Whole
    output: Whole
    baseline: Floats

    def __post_init__(self) -> None:
        ends = np.append(self.root, len(self.column))
        sizes = np.diff(ends)
        if ends[0] != 0 or not ((0 < sizes) & (sizes < 2 * max(LEAVES))).all():
            raise ValueError(f"trees must have from 1 to {2 * max(LEAVES) - 1} nodes, got {sizes.tolist()!r:.100}")
        first, last = np.arange(len(self.column)), np.repeat(ends[1:], sizes)
        if not all(((first <= child) & (child < last)).all() for child in (self.left, self.right)):
            raise ValueError("children must come after their node, in its tree, got others")

    def outputs(self, inputs: Floats) -> Floats:
        """Return the outputs, ``(N, K)``, for standardised inputs ``(N, D)``."""
        at_once = max(1, AT_ONCE // len(self.root))
        parts = [self._outputs(inputs[first : first + at_once]) for first in range(0, len(inputs), at_once)]
        return np.concatenate(parts)

    def _outputs(self, inputs: Floats) -> Floats:
        row = np.arange(len(inputs))
        node = np.repeat(self.root[:, None], len(inputs), axis=1)
        while not np.array_equal(below := self._below(node, inputs, row), node):
            node = below
        sums = np.zeros((len(self.baseline), len(inputs)))
        np.add.at(sums, self.output, self.value[node])
        return sums.T + self.baseline

    def _below(self, node: Whole, inputs: Floats, row: Whole) -> Whole:
        goes_left = inputs[row, self.column[node]] <= self.threshold[node]
        return np.where(goes_left, self.left[node], self.right[node])


def regression_trees(
    inputs: Floats, targets: Floats, weight: Floats, divided: plan.Plan, clock: Clock
) -> Iterator[tuple[TreesPart, Floats]]:
    """Fit trees to every target, with predictions of rows that the trees have not seen.

    Args:
        inputs: Standardised, ``(N, D)``.
        targets: Standardised, ``(N, K)``.
        weight: Weights of the rows, ``(N,)``.
        divided: The rows that the members leave out.
        clock: The time for all fits.

    Yields:
        The trees and predictions, ``(N, K)``, which are NaN for rows that no member leaves out; nothing with fewer than
        100 rows.

    Raises:
        OutOfTimeError: There is not enough time.
    """
    if len(inputs) < FEWEST:
        return
    folds = divided.masks(FOLDS)
    fits = targets.shape[1] * (len(LEAVES) * len(folds) + 1)
    left_out = np.any(folds, axis=0)
    trees, baseline, columns = [], [], []
    for output, own in enumerate(targets.T):
        candidates = []
        for leaves in LEAVES:
            model = HistGradientBoostingRegressor(max_leaf_nodes=leaves, **BOOSTING)
            unseen = np.full(len(own), np.nan)
            for fold in folds:
                fit_within(clock, fits, model, inputs[~fold], own[~fold], _weights(weight[~fold]))
                fits -= 1
                unseen[fold] = model.predict(inputs[fold])
            candidates.append((weight[left_out] @ (unseen - own)[left_out] ** 2, leaves, unseen))
        _, leaves, unseen = min(candidates, key=lambda candidate: candidate[0])
        model = HistGradientBoostingRegressor(max_leaf_nodes=leaves, **BOOSTING)
        fit_within(clock, fits, model, inputs, own, _weights(weight))
        fits -= 1
        trees += _trees(model, [output])
        baseline.append(float(np.ravel(model._baseline_prediction)[0]))
        columns.append(unseen)
    yield _part(trees, np.array(baseline)), np.stack(columns, axis=1)


def classification_trees(
    inputs: Floats, labels: Whole, classes: int, weight: Floats, divided: plan.Plan, clock: Clock
) -> Iterator[tuple[TreesPart, Floats]]:
    """Fit trees to the classes, with log probabilities of rows that the trees have not seen.

    Args:
        inputs: Standardised, ``(N, D)``.
        labels: Indices of the classes, ``(N,)``.
        classes: Number ``C`` of classes.
        weight: Weights of the rows, ``(N,)``.
        divided: The rows that the members leave out.
        clock: The time for all fits.

    Yields:
        The trees and log probabilities, ``(N, C)``, as for :func:`regression_trees`; nothing, too, if a fold holds all
        rows of all classes but one.

    Raises:
        OutOfTimeError: There is not enough time.
    """
    folds = divided.masks(FOLDS)
    if len(inputs) < FEWEST or any(len(np.unique(labels[~fold])) < 2 for fold in folds):
        return
    fits = len(LEAVES) * len(folds) + 1
    left_out = np.any(folds, axis=0)
    candidates = []
    for leaves in LEAVES:
        model = HistGradientBoostingClassifier(max_leaf_nodes=leaves, **BOOSTING)
        unseen = np.full((len(labels), classes), np.nan)
        for fold in folds:
            fit_within(clock, fits, model, inputs[~fold], labels[~fold], _weights(weight[~fold]))
            fits -= 1
            probs = np.full((fold.sum(), classes), 1.0 / len(inputs))  # of classes that the other rows do not have
            probs[:, model.classes_] = model.predict_proba(inputs[fold])
            unseen[fold] = np.log(probs / probs.sum(1, keepdims=True))
        candidates.append((weight[left_out] @ unseen[left_out, labels[left_out]], leaves, unseen))
    _, leaves, unseen = max(candidates, key=lambda candidate: candidate[0])
    model = HistGradientBoostingClassifier(max_leaf_nodes=leaves, **BOOSTING)
    fit_within(clock, fits, model, inputs, labels, _weights(weight))
    constants = np.ravel(model._baseline_prediction)
    two = len(constants) == 1  # the logit of the second class
    baseline = np.full(classes, -np.log(len(inputs)))  # of classes without a row
    baseline[model.classes_] = [0.0, *constants] if two else constants
    yield _part(_trees(model, model.classes_[1:] if two else model.classes_), baseline), unseen


def fit_within(clock: Clock, fits: int, model: Any, x: Floats, y: NDArray[Any], weight: Floats | None) -> None:
    """Fit boosted trees of scikit-learn, the first of ``fits`` models that take about as long as each other.

    Raises:
        OutOfTimeError: An iteration shows that there is not enough time for all of them.
    """
    made, begin, times = model._get_loss, time.monotonic(), list[float]()

    def observed(sample_weight: Any) -> Any:
        """Return the loss, whose gradient is computed at the beginning of every iteration."""
        loss = made(sample_weight=sample_weight)
        name = "gradient" if loss.constant_hessian else "gradient_hessian"
        gradient = getattr(loss, name)

        def checked(*args: Any, **kwargs: Any) -> Any:
            times.append(time.monotonic())
            if len(times) > 2:  # the first iterations come after the binning, and may be slower
                each = (times[-1] - times[1]) / (len(times) - 2)
                clock.require(fits * (times[0] - begin + model.max_iter * each) - (times[-1] - begin))
            clock.require()
            return gradient(*args, **kwargs)

        setattr(loss, name, checked)
        return loss

    if clock.limited:
        clock.require()
        if x.shape[1] > COLUMNS:  # scikit-learn takes up to 30 ms for the bins of a column if rows have weights
            clone(model).set_params(max_iter=1).fit(x[:, :COLUMNS], y, weight)
            clock.require(fits * (time.monotonic() - begin) * x.shape[1] / COLUMNS)
        begin = time.monotonic()
        model._get_loss = observed
    model.fit(x, y, weight)


def _weights(weight: Floats) -> Floats | None:
    """Return weights for scikit-learn, which finds the same bins in a tenth of the time without equal weights."""
    return None if np.ptp(weight) == 0.0 else weight


def _trees(model: Any, outputs: Sequence[int]) -> list[tuple[Any, int]]:
    """Return the nodes of every tree and its output, of a model of scikit-learn, which has no public access to them."""
    pairs = (zip(each, outputs, strict=True) for each in model._predictors)
    return [(tree.nodes, output) for each in pairs for tree, output in each]


def _part(trees: list[tuple[Any, int]], baseline: Floats) -> TreesPart:
    sizes = [len(nodes) for nodes, _ in trees]
    root = np.cumsum([0, *sizes])[:-1]
    first, nodes = np.repeat(root, sizes), np.concatenate([nodes for nodes, _ in trees])
    leaf, own = nodes["is_leaf"] == 1, np.arange(len(nodes))
    return TreesPart(
        np.where(leaf, 0, nodes["feature_idx"]).astype(np.int64),
        np.where(leaf, 0.0, nodes["num_threshold"]),
        np.where(leaf, own, first + nodes["left"]),
        np.where(leaf, own, first + nodes["right"]),
        nodes["value"].copy(),
        root.astype(np.int64),
        np.array([output for _, output in trees], dtype=np.int64),
        baseline,
    )
