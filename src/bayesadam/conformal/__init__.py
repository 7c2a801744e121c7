"""Conformal prediction: intervals and sets of classes whose coverage is guaranteed, whatever is wrong with the model.

The functions take predictions of any model: predictive distributions of :func:`bayesadam.predict` or of an estimator,
or plain tensors. All guarantees hold for rows that are *exchangeable*, such as rows drawn at random from one source,
and on average: over the rows that calibrate and over new rows. They do not say that every group of rows is covered
equally often, and several targets of a row are covered one by one, not jointly.

* :func:`split_interval` needs rows that the model was not trained on, and covers a new target with a probability of at
  least ``coverage``.
* :func:`adaptive_interval` also needs predicted standard deviations; its guarantee is the same.
* :func:`cross_interval` needs models that each left out some rows. At least ``2 coverage - 1`` is guaranteed for the
  jackknife+, a little less for larger folds; usually it is about ``coverage``.
* :func:`prediction_set` and :func:`cross_prediction_set` make sets of classes, with the guarantees of the first and of
  the last.
"""

from bayesadam.conformal.cross import cross_interval as cross_interval
from bayesadam.conformal.quantile import conformal_quantile as conformal_quantile
from bayesadam.conformal.sets import cross_prediction_set as cross_prediction_set
from bayesadam.conformal.sets import prediction_set as prediction_set
from bayesadam.conformal.split import adaptive_interval as adaptive_interval
from bayesadam.conformal.split import split_interval as split_interval
