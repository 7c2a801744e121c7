"""What is refused: every kind of mistake once, with words of the message; nothing has changed after it."""

import copy
import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.optim import vadam
from modules import module_of
from population.conftest import exactly, train
from population.problems import F64, RAGGED, mlp, models_of, noise_of, regression, some_frozen
from population.test_objectives import Lasso


def pair_of_outputs():
    return module_of(lambda self, x: (self.net(x), x), net=mlp())


def counting():
    def forward(self, x):
        self.calls += 1
        return self.net(x)

    return module_of(forward, net=mlp(), calls=torch.zeros(()))


class Means(Lasso):
    def losses(self, model, x, y):
        return super().losses(model, x, y).mean()


class Vector(Lasso):
    def penalty(self, model):
        return torch.ones(2)


def weights(value):
    """Of the data points of every member, all equal."""
    return [torch.full((size,), value) for size in RAGGED]


def pairs(*shapes):
    return tuple(torch.zeros(*shape, dtype=F64) for shape in shapes)


def objective(value, likelihood=None):
    return {"objective": value, "likelihood": likelihood}


NORMALISED = models_of(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(F64))
OTHER_WEIGHTS = ba.DiagonalGaussian({"a": torch.zeros(1)}, {"a": torch.ones(1)})
NONFINITE = "finite, not negative and not all 0"


def patched():
    """A layer with another forward, set on the module."""
    model = mlp()
    model[0].forward = lambda x, layer=model[0]: nn.functional.linear(x, 3.0 * layer.weight, layer.bias)
    return model


class OwnLoss(ba.Gaussian):
    def nll(self, output, target):
        return super().nll(output, target) + output.square().mean()


class Ignoring(ba.Gaussian):
    def counted(self, target):
        return target[..., 0] > 0


