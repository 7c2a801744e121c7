"""Calibration after training: the width of a posterior and the temperature of its predictions, found on held-out
data.
"""

from bayesadam.calibration.comparison import Candidate as Candidate
from bayesadam.calibration.comparison import Comparison as Comparison
from bayesadam.calibration.comparison import compare as compare
from bayesadam.calibration.search import least as least
from bayesadam.calibration.temperature import calibrate as calibrate
from bayesadam.calibration.tuning import PosteriorTuning as PosteriorTuning
from bayesadam.calibration.tuning import tune_posterior as tune_posterior
