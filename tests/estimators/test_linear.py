import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from bayesadam.tables.estimators.linear import FEWEST, FOLDS, PIECES, STRENGTHS, linear_parts
from bayesadam.tables.estimators.plan import plan
from bayesadam.tables.estimators.rows import TrainingRows


@pytest.fixture(scope="module")
def counts():
    """Three classes that depend on logarithms of skewed inputs: ``(inputs, labels, plan)``, standardised."""
    generator = np.random.default_rng(0)
    logs = generator.standard_normal((300, 2))
    x = np.exp(1.5 * logs)
    logits = 2.0 * np.stack([logs[:, 0], logs[:, 1], np.zeros(300)], 1) + generator.gumbel(size=(300, 3))
    return (x - x.mean(0)) / x.std(0), logits.argmax(1), plan(300, 4, np.arange(300), 0)


@pytest.fixture(scope="module")
def parts(counts):
    x, labels, divided = counts
    return list(linear_parts(TrainingRows(torch.tensor(x), torch.tensor(labels), np.ones(300), divided), 3))


def density(log_probs, labels):
    return log_probs[np.arange(len(labels)), labels].mean()


def test_outputs_by_their_definition(parts, counts):
    part, _ = parts[1]
    for row in 3.0 * counts[0][:5]:  # also beyond the pieces, where all but the first of a column are constant
        logits = part.intercept.copy()
        for piece, column in enumerate(part.column):
            place = (row[column] - part.low[piece]) / (part.high[piece] - part.low[piece])
            beyond = 1.0 if column not in part.column[:piece] else 0.0
            logits += part.coefficient[:, piece] * min(max(place, -beyond), 1.0 + beyond)
        np.testing.assert_allclose(part.outputs(row[None])[0], logits)


def test_pieces_end_at_quantiles(parts, counts):
    (linear, _), (additive, _) = parts
    np.testing.assert_array_equal(linear.column, [0, 1])
    for column, values in enumerate(counts[0].T):
        own = additive.column == column
        knots = np.quantile(values, np.linspace(0.0, 1.0, PIECES + 1))
        np.testing.assert_allclose(additive.low[own], [values.min(), *knots[:-1]])
        np.testing.assert_allclose(additive.high[own], [values.max(), *knots[1:]])


def test_rows_left_out_are_predicted_by_the_others(parts, counts):
    x, labels, divided = counts
    fold = divided.fold % FOLDS
    _, found = parts[0]
    scaled = MinMaxScaler().fit_transform(x)
    references = []
    for strength in STRENGTHS:
        reference = np.empty((300, 3))
        for number in range(FOLDS):
            model = make_pipeline(StandardScaler(), LogisticRegression(C=strength))
            model.fit(scaled[fold != number], labels[fold != number])
            reference[fold == number] = model.predict_log_proba(scaled[fold == number])
        references.append(reference)
    best = max(references, key=lambda reference: density(reference, labels))
    np.testing.assert_allclose(found, best, atol=1e-3)


def test_a_class_that_a_fold_does_not_have(counts):
    x, labels, divided = counts
    rare = np.where(labels == 2, 0, labels)
    rare[7] = 2
    for part, found in linear_parts(TrainingRows(torch.tensor(x), torch.tensor(rare), np.ones(300), divided), 3):
        assert np.isfinite(found).all()
        assert found[7, 2] < np.log(0.05)
        assert np.isfinite(part.outputs(x)).all()


def test_where_there_are_none(counts):
    x, labels, divided = counts
    few = plan(FEWEST - 1, 4, np.arange(FEWEST - 1), 0)
    for inputs, values, each in (
        (x[: FEWEST - 1], labels[: FEWEST - 1], few),
        (x, (np.arange(300) == 7).astype(int), divided),
        (np.zeros((300, 2)), labels, divided),
    ):
        rows = TrainingRows(torch.tensor(inputs), torch.tensor(values), np.ones(len(values)), each)
        assert list(linear_parts(rows, 3)) == []
