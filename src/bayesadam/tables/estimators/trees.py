"""Boosted trees that complement an estimator's networks; they are ahead of them where few inputs have thresholds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bayesadam.tables.estimators.linear import FOLDS, spread
from bayesadam.tables.estimators.plan import AT_ONCE
from bayesadam.tables.estimators.rows import TrainingRows

Floats = NDArray[Any]
Whole = NDArray[np.int64]

FEWEST = 100
"""Minimum number of rows for trees."""

LEAVES = 8

LARGEST = 100_000
"""Maximum of the number of rows times the number of columns of a fit. If there are more, the fit uses a part of the
rows, but at least 1,000 rows or all.
"""

BOOSTING: dict[str, Any] = {
    "n_estimators": 60,
    "learning_rate": 0.1,
    "max_depth": None,
    "max_leaf_nodes": LEAVES,
    "min_samples_leaf": 20,
    "subsample": 0.5,
    "max_features": 0.5,
    "random_state": 0,
}


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
        if ends[0] != 0 or not ((0 < sizes) & (sizes < 2 * LEAVES)).all():
            raise ValueError(f"trees must have from 1 to {2 * LEAVES - 1} nodes, got {sizes.tolist()!r:.100}")
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


def tree_parts(rows: TrainingRows, classes: int) -> Iterator[tuple[TreesPart, Floats]]:
    """Fit trees, with predictions of rows that the trees have not seen.

    Args:
        rows: The rows.
        classes: Number of classes; 0 for a regression, which has trees for every target.

    Yields:
        The trees and predictions, numbers ``(N, K)`` or log probabilities ``(N, C)``, which are NaN for rows that no
        member leaves out; nothing with fewer than 100 rows, or if a fold has all rows of all classes but one.
    """
    from sklearn import config_context  # predictions do not need scikit-learn
    from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor

    inputs, targets, weight = rows.arrays()
    inputs, folds = inputs.astype(np.float32), rows.plan.masks(FOLDS)
    used = spread(len(inputs), max(1_000, LARGEST // max(1, inputs.shape[1])))
    if len(inputs) < FEWEST or (classes and any(len(np.unique(targets[used & ~fold])) < 2 for fold in folds)):
        return

    def fit(kind: Any, target: Any, mask: NDArray[np.bool_]) -> Any:
        with config_context(skip_parameter_validation=True):  # of every tree: with few rows, a third of the time
            return kind(**BOOSTING).fit(inputs[mask], target[mask], weight[mask])

    unseen = np.full((len(inputs), classes or targets.shape[1]), np.nan)
    if classes:
        for fold in folds:
            model = fit(GradientBoostingClassifier, targets, used & ~fold)
            probs = np.full((fold.sum(), classes), 1.0 / len(inputs))  # of classes that the other rows do not have
            probs[:, model.classes_] = model.predict_proba(inputs[fold])
            unseen[fold] = np.log(probs / probs.sum(1, keepdims=True))
        model = fit(GradientBoostingClassifier, targets, used)
        present = model.classes_[1:] if len(model.classes_) == 2 else model.classes_  # of two, the second one's logit
        start = np.full(classes, -np.log(len(inputs)))  # of classes without a row
        start[model.classes_] = 0.0
        start[present] = model.decision_function(inputs[:1])
        trees = [(tree, output) for stage in model.estimators_ for tree, output in zip(stage, present, strict=True)]
    else:
        models = []
        for output, target in enumerate(targets.T):
            for fold in folds:
                unseen[fold, output] = fit(GradientBoostingRegressor, target, used & ~fold).predict(inputs[fold])
            models.append(fit(GradientBoostingRegressor, target, used))
        start = np.concatenate([model.predict(inputs[:1]) for model in models])
        trees = [(tree, output) for output, model in enumerate(models) for tree in model.estimators_[:, 0]]
    yield _part(trees, inputs[:1], start), unseen


def _part(trees: Sequence[tuple[Any, int]], row: Floats, start: Floats) -> TreesPart:
    """Return the trees with their outputs, and the constant terms with which the outputs of a row are ``start``."""
    nodes = [tree.tree_ for tree, _ in trees]
    sizes = [tree.node_count for tree in nodes]
    root = np.cumsum([0, *sizes])[:-1].astype(np.int64)
    column, threshold, left, right, value = (
        np.concatenate([np.ravel(getattr(tree, name)) for tree in nodes])
        for name in ("feature", "threshold", "children_left", "children_right", "value")
    )
    leaf, first, places = left < 0, np.repeat(root, sizes), np.arange(len(left))
    part = TreesPart(
        np.where(leaf, 0, column),
        np.where(leaf, 0.0, threshold),
        np.where(leaf, places, first + left),
        np.where(leaf, places, first + right),
        BOOSTING["learning_rate"] * value,
        root,
        np.array([output for _, output in trees], dtype=np.int64),
        np.zeros(len(start)),
    )
    return replace(part, baseline=start - part.outputs(row)[0])
