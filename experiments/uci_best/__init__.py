"""One recipe for nine UCI data sets, compared with the best published number of each data set."""

from experiments.uci_best.experiment import EXPERIMENT as EXPERIMENT
