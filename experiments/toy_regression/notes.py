"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
200 points on a grid in [0, 0.5), `y = x + 0.3 sin(2 pi (x + e)) + 0.3 sin(4 pi (x + e)) + e`, `e` with standard
deviation 0.02; two hidden layers of 50 tanh, as in the authors' code; 12,000 minibatches of 128 (the paper 40,000).
The paper gives no settings for any panel but Badam's, so they are ours, one run each; bands are one standard deviation,
as in the paper. The last three are given the noise that the first two find, 0.065. Bayes by Backprop and Vadam have
temperature 0.1: untempered, Bayes by Backprop returned to the prior and a constant function (RMSE 0.171), and Vadam
missed half of the wiggle (0.079). The anchored ensemble has 20 members and the prior N(0, 1).

What to make of it:

* The bands of the Gaussian process and of the anchored ensemble widen fast enough outside of the data to contain the
  truth there. The ensemble also has the best NLL inside. Its band outside is about three times as wide as that of the
  process, whose length scale was fitted to the data.
* The width of Badam is a choice: its number of pseudo-observations is the smallest whose NLL on 200 held-out points
  **inside of the range of the data** is within 0.02 nats of the best. Such points cannot determine the width outside of
  this range; the largest of the candidates, which means almost no uncertainty, has the best NLL on them.
* Outside of the data, the means of the other networks continue as straight lines or constants, and these networks are
  far too confident: their bands contain the truth on 10 to 20% of the range. The figure asks how uncertain a method is
  where there are no data, and none of these mean-field posteriors gives a good answer.
* The published Badam figure, whose code divides by the number of data twice, has bands that open; with the paper's
  formula they do so for a number of pseudo-observations that the data inside reject.
"""
