"""Likelihoods of a user that return numbers of a wrong shape: refused wherever a density is computed first."""

import re

import pytest
import torch
from torch import distributions, nn

import bayesadam as ba
from bayesadam.likelihoods import Likelihood
from bayesadam.posterior import DiagonalGaussian
from bayesadam.sklearn import BayesianMLPRegressor
from posterior.kinds import draw

X, Y = draw(12, 3).float(), draw(12, 1, seed=1).float()


class SummedTerms(Likelihood):
    """A loss that was 12 times too large."""

    def element_log_density(self, output, target):
        return distributions.Normal(output, 1.0).log_prob(target).sum(-1)


class Squeezed(Likelihood):
    """Broadcast to all pairs of rows."""

    def distribution(self, output):
        return distributions.Normal(output.squeeze(-1), 1.0)


class SqueezedWithCheck(Squeezed):
    """The same, without the general check of targets."""

    def check(self, output, target): ...


class Scalar(Likelihood):
    """One number for all rows."""

    def log_density(self, output, target):
        return distributions.Normal(output, 1.0).log_prob(target).sum()


class NoiseOfRows(ba.likelihoods.RegressionLikelihood):
    """A log variance without the axis of the outputs."""

    def mean_and_log_variance(self, output):
        return output, torch.zeros(output.shape[:-1])


RULES = {
    SummedTerms: "element_log_density must have the axes of the target",
    Squeezed: "distribution must be of targets of the shape",
    SqueezedWithCheck: "distribution must have the axes of the target",
    Scalar: "log_density must be one number for each data point",
    NoiseOfRows: "mean_and_log_variance must return two tensors of one shape",
}


def network():
    torch.manual_seed(0)
    return nn.Linear(3, 1)


def posterior(model):
    mean = {name: p.detach() for name, p in model.named_parameters()}
    return DiagonalGaussian(mean, {name: torch.full_like(p, 0.01) for name, p in mean.items()})


def predicted(likelihood, method):
    model = network()
    return ba.predict(model, posterior(model), X, likelihood=likelihood, mc_samples=3, method=method).log_prob(Y)


def in_population(likelihood):
    models = ba.population.initialize(network, seeds=[0])
    options = {"method": "vadam", "batch_size": 4, "epochs": 1, "progress": False}
    ba.population.train(models, (X, Y), likelihood=likelihood, **options)


CALLS = {
    "training": lambda it: it.nll(network()(X), Y),
    "predict": lambda it: predicted(it, "monte_carlo"),
    "linearized": lambda it: predicted(it, "linearized"),
    "elbo": lambda it: ba.elbo(network(), posterior(network()), X, Y, likelihood=it, prior=1.0, mc_samples=3),
    "laplace": lambda it: ba.laplace(network(), (X, Y), likelihood=it, prior_precision=1.0),
    "score": lambda it: ba.laplace(
        network(), (X, Y), likelihood=it, prior_precision=1.0, curvature="empirical_fisher", structure="diagonal"
    ),
    "population": in_population,
    "estimator": lambda it: BayesianMLPRegressor(likelihood=it, epochs=1, members=1).fit(X.numpy(), Y.numpy()[:, 0]),
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("make", RULES)
def test_are_refused(make, call):
    with pytest.raises(ValueError, match=RULES[make]):
        CALLS[call](make())


def test_the_message_names_both_shapes():
    output = torch.zeros(12, 2)
    for make, words in (
        (SummedTerms, "the axes of the target (12, 2), got shape (12,)"),
        (Scalar, "each data point (12,), got shape ()"),
    ):
        with pytest.raises(ValueError, match=re.escape(words)):
            make().nll(output, output)


def test_moments_of_two_shapes():
    class Moments(Scalar):
        def moments(self, output):
            return output, torch.ones(output.shape[:-1])

    model = network()
    pred = ba.predict(model, posterior(model), X, likelihood=Moments(), mc_samples=3)
    with pytest.raises(ValueError, match=r"^moments must return two tensors of one shape, got \(3, 12, 1\) and "):
        _ = pred.variance


@pytest.mark.parametrize("shape", [(), (4,), (4, 2), (4, 5, 2)])
def test_right_shapes(shape):
    """With sample axes, and of labels without the axis of the outputs."""

    class Right(Likelihood):
        def log_density(self, output, target):
            terms = distributions.Normal(output, 1.0).log_prob(target)
            return terms.sum(-1) if target.ndim > 1 else terms

    class Labels(ba.Categorical):
        def log_density(self, output, target):
            return super().log_density(output, target)

    output, target = draw(*shape), draw(*shape, seed=1)
    expected = Right().log_density(output, target)
    torch.testing.assert_close(Right().log_prob(output.expand(3, *shape), target), expected.expand(3, *expected.shape))
    logits, labels = draw(*shape, 3), torch.ones(shape, dtype=torch.long)
    torch.testing.assert_close(Labels().log_prob(logits, labels), logits.log_softmax(-1)[..., 1])
