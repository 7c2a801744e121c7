"""Bayesian logistic regression as in Khan et al. 2018, Fig. 2: the shared code of its three experiments.

The model is ``p(y = 1 | x) = sigmoid(x'theta)``. If it has a bias, this is the first weight. Posteriors are mean-field
Gaussians, which are compared with the exact optimum of their evidence lower bound (:mod:`.mf_exact`).
"""
