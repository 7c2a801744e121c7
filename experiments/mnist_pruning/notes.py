"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
784-400-400-10 with ReLU, 20 epochs, minibatches of 128, the learning rate falling along half a cosine. All weights
and biases are ranked together, by `|mean| / standard deviation`, or by magnitude; the weights with the lowest rank
are set to zero, without further training, and the mean network is tested. *Badam*, *magnitude* and *MC dropout* are
one network, trained by Adam with dropout 0.2 and `betas[1] = 0.99999`; MC dropout is pruned by magnitude and averages
16 masks (its standard deviations are proportional to the weights, so signal-to-noise says nothing). IVON and Vadam
have the settings of `mnist-bbb`. Published: the stored output of the authors' notebook, one run.

What to make of it:

* Bayes by Backprop with a Gaussian prior of standard deviation 0.1 loses nothing until 90% of the weights are gone,
  and has 97.2% accuracy at 95%, 96.1% at 97%. Its accuracy without pruning is lower than that of the others, 97.6%,
  because its mean has not converged after 20 epochs.
* Vadam, untempered, is next, 97.2% and 95.5%: both methods let weights that do not matter go back to the prior, where
  their signal-to-noise is near 0. The same property that makes their averaged predictions poor makes their rankings
  good.
* IVON starts from the best network (98.6%) and is at 96.8% at 90%, but only 77% at 95%. Its precision starts at 5,000
  for all weights and, with `betas[1] = 0.99995`, forgets less than half of that in 9,380 steps, so its ranking is
  near that of magnitude. With settings for pruning (a shorter memory, a stronger prior) a prototype reached 91 to 96%
  there.
* Badam and magnitude are above their published curves throughout: 97.4% against 94.0%, and 90.1% against 55.1%, at
  90%. The difference between the two is the paper's finding and holds.
* Averaging dropout masks does not help a pruned network.

Departures: 20 epochs (the paper 100, the notebook 200), ReLU (the notebook sigmoid), one run per method.
"""
