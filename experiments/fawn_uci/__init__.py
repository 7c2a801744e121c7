"""Bayer et al. 2015, Table 1: densities of regression targets on nine UCI data sets."""

from experiments.fawn_uci.experiment import EXPERIMENT as EXPERIMENT
