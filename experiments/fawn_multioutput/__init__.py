"""Bayer et al. 2015, Table 2: several targets together, with and without their covariance."""

from experiments.fawn_multioutput.experiment import EXPERIMENT as EXPERIMENT
