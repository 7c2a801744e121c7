"""What to make of the numbers."""

NOTES = """\
Ten of the published 90/10 splits (protein has five, all of them here), which are not the paper's own random ones;
errors are standard deviations over the splits, as in the paper. *Difference* is ours minus the paper's mean in standard
errors of the latter (its deviation over the root of 10); negative is better. *Reached* is a difference of at most 1.
FAWN-ROPD, FAWN-VI and FAWN-BERN have 50 hidden ReLU, one layer, minibatches of 128, and no validation set, as in the
paper, which does not say what follows; these settings are ours and the same for all sets:

* inputs and targets standardised by the training part; means N(0, 1/fan-in), standard deviations 0.05, noise 0.3;
* Adam with step size 0.01, by a cosine to 0 in the second half; 20,000 minibatches, 40,000 on naval, in place of
  "until the training loss converges"; two fifths of these for FAWN-VI and FAWN-BERN, to save time;
* the prior is one Gaussian for all weights, always the best one for them, in closed form;
* the noise is learned, one number per network, and nothing is stopped early.

FAWN-BERN is trained on the predictive density (ROPD's objective); the paper does not say which it took. Its scale is
shared by the weights of an output unit, and biases have no noise. The Gaussian process has a linear and a squared
exponential kernel with a length for every input, four starts, and is our own (its likelihood, gradient and predictions
agree with scikit-learn's to 8 digits), since scikit-learn's gradient takes five times as long on boston.

Why the RMSE of FAWN-ROPD is not what the network could have: its objective is the density of the targets, and the
weights' variance is a free description of their scatter, different at every input. So it is used for that: the learned
noise goes to zero (0.009 on boston, where targets have a standard deviation of 9), and the weights become all of the
predictive variance, against a part of it for FAWN-VI, whose objective punishes every bit of their variance. The mean
is a by-product: an error costs little where the variance beside it can grow. Hence a density on boston that is as good
as the paper's, and an RMSE of 3.5 there.

One consequence: sampling whole networks says nothing about the density of such a model. With a thousand samples on
boston the mixture has a test NLL of 777 nats per point, for noise of 0.009 around samples with a standard deviation
of 3. The table of samples therefore draws the first layer only and integrates the last one out, which is exact for
Gaussian weights; for Bernoulli weights the last layer's sum is still taken as Gaussian. FAWN-ROPD was trained on the
four largest sets before this check was written, and not again.
"""
