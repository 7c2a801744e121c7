"""Training many small networks of one architecture at once, for ensembles, sweeps and cross-validation::

    models = population.initialize(lambda: nn.Sequential(nn.Linear(8, 50), nn.ReLU(), nn.Linear(50, 1)), seeds=range(9))
    nets = population.train(models, data, likelihood=ba.Gaussian(4.0), method="vadam", epochs=40, batch_size=32,
                            lr=0.01, mc_samples=10, prior_precision=[...])
    nets.posteriors[3], nets.predict(x)[3]

A list has one value per member.
"""

from bayesadam.curvature.perceptron import Perceptron
from bayesadam.modules.perceptrons import plain_layers
from bayesadam.optim.bbb import BayesByBackprop
from bayesadam.population.batches import Pair, order
from bayesadam.population.members import METHODS
from bayesadam.population.modules import initialize
from bayesadam.population.objective import Objective
from bayesadam.population.population import Population
from bayesadam.population.train import train

__all__ = [
    "METHODS",
    "BayesByBackprop",
    "Objective",
    "Pair",
    "Perceptron",
    "Population",
    "initialize",
    "order",
    "plain_layers",
    "train",
]
