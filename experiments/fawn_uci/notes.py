"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
Ten of the published 90/10 splits (protein has five, all of them here), which are not the paper's own random ones;
errors are standard deviations over the splits, as in the paper. *Difference* is ours minus the paper's mean in standard
errors of the latter (its deviation over the root of 10); negative is better. *Reached* is a difference of at most 1.
FAWN-ROPD, FAWN-VI and FAWN-BERN have 50 hidden ReLU, one layer, minibatches of 128, and no validation set, as in the
paper. The paper does not give the following settings, which are ours and the same for all sets:

* inputs and targets standardised by the training part; means N(0, 1/fan-in), standard deviations 0.05, noise 0.3;
* Adam with step size 0.01, by a cosine to 0 in the second half; 20,000 minibatches, 40,000 on naval, in place of
  "until the training loss converges"; two fifths of these for FAWN-VI and FAWN-BERN, to save time;
* the prior is one Gaussian for all weights, always the best one for them, in closed form;
* the noise is learned, one number per network, and no training is stopped early.

FAWN-BERN is trained on the predictive density (ROPD's objective); the paper does not say which objective it used. Its
scale is shared by the weights of an output unit, or of an input unit; biases have no noise. The Gaussian process has a
linear and a squared exponential kernel with a length for every input, four starts, and is our own (its likelihood,
gradient and predictions agree with scikit-learn's to 8 digits), since scikit-learn's gradient takes five times as long
on boston.

Why FAWN-BERN misses the paper with a scale per output unit: all weights of a scale have its sign, so that the last
layer adds up hidden units with one sign, each of which has a mean that is convex in the inputs. The mean of such a
network is convex or concave, whatever its weights are. With a scale per input unit each hidden unit is added with a
sign of its own. A probe on the first three splits, with 3,000 minibatches (standard deviations in brackets):

| scale, objective, start | concrete | energy | kin8nm | yacht |
| --- | ---: | ---: | ---: | ---: |
| the paper | 3.31 (0.11) | 2.10 (0.08) | -0.60 (0.02) | 3.20 (0.19) |
| per output, VI, matched | 3.85 (0.11) | 2.72 (0.09) | -0.05 (0.06) | 3.45 (0.54) |
| per layer, ROPD, matched | | 2.29 (0.11) | | 1.70 (1.55) |
| per input, VI, matched | 3.42 (0.05) | 2.45 (0.04) | -0.23 (0.02) | 1.35 (0.13) |
| per input, ROPD, matched | 3.28 (0.04) | 2.33 (0.88) | -0.46 (0.02) | 0.46 (0.80) |
| per input, ROPD, N(0, 0.2^2) | 3.26 (0.10) | 2.13 (0.37) | -0.49 (0.08) | |
| the same, 8,000 minibatches | | | -0.62 (0.10) | |
| the same, 3,000, five times the rate for logits | | | -0.59 (0.10) | |
| one per weight, ROPD, matched | | | -1.13 (0.00) | |

*Matched* starts have means of the size of ordinary weights; N(0, 0.2^2) is the paper's sentence on its
initialisation, applied to scales and logits. The choice of the weights that share a scale matters most, and the
number of minibatches is next. The objective must be that of ROPD. A scale for every weight, which does not halve the
number of parameters, would be far better than the paper. With matched starts and 4,000 minibatches naval has -4.63
(0.33), where the paper has -3.61. The column *scales of inputs* has the paper's start and the 8,000 minibatches
(16,000 on naval) of FAWN-BERN.

Wine: the difference of FAWN-ROPD from the paper comes from the splits. On the first five, 500, 1,500, 4,000 and
10,000 minibatches have a test NLL of 0.947, 0.944, 0.943 and 0.943, and other starts of the deviations (0.2), or
another step size (0.003), 0.944 and 0.943. Of the test rows of a split 23% to 32% stand in its training part once
more, with the same target; they have 0.89, the other rows 0.97, so that the network gains little from rows that it
has seen. The paper's mean of ten random splits and ours of ten others, both with a deviation of about 0.075, differ
by 1.7 standard errors of such a difference.

Why the RMSE of FAWN-ROPD is higher than that which the network could reach: its objective is the density of the
targets, and the weights' variance can describe their scatter, which differs at every input. Training uses this freedom:
the learned noise goes to zero (0.009 on boston, where targets have a standard deviation of 9), and the weights become
all of the predictive variance, against a part of it for FAWN-VI, whose objective punishes every bit of their variance.
The mean is a by-product: an error costs little where the variance beside it can grow. On boston, the density is
therefore as good as the paper's, while the RMSE is 3.5.

One consequence: sampling whole networks says nothing about the density of such a model. With a thousand samples on
boston the mixture has a test NLL of 777 nats per point, for noise of 0.009 around samples with a standard deviation
of 3. The table of samples therefore draws the first layer only and integrates the last one out, which is exact for
Gaussian weights; for Bernoulli weights the last layer's sum is still taken as Gaussian. FAWN-ROPD was trained on the
four largest sets before this check was written, and not again.
"""
