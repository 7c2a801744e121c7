"""What to make of the numbers."""

NOTES = """\
200 points on a grid in [0, 0.5), `y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e`, `e` with standard
deviation 0.02; two hidden layers of 50 tanh, as in the authors' code; 12,000 minibatches of 128 (the paper 40,000).
The paper gives no settings for any panel but Badam's, so they are ours, one run each; bands are one standard deviation,
as in the paper. Bayes by Backprop and Vadam are given the noise that the first two find, 0.065, and have temperature
0.1: untempered, Bayes by Backprop returned to the prior and a constant function (RMSE 0.171), and Vadam missed half of
the wiggle (0.079).

What to make of it:

* Only the Gaussian process covers the truth outside of the data, and only its band opens there as fast as it must.
* Badam's width is a choice: its number of pseudo-observations is the smallest whose NLL on 200 held-out points **inside
  of the data** is within 0.02 nats of the best. Data from inside cannot ask for more width outside; the largest of the
  candidates, which is no uncertainty at all, has the best NLL there.
* The networks' means go on as straight lines or constants, and all of them are far too sure of it: their bands outside
  cover the truth on 10 to 20% of the range. For the question that the figure asks, what a method says where there are
  no data, none of these mean-field posteriors is an answer.
* The published Badam figure, whose code divides by the number of data twice, has bands that open; with the paper's
  formula they do so for a number of pseudo-observations that the data inside reject.
"""