VALUES = [
    # the run
    ({"models": []}, "models must have at least one network, got none"),
    ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
    ({"batch_size": 1.5}, "batch_size must be a whole number"),
    ({"patience": 0, "validation": regression((4,))[0]}, "patience must be a whole number"),
    ({"chunk": -1}, "chunk must be a whole number"),
    ({"nonfinite": "ignore"}, "nonfinite must be 'raise' or 'skip', got 'ignore'"),
    ({"patience": 3}, "validation must be given with patience=3, got None"),
    ({"steps_per_epoch": 0}, "steps_per_epoch must be a whole number"),
    # data
    ({"data": regression((4, 5, 6))}, "data must be one or one for each of 4 members, got 3"),
    ({"validation": regression((4, 5, 6))}, "validation must be one or one for each of 4 members, got 3"),
    ({"data": pairs((4, 3), (3, 2))}, "data of member 0 must have data points, each with a target, got shapes"),
    ({"validation": pairs((4, 3), (3, 2))}, "validation of member 0 must have data points, each with a target"),
    ({"data": pairs((0, 3), (0, 2))}, "data of member 0 must have data points"),
    ({"data": [*regression((4, 4, 4)), pairs((4, 2), (4, 2))]}, "data of member 3 must have data points like"),
    ({"data": [*regression((4,)), *regression((5,), 1), *regression((6, 7))]}, "data of member 1 must have data"),
    ({"validation": regression((5,), 1)[0]}, "validation of member 0: target must be of the output's shape"),
    ({"data": (torch.zeros(5, 3, dtype=F64), torch.tensor([1, 1, 1, 2, 1])), "likelihood": ba.Categorical()},
     "data of member 0: target must be in [0, 2), got 1 to 2"),
    ({"sample_weight": [torch.ones(4)] * 4}, "sample_weight of member 0 must be of shape (13,), got (4,)"),
    ({"sample_weight": weights(-1.0)}, NONFINITE),
    ({"sample_weight": weights(0.0)}, NONFINITE),
    ({"sample_weight": weights(math.nan)}, NONFINITE),
    ({"sample_weight": [torch.ones(13)] * 3}, "sample_weight must be one or one for each of 4 members, got 3"),
    ({"sample_weight": torch.ones(13), "data": regression((13,))[0], "method": "vogn"},
     "sample_weight must be None for a method of squared gradients"),
    # models
    ({"models": models_of(lambda: mlp(dtype=torch.bfloat16))}, "float32 or float64, got bfloat16"),
    ({"models": models_of(lambda: nn.Sequential(nn.Linear(3, 6), nn.Linear(6, 2).double()))}, "float32 and float64"),
    ({"models": [*models_of(count=3), nn.Sequential(mlp())]}, "models must be of one architecture, got another one at "
     "position 3"),
    ({"models": some_frozen(2)}, "models must be of one architecture, got another one at position 2"),
    ({"models": [model.requires_grad_(False) for model in models_of()]}, "models must have trainable parameters"),
    ({"models": NORMALISED}, "models must not have batch normalisation in training mode"),
    ({"models": models_of(lambda: nn.Sequential(nn.Linear(3, 2), nn.RNNCell(2, 2)).to(F64))},
     "models must not have recurrent layers, which vmap cannot map over (use train_ensemble), got '1'"),
    ({"models": models_of(lambda: nn.Embedding(3, 2, max_norm=1.0).to(F64))}, "max_norm of the embedding '' "),
    ({"models": models_of(counting)}, "models must not change their buffers in a forward pass"),
    ({"models": models_of(patched)}, "models must have the forward of their class, got one that was set on the module"),
    # likelihoods and objectives
    ({"likelihood": OwnLoss(4.0)}, "likelihood must not define nll where many networks are trained at once"),
    ({"likelihood": Ignoring(4.0)}, "likelihood must not define counted where many networks are trained at once"),
    ({"likelihood": [noise_of(1.0)] * 2}, "likelihood must be one or one for each of 4 members, got 2"),
    ({"likelihood": [noise_of(1.0)] * 3 + [noise_of(1.0, 2.0)]}, "likelihood must be of one kind for all members"),
    ({"likelihood": nn.MSELoss()}, "likelihood must be a bayesadam.likelihoods.Likelihood, got MSELoss()"),
    (objective(ba.Gaussian(4.0)), "objective must be a population.Objective, got Gaussian"),
    (objective([Lasso(0.1)] * 3), "objective must be one or one for each of 4 members, got 3"),
    (objective([Lasso(0.1)] * 3 + [Lasso(0.2)]), "objective must be of one kind for all members"),
    ({**objective(Lasso(0.1)), "validation": regression()}, "validation must be None with an objective"),
    (objective(None), "likelihood must be given, or objective in its place, got None and None"),
    (objective(Lasso(0.1), ba.Gaussian(4.0)), "likelihood must be given, or objective in its place, got Gaussian"),
    (objective(Means(0.1)), "losses of the objective must be of shape (2,) for 2 data points, got ()"),
    (objective(Vector(0.1)), "penalty of the objective must be one number, got shape (2,)"),
    # options of the methods
    ({"prior_precision": [1.0, 2.0, 3.0]}, "prior_precision must have one value for each of 4 members, got 3"),
    ({"seed": [1, 2]}, "seed must have one value for each of 4 members, got 2"),
    ({"seed": -1}, "seed must be an integer in [0, 2**64), got -1"),
    ({"lr": -1}, "lr must be a number or a 1-element tensor, finite and at least 0, got -1"),
    ({"prior_precision": [1.0, 1.0, 0.0, 1.0]}, "prior_precision must be a positive, finite number, got 0.0"),
    ({"prior_precision": [1.0, 1.0, "init", 1.0]}, "prior_precision must be a positive, finite number, got 'init'"),
    ({"betas": (0.9, 1.0)}, "betas must be a pair of numbers in [0, 1), got (0.9, 1.0)"),
    ({"mc_samples": 3, "antithetic": True}, "mc_samples must be even when antithetic=True, got 3"),
    ({"mc_samples": [1, 2, 1, 1]}, "mc_samples must be the same for all members, got different values"),
    ({"method": "ivon", "rescale_lr": [True, False, True, True]}, "rescale_lr must be the same for all members"),
    ({"method": "bbb", "eps": [0.1, math.inf, 0.1, 0.1]}, "eps must be a finite number of at least 0, got inf"),
    ({"method": "bbb", "temperature": 1.5}, "temperature must be in [0, 1], got 1.5"),
    ({"method": "von", "hessian": "hutchinson"}, "hessian must be one of ('reparameterized', 'exact', "),
    ({"method": "ngvi", "correction": "backtracking"}, "correction must be one of ('elementwise', None)"),
    ({"method": "von", "correction": ["elementwise"] * 3 + [None]}, "correction must be the same for all members"),
    ({"method": "adam", "prior": 2.0}, "prior must be a DiagonalGaussian with positive variances"),
    ({"method": "adam", "prior": ba.DiagonalGaussian.point_mass(mlp())}, "prior must be a DiagonalGaussian with"),
    ({"method": "adam", "prior": OTHER_WEIGHTS}, "posterior"),
    *(({"method": method}, "method must be one of ")
      for method in ("sgd", None, torch.optim.Adam, ba.optim.PerturbedOptimizer, vadam.VadamRule())),
]  # fmt: skip
TYPES = [
    ({"maximize": True}, "maximize must not be given to a population of 'vadam', got True"),
    ({"method": ba.Vadam, "maximize": True}, "maximize must not be given to a population of 'Vadam', got True"),
    ({"method": "adam", "beta_schedule": abs}, "beta_schedule must not be given to a population of 'adam'"),
    ({"extra": None}, "extra must be an option of Vadam"),
    ({"method": "bbb", "weight_decay": 0.1}, "weight_decay"),
    ({"method": "vogn", "curvature": None}, "curvature must not be given to a population of 'vogn', got None"),
    ({"method": "vadagrad", "prior_precision": 1.0}, "prior_precision must be an option of VadaGrad"),
    ({"models": models_of(pair_of_outputs)}, "models must return a tensor, got tuple"),
]


@pytest.mark.parametrize(
    ("error", "changes", "words"), [*((ValueError, *case) for case in VALUES), *((TypeError, *case) for case in TYPES)]
)
def test_training(error, changes, words):
    arguments = {"models": models_of(), "data": regression(), "likelihood": noise_of(4.0), "epochs": 1, **changes}
    before = [copy.deepcopy(model.state_dict()) for model in arguments["models"]]
    with pytest.raises(error) as raised:
        train(**arguments)
    assert words in str(raised.value)
    after = [model.state_dict() for model in arguments["models"]]
    torch.testing.assert_close(after, before, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "laplace"}, "method must be 'monte_carlo' or 'mean', got 'laplace'"),
        ({"mc_samples": 0}, "mc_samples must be at least 1, got 0"),
        ({"x": [torch.zeros(2, 3)] * 3}, "x must be one tensor or one for each of 4 members, got 3"),
    ],
)
def test_predictions(arguments, message):
    nets = train(models_of(), regression(), noise_of(4.0), epochs=1)
    with pytest.raises(ValueError, match=exactly(message)):
        nets.predict(**{"x": torch.zeros(2, 3, dtype=F64), **arguments})


def test_predictions_need_a_likelihood():
    nets = train(models_of(), regression(), None, objective=Lasso(0.1), epochs=1)
    with pytest.raises(ValueError, match=r"^likelihood must be given to train\(\) to predict, got the objective Lasso"):
        nets.predict(torch.zeros(3, 3, dtype=F64))
