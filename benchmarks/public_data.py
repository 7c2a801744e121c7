"""The public data sets of the experiments, for benchmarks, which are run as scripts."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # the folder of the experiments
from experiments.data import load as load
