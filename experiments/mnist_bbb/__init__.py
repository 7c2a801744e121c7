"""Blundell et al. 2015, Table 1: MNIST, and predictions for images that are not digits."""

from experiments.mnist_bbb.experiment import EXPERIMENT as EXPERIMENT
