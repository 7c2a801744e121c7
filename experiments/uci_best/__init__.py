"""One recipe for nine UCI data sets, beside the best published number of each."""

from experiments.uci_best.experiment import EXPERIMENT as EXPERIMENT
