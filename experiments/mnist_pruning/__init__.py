"""Kessler et al. 2018, Fig. 2: the accuracy of a network after pruning its weights."""

from experiments.mnist_pruning.experiment import EXPERIMENT as EXPERIMENT
