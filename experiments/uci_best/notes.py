"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
*Ours* is `BayesianMLPRegressor()` with its defaults on all nine data sets, trained on each published training split (20
of them, five for protein) and scored on its test split; whatever the estimator chooses, it chooses from the training
split. Errors are standard errors over the splits. *Better by* is the difference in standard errors, negative where the
published number is better.

Processor seconds of `bayesadam` were measured on a machine with other work, on which they are 1.3 to 2.3 times as high
as without; those of the other estimators were measured earlier.

What is comparable: the RMSE is the same quantity everywhere. The log-likelihoods of Gal's repository, of PBP and of MC
dropout in Khan et al. 2018 (their Table 1, first column) are pointwise, as ours; those of BBVI and Vadam in that table
are joint log-likelihoods of all test rows divided by their number and are left out. Gal's runs ("grid 2018", 40 to
4,000 epochs) use the same splits. PBP's splits are its own, of the same sizes. VBLL's numbers are from its own splits,
and the error is not known, so that only ours enters the comparison. An RMSE that its source has rounded to 0.00 is left
out (naval).

The other estimators were run here on the same splits: a deep ensemble (five networks with 50 hidden ReLU that give the
mean and, by a softplus, the variance, whose mixture is taken as one Gaussian; Adam at 0.01 for half of the training,
then along half a cosine to 0, which gains 1.7 nats on naval and loses 1.1 on boston, where the ensemble overfits), a
Gaussian process with a length for every input (up to 2,000 rows), NGBoost with early stopping by a tenth of the
training rows, and CatBoost's Gaussian with uncertainty, with its defaults and with the best of six settings of depth
and rate by the same tenth.

The regressions beside the networks change most on naval, whose targets are smooth functions without noise (without them
its log-likelihood is 6.3, and its RMSE five times as high), and on concrete.

On power all of these estimators but the Gaussian process, which was not run there, have a better log-likelihood than
ours, from 0.007 nats (deep ensemble) to 0.10 (CatBoost). On the other eight sets ours is ahead of the deep ensemble,
NGBoost and CatBoost; its lead over NGBoost and CatBoost on wine, and over CatBoost with its defaults on energy, is less
than two standard errors. CatBoost has a lower RMSE than ours on power and protein, NGBoost on power, the deep ensemble
on protein. The Gaussian process is behind in log-likelihood on four of its five sets, and has the lower RMSE on yacht
and wine. On wine it is ahead by 1.8 nats per row for a reason that helps nobody with a new wine: 27% of the test rows,
features and grade, are in the training split too, and the process learns almost no noise and returns that grade. On the
first split it has 6.0 nats on these rows, with errors of 1e-6, and -0.85 with an RMSE of 0.67 on all other rows.
"""
