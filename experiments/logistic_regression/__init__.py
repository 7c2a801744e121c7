"""Bayesian logistic regression as in Khan et al. 2018, Fig. 2: what its three experiments share.

The model is ``p(y = 1 | x) = sigmoid(x'theta)``, its first weight the bias where there is one. Posteriors are
mean-field Gaussians; the exact optimum of their evidence lower bound (:mod:`.mf_exact`) is what they are compared with.
"""
