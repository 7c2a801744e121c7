"""Kessler et al. 2018, Fig. 2: how many weights of a network can go."""

from experiments.mnist_pruning.experiment import EXPERIMENT as EXPERIMENT
