"""Reproductions of published tables and figures, with our numbers beside those of the paper.

    python -m experiments list
    python -m experiments run NAME       # resumes a stopped run; writes the report at the end
    python -m experiments report NAME    # tables and figures from the committed results

An experiment is a sub-package with an ``EXPERIMENT`` and one line in ``registry.py``. Its work is divided into units,
each of which writes one JSON file, ``results/KEY.json`` in the folder of the experiment. Modules with an ``EXPERIMENT``
import slow packages such as torch inside the functions that need them, so that ``list`` is fast.
"""

from experiments.experiment import Context as Context
from experiments.experiment import Experiment as Experiment
from experiments.experiment import Progress as Progress
from experiments.experiment import Report as Report
from experiments.experiment import Unit as Unit
from experiments.files import replacing as replacing
from experiments.results import Result as Result
from experiments.tables import Number as Number
from experiments.tables import Published as Published
from experiments.tables import Table as Table
from experiments.tables import published as published
