"""Active learning: scores, and the shapes of BatchBALD, Baal and modAL, against those packages where they are."""

import inspect

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam.active import baal_predictions, informativeness, log_probs_N_K_C, query_strategy
from bayesadam.predictive import ClassificationPredictive, GaussianPredictive, RegressionPredictive
from bayesadam.predictive.linearized_mixture import GaussianMixturePredictive


@pytest.fixture
def classes():
    """Six data points, five samples, three classes."""
    logits = 2.0 * torch.randn(5, 6, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ClassificationPredictive(logits.log_softmax(-1))


@pytest.fixture
def numbers():
    means = torch.randn(5, 6, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return RegressionPredictive(means, torch.ones(()))


def test_informativeness(classes, numbers):
    probs = classes.log_probs.exp()
    for n in range(6):
        mean = probs[:, n].mean(0)
        total = -(mean * mean.log()).sum()
        within = -(probs[:, n] * probs[:, n].log()).sum() / 5
        assert informativeness(classes)[n] == pytest.approx(float(total - within))
    assert informativeness(numbers) == pytest.approx(numbers.means.var(0).sum(-1))
    assert informativeness(RegressionPredictive(numbers.means[..., 0], torch.ones(()))).shape == (6,)
    with pytest.raises(TypeError, match="pred must have mutual_information or epistemic, got dict"):
        informativeness({})


def test_samples_are_in_the_order_of_the_letters(classes):
    found = log_probs_N_K_C(classes)
    assert found.shape == (6, 5, 3)
    assert found.is_contiguous()
    assert found[4, 2, 1] == classes.log_probs[2, 4, 1]
    several = ClassificationPredictive(classes.log_probs.view(5, 2, 3, 3))
    with pytest.raises(ValueError, match="pred must have one label for each data point, got log_probs of shape"):
        log_probs_N_K_C(several)
    with pytest.raises(TypeError, match="pred must have log probabilities of posterior samples, got RegressionPredic"):
        log_probs_N_K_C(RegressionPredictive(torch.zeros(2, 3), torch.ones(())))


def test_predictions_have_the_samples_last(classes, numbers):
    found = baal_predictions(classes)
    assert found.shape == (6, 3, 5)
    assert found[4, 1, 2] == pytest.approx(float(classes.log_probs[2, 4, 1].exp()))
    several = baal_predictions(ClassificationPredictive(classes.log_probs.view(5, 2, 3, 3)))
    assert several.shape == (2, 3, 3, 5)
    assert several[1, 2, 0, 4] == pytest.approx(float(classes.log_probs[4, 3, 2].exp()))
    means = baal_predictions(numbers)
    assert means.shape == (6, 2, 5)
    assert means[3, 1, 2] == numbers.means[2, 3, 1]
    assert baal_predictions(RegressionPredictive(numbers.means[..., 0], torch.ones(()))).shape == (6, 1, 5)
    with pytest.raises(TypeError, match="pred must have log probabilities of posterior samples, got Tensor"):
        baal_predictions(torch.zeros(3))


@pytest.mark.parametrize("outputs", [1, 2])
def test_samples_are_drawn_from_gaussian_predictions(outputs):
    """A Laplace posterior of a linear network is exact, so that its samples have the moments of the prediction."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(30, 2, generator=generator), torch.randn(30, outputs, generator=generator)
    model = torch.nn.Linear(2, outputs)
    q = ba.posthoc.LaplaceApproximation(model, (x, y), likelihood=ba.Gaussian(1.0), structure="full").posterior(1.0)
    pred = ba.predict(model, q, x[:5], likelihood=ba.Gaussian(1.0))
    assert isinstance(pred, GaussianPredictive)
    assert baal_predictions(pred).shape == (5, outputs, 64)
    count = 20_000
    found = torch.from_numpy(baal_predictions(pred, mc_samples=count, seed=1)).double()
    error = pred.epistemic.double() ** 0.5 / count**0.5
    assert ((found.mean(-1) - pred.mean).abs() < 5 * error).all()
    assert found.var(-1) == pytest.approx(pred.epistemic.double(), rel=0.05)  # five standard errors
    for row, covariance in zip(found, pred.epistemic_covariance.double(), strict=True):
        assert torch.atleast_2d(row.cov()) == pytest.approx(covariance, abs=0.05 * float(covariance.max()))
    again = baal_predictions(pred, mc_samples=7, seed=1)
    assert (again == found[..., :7].numpy().astype(np.float32)).all()
    assert not (again == baal_predictions(pred, mc_samples=7)).any()
    assert baal_predictions(GaussianPredictive(torch.zeros(3), torch.ones(3), torch.ones(3))).shape == (3, 1, 64)
    with pytest.raises(ValueError, match="^mc_samples must be a whole number of at least 1, got 0$"):
        baal_predictions(pred, mc_samples=0)


def test_samples_are_drawn_from_every_component():
    means = torch.tensor([[-10.0, 0.0], [0.0, 3.0], [10.0, 6.0]])
    within = torch.tensor([[1.0, 4.0], [2.0, 0.0], [3.0, 1.0]])
    parts = [GaussianPredictive(*pair, torch.ones(2)) for pair in zip(means, within, strict=True)]
    pred = GaussianMixturePredictive(parts)
    found = torch.from_numpy(baal_predictions(pred, mc_samples=29_999))
    assert found.shape == (2, 1, 30_000)
    each = found.view(2, 10_000, 3)  # the components take turns
    assert each.mean(1).T == pytest.approx(means, abs=0.1)
    assert each.var(1).T == pytest.approx(within, rel=0.07)


def test_samples_of_a_component_have_the_covariance_of_its_outputs():
    covariances = [torch.tensor([[[2.0, 1.2], [1.2, 1.0]]]), torch.tensor([[[1.0, -0.9], [-0.9, 1.0]]])]
    parts = [GaussianPredictive(torch.zeros(1, 2), own, torch.ones(1, 2)) for own in covariances]
    found = torch.from_numpy(baal_predictions(GaussianMixturePredictive(parts), mc_samples=20_000))
    for own, covariance in zip(found.view(2, 10_000, 2).unbind(-1), covariances, strict=True):
        assert own.cov() == pytest.approx(covariance[0], abs=0.1)  # five standard errors
    assert abs(found.view(2, 10_000, 2)[0].T.corrcoef()[0, 1]) < 0.05  # components have draws of their own


def test_predictions_without_samples_are_refused():
    ones = {"weight": torch.ones(3, 2), "bias": torch.ones(3)}
    options = {"likelihood": ba.Categorical(), "method": "linearized", "link": "probit"}
    pred = ba.predict(torch.nn.Linear(2, 3), ba.DiagonalGaussian(ones, ones), torch.ones(4, 2), **options)
    for convert in (baal_predictions, log_probs_N_K_C):
        with pytest.raises(
            TypeError, match="pred must have log probabilities of posterior samples, got Gauss.* with link='probit'$"
        ):
            convert(pred)


class Estimator:
    def __init__(self, pred):
        self.pred = pred

    def predictive(self, X):
        return self.pred


def test_the_most_informative_rows_are_queried(classes):
    rows, scores = query_strategy(Estimator(classes), None, n_instances=3)
    wanted = informativeness(classes)
    assert rows.tolist() == wanted.argsort(descending=True)[:3].tolist()
    assert scores == pytest.approx(wanted[rows].numpy())
    assert query_strategy(Estimator(classes), None)[0].shape == (1,)
    for count in (0, 7, 1.5):
        with pytest.raises(ValueError, match=rf"n_instances must be a whole number in \[1, 6\], got {count}"):
            query_strategy(Estimator(classes), None, n_instances=count)
    with pytest.raises(TypeError, match="learner must have an estimator with predictive"):
        query_strategy(object(), None)


def test_batchbald_takes_the_samples(classes):
    batchbald = pytest.importorskip("batchbald_redux.batchbald", reason="batchbald_redux is not installed")
    bald = batchbald.get_bald_batch(log_probs_N_K_C(classes), 6)
    assert bald.scores == pytest.approx(informativeness(classes)[bald.indices].tolist(), abs=1e-9)
    best = int(informativeness(classes).argmax())
    copies = ClassificationPredictive(classes.log_probs[:, [best, best, *range(6)]])
    first = batchbald.get_batchbald_batch(log_probs_N_K_C(copies), 1, 1000, dtype=torch.double)
    assert first.scores[0] == pytest.approx(float(informativeness(copies).max()), abs=1e-6)


def test_baal_ranks_as_we_do(classes):
    heuristics = pytest.importorskip("baal.active.heuristics", reason="baal is not installed")
    assert heuristics.BALD().get_ranks(baal_predictions(classes))[0].tolist() == (
        informativeness(classes).argsort(descending=True).tolist()
    )


def test_modal_queries_by_it():
    models = pytest.importorskip("modAL.models", reason="modAL is not installed")
    from sklearn.utils import check_X_y

    from bayesadam.sklearn import BayesianMLPClassifier

    generator = np.random.default_rng(0)
    x = generator.standard_normal((60, 2))
    y = (x[:, 0] > 0).astype(int)
    estimator = BayesianMLPClassifier(method="ivon", epochs=5, mc_samples=8, random_state=0)
    start = [int(np.argmax(y == label)) for label in (0, 1)] * 4
    learner = models.ActiveLearner(estimator, query_strategy=query_strategy, X_training=x[start], y_training=y[start])
    rows, instances = learner.query(x, n_instances=2)
    assert rows.tolist() == query_strategy(estimator, x, 2)[0].tolist()
    assert (instances == x[rows]).all()
    if "force_all_finite" in inspect.signature(check_X_y).parameters:  # modAL's teach passes it on
        learner.teach(x[rows], y[rows])
        assert len(learner.X_training) == len(start) + 2
    assert learner.predict(x).shape == (60,)


def test_a_prediction_of_a_network_goes_through():
    model = torch.nn.Linear(2, 3)
    q = ba.DiagonalGaussian(
        {name: p.detach() for name, p in model.named_parameters()},
        {name: torch.ones_like(p) for name, p in model.named_parameters()},
    )
    pred = ba.predict(model, q, torch.randn(7, 2), likelihood=ba.Categorical(), mc_samples=4)
    assert log_probs_N_K_C(pred).shape == (7, 4, 3)
    assert baal_predictions(pred).sum(1) == pytest.approx(np.ones((7, 4)), abs=1e-5)
