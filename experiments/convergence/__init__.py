"""Khan et al. 2018, Fig. 3: how fast the methods learn, a small network on Australian credit."""

from experiments.convergence.experiment import EXPERIMENT as EXPERIMENT
