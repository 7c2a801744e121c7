"""Every refusal of ``bayesadam.likelihoods``, once: a call, and words of its message."""

import math

import torch
from torch import distributions, nn

import bayesadam as ba
from bayesadam.likelihoods import (
    Gamma,
    Likelihood,
    LogNormal,
    MissingCapabilityError,
    NegativeBinomial,
    Poisson,
    StudentT,
    check_likelihood,
)
from likelihoods.models import ByDistribution, Exponential, Laplace, Neighbours, draw
from refusals import assert_refused, refusals


class Nothing(Likelihood):
    def check(self, output, target): ...


class Count(Likelihood):
    """A distribution without a distribution function."""

    def distribution(self, output):
        return distributions.Poisson(output.exp())


Z, Y = torch.zeros(3, 2), torch.ones(3, 2)
CLASSES = torch.zeros(5, 3)
SAMPLES = CLASSES.expand(4, 5, 3)


def mixture(likelihood):
    return ba.predictive.MixturePredictive(draw(5, 4, 2), likelihood)


def numbers(*values):
    return torch.tensor(values)


PARAMETERS = [
    (ba.Gaussian, "noise_precision"),
    (NegativeBinomial, "dispersion"),
    (StudentT, "degrees"),
    (StudentT, "scale"),
    (LogNormal, "noise_precision"),
    (Gamma, "shape"),
]


VALUES = {
    # targets of another shape than the outputs
    "gaussian: rows": (lambda: ba.Gaussian().nll(Z, Y[:2]), "target must be of the output's shape (3, 2), got (2, 2)"),
    "gaussian: one axis": (lambda: ba.Gaussian().nll(Z, Y[:, 0]), "the output's shape (3, 2), got (3,)"),
    "gaussian: two axes": (lambda: ba.Gaussian().nll(Z[:, 0], Y), "the output's shape (3,), got (3, 2)"),
    "precisions": (lambda: ba.Gaussian([1.0, 2.0, 3.0]).nll(Z, Y), "must be one number or one per output, got (3,)"),
    "network's noise": (lambda: ba.HeteroscedasticGaussian().nll(CLASSES, Y), "must have mean and log variance along"),
    "network's noise: scalar": (lambda: ba.HeteroscedasticGaussian().nll(torch.tensor(1.0), Y), "and log variance"),
    "network's noise: target": (lambda: ba.HeteroscedasticGaussian().nll(Z, Y[:, 0]), "shape (3, 1), got (3,)"),
    "bernoulli: shape": (lambda: ba.Bernoulli().nll(Z, Y[:, 0]), "target must be of the output's shape (3, 2)"),
    "poisson: shape": (lambda: Poisson().nll(Z, Y[:, 0]), "the output's shape (3, 2), got (3,)"),
    "own: shape": (lambda: Exponential().nll(Z, Y[:, 0]), "the output's shape (3, 2), got (3,)"),
    "mixture: shape": (lambda: mixture(Exponential()).log_prob(Y), "the output's shape (4, 2), got (3, 2)"),
    "classes: shape": (lambda: ba.Categorical().nll(CLASSES, torch.zeros(5, 1).long()), "without classes (5,), got"),
    "classes: one-hot": (lambda: ba.Categorical().nll(CLASSES, torch.zeros(5, 3).long()), "without classes (5,), got"),
    # targets that cannot occur
    "gaussian: axes": (lambda: ba.Gaussian().nll(Z, Y[0]), "that count data points, got the shape (2,) (log_prob"),
    "gaussian: samples": (lambda: ba.Gaussian().nll(Z.expand(4, 3, 2), Y), "output (4, 3, 2) that count data points"),
    "bernoulli: axes": (lambda: ba.Bernoulli().nll(Z, numbers(0, 1)), "must have all axes of the output (3, 2)"),
    "classes: axes": (lambda: ba.Categorical().nll(SAMPLES, numbers(0, 1, 2, 1, 0)), "got the shape (5,) (log_prob"),
    "classes: tempered": (
        lambda: ba.Categorical().tempered(2.0).nll(SAMPLES, CLASSES[:, 0].long()),
        "all axes of the output (4, 5, 3)",
    ),
    "above 1": (lambda: ba.Bernoulli().nll(Z[0], numbers(0, 2)), "target must be in [0, 1], got 2.0"),
    "below 0": (lambda: ba.Bernoulli().nll(Z[0], numbers(0.5, -0.5)), "target must be in [0, 1], got -0.5"),
    "class 3": (lambda: ba.Categorical().nll(CLASSES, numbers(0, 1, 2, 3, 0)), "target must be in [0, 3), got 0 to 3"),
    "class -99": (lambda: ba.Categorical().nll(CLASSES, numbers(0, 1, -99, 2, 0)), "in [0, 3), got -99 to 2"),
    "class 1.0": (lambda: ba.Categorical().nll(CLASSES, torch.zeros(5)), "integer class numbers, got dtype torch"),
    "half a count": (lambda: Poisson().nll(Z[0], numbers(1.0, 2.5)), "must be whole and not negative, got 2.5"),
    "negative count": (lambda: Poisson().nll(Z[0], numbers(1, -2)), "must be whole and not negative, got -2"),
    "no count": (lambda: NegativeBinomial().nll(Z[0], numbers(1.0, math.nan)), "whole and not negative, got nan"),
    "infinite count": (lambda: NegativeBinomial().nll(Z[0], numbers(1.0, math.inf)), "whole and not negative, got inf"),
    "no amount": (lambda: Gamma().nll(Z[0], numbers(1.0, 0.0)), "target must be positive and finite, got 0.0"),
    "negative amount": (lambda: LogNormal().nll(Z[0], numbers(1.0, -3.0)), "must be positive and finite, got -3.0"),
    "nan": (lambda: Gamma().nll(Z[0], numbers(math.nan, 1.0)), "target must be positive and finite, got nan"),
    "support": (lambda: ByDistribution().nll(Z, -2.5 * Y), "target must be in the support of ByDistribution, Greater"),
    # others
    "no likelihood": (lambda: check_likelihood(nn.MSELoss()), "be a bayesadam.likelihoods.Likelihood, got MSELoss"),
    "probability": (lambda: mixture(Poisson()).quantile([0.5, 1.0]), "probabilities must be in (0, 1), got "),
    "temperature": (lambda: ba.Categorical().tempered(0.0), "temperature must be positive and finite, got 0.0"),
    "temperature of noise": (lambda: ba.Gaussian().tempered(math.nan), "temperature must be positive and finite"),
    "temperature of t": (lambda: ba.likelihoods.StudentT().tempered(0.0), "temperature must be positive and finite"),
}


