"""Conformal prediction: intervals and sets of classes with guaranteed coverage, even if the model is wrong.

The functions take predictions of any model: predictive distributions of :func:`bayesadam.predict` or of an estimator,
or plain tensors. All guarantees hold for rows that are *exchangeable*, such as rows drawn at random from one source,
and on average over the calibration rows and the new rows. They do not imply that every group of rows is covered equally
often. If a row has several targets, each of them is covered separately, not all of them jointly.

* :func:`split_interval` needs rows that the model was not trained on, and covers a new target with a probability of at
  least ``coverage``.
* :func:`adaptive_interval` also needs predicted standard deviations; its guarantee is the same. *
:func:`cross_interval` needs models that each left out some rows. A coverage of at least ``2 coverage - 1`` is
guaranteed for the jackknife+, and slightly less for larger folds; usually it is about ``coverage``. *
:func:`prediction_set` and :func:`cross_prediction_set` return sets of classes, with the guarantees of
:func:`split_interval` and of :func:`cross_interval`.
"""

from bayesadam.conformal.cross import cross_interval as cross_interval
from bayesadam.conformal.quantile import conformal_quantile as conformal_quantile
from bayesadam.conformal.sets import cross_prediction_set as cross_prediction_set
from bayesadam.conformal.sets import prediction_set as prediction_set
from bayesadam.conformal.split import adaptive_interval as adaptive_interval
from bayesadam.conformal.split import split_interval as split_interval
