"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
Two networks with one hidden layer of 50 ReLU, both trained on the predictive density, on split 0 of boston; 20,000
samples of all weights against the Gaussian of the propagated mean and variance, without the noise of the targets. The
paper shows histograms of a network with Bernoulli weights and says that there was "no significant deviation".

* KS is the largest distance of the distribution functions, at most 0.0096 in 95% of the cases where 20,000 samples come
  from the Gaussian itself. *Rejected* are shares of points (and of blocks of 100 or 1,000 of their samples) where the
  test rejects at the level 0.05; 5% is what a Gaussian would have.
* With Gaussian weights, one hidden layer and inputs without uncertainty, mean and variance are exact, so that a
  rejection concerns the shape of the distribution only.
* With Bernoulli weights, mean and variance are approximate, too: the input of a hidden unit is a sum of at most 13
  scaled Bernoulli variables, which is treated as Gaussian. If all weights of a unit can be zero at once, the
  distribution of its output has a spike.
"""