MISSING = {
    "distribution": lambda: Laplace().distribution(Z),
    "moments, distribution or sample": lambda: Laplace().moments(Z),
    "sample or distribution": lambda: Laplace().sample(Z),
    "cdf or distribution": lambda: Laplace().cdf(Z, Y),
    "log_probs": lambda: Laplace().log_probs(Z),
    "mean_and_log_variance": lambda: Laplace().mean_and_log_variance(Z),
    "under_gaussian": lambda: Laplace().under_gaussian(Z, Y),
    "element_log_density": lambda: Laplace().element_log_density(Z, Y),
    "rescaled": lambda: Gamma().rescaled(torch.tensor(2.0)),
    "tempered": lambda: Poisson().tempered(2.0),
    "cdf, got Count": lambda: Count().cdf(Z, Y),
    "expected_log_density or element_log_density": lambda: Neighbours().expected_log_density(Z, Y, Z),
    "log_expected_density or element_log_density": lambda: Neighbours().log_expected_density(Z, Y, Z),
    "log_density, element_log_density or distribution, got Nothing": Nothing,
    "moments, distr": lambda: mixture(Exponential()).variance,
    "cdf or distribution, got": lambda: mixture(Exponential()).quantile(0.5),
    "sample or distribution, got": lambda: mixture(Exponential()).sample(),
    "rescaled, got": lambda: mixture(Exponential()).rescale(0.0, 2.0),
}


OUT_OF_RANGE = [
    (
        lambda kind=kind, name=name, value=value: kind(**{name: value}),
        f"{name} must be positive and finite, got {value!r}",
    )
    for kind, name in PARAMETERS
    for value in (0.0, math.nan, math.inf, [1.0, -2.0], "1")
]
NO_CAPABILITY = [(call, MissingCapabilityError, f"likelihood must define {name}") for name, call in MISSING.items()]


@refusals([*OUT_OF_RANGE, *VALUES.values(), *NO_CAPABILITY], literal=True)
def test_refusals(call, error, message):
    assert_refused(call, error, message)
    assert issubclass(error, ValueError)
