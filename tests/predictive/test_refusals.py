"""What predictions refuse: options before the model runs, models and outputs that do not fit, and bad targets."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import bayesadam as ba
from bayesadam.functional.monotone import Log
from bayesadam.predictive import GaussianLogitsPredictive, GaussianPredictive, TransformedPredictive
from bayesadam.predictive.result import from_outputs
from modules import module_of
from posterior import kinds
from posterior.kinds import around, draw
from predictive.networks import Network, posterior_of, trained_part
from predictive.test_rows import Recurrent
from refusals import assert_refused, refusals

GAUSSIAN = ba.Gaussian()
X = draw(6, 3, dtype=torch.float32)


def of_network(**options):
    """A prediction of the network that is given, with these options."""

    def call(model):
        arguments = {"posterior": trained_part(model), "inputs": X, "likelihood": GAUSSIAN, "mc_samples": 3, **options}
        return ba.predict(model, **arguments)

    return call


def linearized(**options):
    return of_network(**{"method": "linearized", **options})


OPTIONS = [
    (of_network(method="exact"), r"^method must be one of \('auto', 'monte_carlo', .*'mean'\), got 'exact'$"),
    (of_network(mc_samples=2.0), "^mc_samples must be a whole number of at least 1, got 2.0$"),
    (of_network(batch_size=0), "^batch_size must be a whole number of at least 1, got 0$"),
    (of_network(likelihood=nn.MSELoss()), r"^likelihood must be a bayesadam.likelihoods.Likelihood, got MSELoss\(\)$"),
    (of_network(likelihood=ba.Gaussian), "^likelihood must be a bayesadam.likelihoods.Likelihood, got <class"),
    (of_network(seed=-1), "^seed must be "),
    (of_network(inputs=[]), "^inputs must have at least one batch, got an empty loader$"),
    (of_network(inputs=np.zeros((4, 3))), "^inputs must be a tensor, a tuple, a dict or a loader .*, got ndarray"),
    (of_network(inputs=TensorDataset(X)), "^inputs must be a tensor, .* of them, got TensorDataset "),
    (of_network(posterior=nn.Linear(3, 1)), "^posterior must be a distribution over networks, got Linear$"),
    (
        of_network(posterior=posterior_of(nn.Linear(8, 1))),
        "^the model must have a parameter 'weight' .*, got 'last.weight' ",
    ),
    (of_network(batch_norm="own"), "^batch_norm must be 'auto', None or inputs, got 'own'$"),
    (linearized(link="probit"), "^link must be given for a method in .* and classification only, got 'probit' for"),
    (of_network(method="monte_carlo", link="probit", likelihood=ba.Bernoulli()), "^link must be given for a"),
    (
        linearized(link="logit", likelihood=ba.Bernoulli()),
        r"^link must be one of \('monte_carlo', 'probit'\), got 'logit'$",
    ),
    (linearized(mc_samples=0), "^mc_samples must be a whole number of at least 1, got 0$"),
    (linearized(seed=-1, likelihood=ba.Bernoulli()), "^seed must be "),
    (linearized(inputs=[]), "^inputs must have at least one batch, got an empty loader$"),
    (linearized(posterior=kinds.bernoulli()), "^posterior must be a Gaussian over the weights for"),
    (
        linearized(posterior=posterior_of(nn.Sequential(nn.Linear(3, 4)))),
        "^the model must have a parameter '0.weight' as the posterior does",
    ),
]


@refusals(OPTIONS)
def test_options(call, error, message):
    model = Network()
    assert_refused(call, error, message, model)
    assert model.calls == 0


def predict(model, inputs, **options):
    return ba.predict(model, around(model), inputs, **{"likelihood": GAUSSIAN, "mc_samples": 4, **options})


def of(make, inputs, **options):
    """A prediction of a model that is made first, with a posterior around its weights."""
    return lambda: predict(make(), inputs, **options)


def squeezed():
    model = nn.Linear(3, 1)
    model.register_forward_hook(lambda module, inputs, output: output.squeeze())
    return model


def detached():
    return module_of(lambda self, x: self.layer(x).detach(), layer=nn.Linear(3, 1))


def logits():
    return module_of(lambda self, x: {"logits": self.layer(x)}, layer=nn.Linear(3, 1))


def linear():
    return nn.Linear(3, 1)


def normalised(**options):
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, **options))


STEPS = torch.randn(6, 20, 3)
NO_STATISTICS = "^batch_norm must be None for a model without batch norm statistics"
NO_TENSOR = r"^output must be given for a model that returns no tensor \(output=lambda out: .*\), got dict$"
TRANSPOSED = r"^output must have the [46] rows of the inputs .*, got shape \(20, 1\)$"
MODELS = [
    (of(lambda: normalised(), X, batch_norm=[]), "at least one batch, got an empty loader"),
    (of(linear, X, batch_norm=X), NO_STATISTICS),
    (of(lambda: normalised(track_running_stats=False), X, batch_norm=X), NO_STATISTICS),
    (lambda: ba.predictive.with_batch_norm(linear(), around(linear()), X), NO_STATISTICS),
    (
        lambda: ba.predictive.with_batch_norm(normalised(), nn.Linear(3, 1), X),
        "^posterior must be a posterior over weights, got Linear$",
    ),
    (
        of(detached, X, method="linearized"),
        RuntimeError,
        "^the model's output must be differentiable with respect to the random weights, got",
    ),
    *((of(logits, X, method=method), TypeError, NO_TENSOR) for method in ("monte_carlo", "linearized")),
    *(
        (of(lambda: Recurrent(batch_first=False), STEPS, method=method, batch_size=size), TRANSPOSED)
        for method in ("monte_carlo", "linearized", "mean")
        for size in (None, 4, 20)
    ),
    (of(squeezed, torch.randn(9, 3), batch_size=4), r"^output must have the 1 rows of the inputs .*, got shape \(\)$"),
    (
        of(lambda: nn.Sequential(nn.Flatten(0, 1), nn.Linear(3, 1)), torch.randn(6, 4, 3), method="moments"),
        r"^output must have the 6 rows .*, got shape \(24, 1\)$",
    ),
    (of(linear, [(X, X, X)]), r"^a batch must be inputs or a pair .*, got tuple of \['Tensor', 'Tensor', 'Tensor'\]$"),
    (of(linear, X[:2], output=torch.sum), r"^output must have the 2 rows .*, got shape \(\)$"),
]


@refusals(MODELS)
def test_models(call, error, message):
    assert_refused(call, error, message)


SWAPPED = {
    "predict": lambda q, net, x, options: ba.predict(q, net, x, **options),
    "elbo": lambda q, net, x, options: ba.elbo(q, net, x, x, prior=1.0, **options),
    "tune_posterior": lambda q, net, x, options: ba.tune_posterior(net, q, (x, x), **options),
    "laplace": lambda q, net, x, options: ba.laplace(q, (x, x), **options),
    "attach": lambda q, net, x, options: ba.Vadam(net.named_parameters(), num_data=1).attach(q),
    "applied": lambda q, net, x, options: q.applied(q).__enter__(),
    "match": lambda q, net, x, options: q.match(q),
    "squares": lambda q, net, x, options: ba.PerExampleSquares(q),
    "dropout": lambda q, net, x, options: ba.MCDropout(q),
    "swag": lambda q, net, x, options: ba.SWAG(q),
    "train": lambda q, net, x, options: ba.population.train([q], (x, x), epochs=1, batch_size=3, **options),
}


@pytest.mark.parametrize("name", SWAPPED)
def test_a_posterior_in_the_place_of_a_model(name):
    def call(net):
        return SWAPPED[name](posterior_of(net), net, draw(3, 2), {"likelihood": GAUSSIAN})

    assert_refused(call, ValueError, r"^model must be a torch.nn.Module, got DiagonalGaussian$", nn.Linear(2, 2))


def regression():
    return ba.predictive.RegressionPredictive(draw(3, 5), draw(3, 5, seed=1).exp())


def classification(rows):
    return ba.predictive.ClassificationPredictive(draw(4, rows, 3).log_softmax(-1))


def gaussian():
    return GaussianPredictive(draw(4, 3), torch.eye(3).double().expand(4, 3, 3), draw(3).exp())


def probit():
    return GaussianLogitsPredictive(draw(4, 3), draw(4, 3).exp(), ba.Categorical(), link="probit")


def transformed(functions=1, shape=(3,)):
    base = GaussianPredictive(draw(3), torch.ones(shape).double(), torch.ones(3).double())
    return TransformedPredictive(base, functions * [Log()])


JOINT = "^method must be 'monte_carlo' for the joint log"
PROBABILITIES = r"^probabilities must be in \(0, 1\), got "
PREDICTIVES = [
    (lambda: regression().log_prob(torch.zeros(5, 1)), r"^target must be of shape \(5,\), got \(5, 1\)$"),
    (lambda: regression().log_prob(7), "^target must be a tensor, got int$"),
    (lambda: regression().cdf(7), "^target must be a tensor, got int$"),
    (lambda: regression().quantile(1.0), PROBABILITIES + "1.0$"),
    (lambda: regression().quantile([0.5, math.nan]), PROBABILITIES + ".*nan"),
    (lambda: classification(5).log_prob([0, 1]), "^target must be a tensor, got list$"),
    (lambda: classification(5).log_prob(torch.zeros(5, 1)), r"^target must be of shape \(5,\), got \(5,"),
    (lambda: classification(2).log_prob(torch.tensor([0, 3])), r"^target must be in \[0, 3\), got 0 to 3$"),
    (lambda: classification(2).log_prob(torch.tensor([0.0, 1.7])), "^target must be integer class numbers,"),
    (
        lambda: from_outputs(draw(3, 2), ba.Bernoulli()).log_prob(torch.tensor([0.0, 1.5])),
        r"^target must be in \[0, 1\], got ",
    ),
    (lambda: gaussian().quantile(1.0), PROBABILITIES + "1.0$"),
    (lambda: gaussian().log_prob(draw(4, 1)), r"^target must be of shape \(4, 3\), got \(4, 1\)$"),
    (lambda: gaussian().joint_log_likelihood(draw(4, 3)), JOINT),
    (lambda: probit().mutual_information, "^link must be 'monte_carlo' for the mutual information, got 'probit'$"),
    (lambda: transformed().quantile(1.0), PROBABILITIES + "1.0$"),
    (lambda: transformed().log_prob(torch.ones(2)), r"^target must be of shape \(3,\), got \(2,\)$"),
    (lambda: transformed().joint_log_likelihood(torch.ones(3)), JOINT),
    (lambda: transformed(2), "^functions must be one for each of 1 outputs, got 2$"),
    (lambda: transformed(1, (3, 1, 1)), "^base must have epistemic variances, got covariances$"),
]


@refusals(PREDICTIVES)
def test_predictives(call, error, message):
    assert_refused(call, error, message)
