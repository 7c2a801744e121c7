"""Ragged problems: members have data of different sizes."""

import math

import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from posterior.kinds import draw

F32, F64 = torch.float32, torch.float64
NAN = math.nan
RAGGED = (13, 7, 3, 20)  # in batches of 5: of 3, 2, 1 and 4 minibatches, the last ones of 3, 2, 3 and 5
BATCH = 5


def regression(sizes=RAGGED, outputs=2, dtype=F64, seed=0):
    """A pair of each size; the targets follow the inputs, so that there is something to learn."""
    pairs = []
    for i, size in enumerate(sizes):
        x = draw(size, 3, seed=seed + 2 * i, dtype=dtype)
        noise = draw(size, outputs, seed=seed + 2 * i + 1, dtype=dtype)
        pairs.append((x, x.sum(1, keepdim=True).sin() + 0.5 * noise))
    return pairs


def mlp(outputs=2, dtype=F64):
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs)).to(dtype)


def models_of(make=mlp, count=4):
    return population.initialize(make, seeds=range(count))


def noise_of(*precisions, dtype=F64, learned=False):
    """A Gaussian likelihood in this dtype; one precision, or one per output."""
    value = precisions[0] if len(precisions) == 1 else torch.tensor(precisions)
    return ba.Gaussian(value, learned=learned).to(dtype)


def option(value, member):
    return value[member] if isinstance(value, list) else value


def some_frozen(*members):
    """Models of which these have a first layer that is not trained."""
    models = models_of()
    for member in members:
        models[member][0].requires_grad_(False)
    return models
