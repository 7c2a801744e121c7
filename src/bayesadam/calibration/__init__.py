"""Calibration after training: the width of a posterior and the temperature of its predictions, found on held-out
data.
"""

from bayesadam.calibration.temperature import calibrate as calibrate
from bayesadam.calibration.tuning import PosteriorTuning as PosteriorTuning
from bayesadam.calibration.tuning import tune_posterior as tune_posterior
