"""Khan et al. 2018, Fig. 2a: logistic regression with two weights, where the posterior can be seen."""

from experiments.logreg_toy.experiment import EXPERIMENT as EXPERIMENT
