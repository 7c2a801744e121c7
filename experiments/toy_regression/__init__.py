"""Kessler et al. 2018, Fig. 1: the predictions of the methods away from the data."""

from experiments.toy_regression.experiment import EXPERIMENT as EXPERIMENT
