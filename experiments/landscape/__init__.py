"""Khan et al. 2018, Fig. 7: variational optimisation in two dimensions with many local minima."""

from experiments.landscape.experiment import EXPERIMENT as EXPERIMENT
