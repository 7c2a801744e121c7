"""Published tables and figures, made again: our number beside the paper's.

    python -m experiments list
    python -m experiments run NAME       # continues where it was stopped; ends with the report
    python -m experiments report NAME    # tables and figures from the committed results

An experiment is a sub-package with an ``EXPERIMENT`` and one line in ``registry.py``. It cuts its work into units, each
of which gives one JSON file, ``results/KEY.json`` in its folder. Modules with an ``EXPERIMENT`` import what is slow to
import, torch for one, inside the functions that need it, so that ``list`` is quick.
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
