"""Public data sets of the experiments: ``load("uci/boston", split=3)``; ``names()`` lists them all."""

from experiments.data.dataset import Dataset as Dataset
from experiments.data.dataset import Standardizer as Standardizer
from experiments.data.loading import describe as describe
from experiments.data.loading import load as load
from experiments.data.loading import names as names
