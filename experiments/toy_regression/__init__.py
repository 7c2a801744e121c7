"""Kessler et al. 2018, Fig. 1: what the methods say where there are no data."""

from experiments.toy_regression.experiment import EXPERIMENT as EXPERIMENT
