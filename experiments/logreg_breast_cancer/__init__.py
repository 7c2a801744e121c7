"""Khan et al. 2018, Fig. 2c: logistic regression, the size of Vadam's minibatch on breast cancer."""

from experiments.logreg_breast_cancer.experiment import EXPERIMENT as EXPERIMENT
