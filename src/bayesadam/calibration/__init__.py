"""Calibration after training: the width of a posterior and the temperature of its predictions, found on held-out
data.
"""

from bayesadam.calibration.comparison import Candidate, Comparison, compare
from bayesadam.calibration.search import least
from bayesadam.calibration.temperature import calibrate
from bayesadam.calibration.tuning import PosteriorTuning, tune_posterior

__all__ = ["Candidate", "Comparison", "PosteriorTuning", "calibrate", "compare", "least", "tune_posterior"]
