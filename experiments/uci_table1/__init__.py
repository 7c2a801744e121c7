"""Khan et al. 2018, Table 1 and Fig. 4: regression on eight UCI data sets."""

from experiments.uci_table1.experiment import EXPERIMENT as EXPERIMENT
