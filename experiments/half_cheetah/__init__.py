"""Khan et al. 2018, Figs. 3 (right), 5 and 6: exploration in the space of parameters, DDPG on HalfCheetah."""

from experiments.half_cheetah.experiment import EXPERIMENT as EXPERIMENT
