"""The commands of ``bayesadam``."""

from bayesadam.commands import demo as demo
from bayesadam.commands import fit as fit
from bayesadam.commands import methods as methods
from bayesadam.commands import predict as predict
from bayesadam.commands import report as report
from bayesadam.commands.app import app as app
