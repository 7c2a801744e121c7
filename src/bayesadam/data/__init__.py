"""Public data sets of the experiments: ``load("uci/boston", split=3)``; ``names()`` lists them all."""

from bayesadam.data.dataset import Dataset as Dataset
from bayesadam.data.dataset import Standardizer as Standardizer
from bayesadam.data.loading import describe as describe
from bayesadam.data.loading import load as load
from bayesadam.data.loading import names as names
