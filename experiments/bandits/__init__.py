"""Kessler et al. 2018, Table 1: contextual bandits, and the wheel of Riquelme et al. 2018."""

from experiments.bandits.experiment import EXPERIMENT as EXPERIMENT
