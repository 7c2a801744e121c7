"""Blundell et al. 2015, Table 1: MNIST, and what the networks make of images that are no digits."""

from experiments.mnist_bbb.experiment import EXPERIMENT as EXPERIMENT
