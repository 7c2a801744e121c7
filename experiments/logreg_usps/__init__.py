"""Khan et al. 2018, Fig. 2b: logistic regression, USPS 3 against 5."""

from experiments.logreg_usps.experiment import EXPERIMENT as EXPERIMENT
