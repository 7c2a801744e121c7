"""Bayer et al. 2015, section 3.2.1: are the outputs of a network with random weights Gaussian?"""

from experiments.fawn_histogram.experiment import EXPERIMENT as EXPERIMENT
