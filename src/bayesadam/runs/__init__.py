"""Runs: a fit from a table to a folder with everything about it, and predictions from that folder."""

from bayesadam.runs.errors import RunError as RunError
from bayesadam.runs.fitting import Result as Result
from bayesadam.runs.fitting import fit as fit
from bayesadam.runs.folder import REPORT as REPORT
from bayesadam.runs.folder import Run as Run
from bayesadam.runs.folder import rewrite_report as rewrite_report
from bayesadam.runs.predicting import predict as predict
from bayesadam.runs.prepare import Prepared as Prepared
from bayesadam.runs.settings import Settings as Settings
from bayesadam.runs.watcher import Watcher as Watcher
