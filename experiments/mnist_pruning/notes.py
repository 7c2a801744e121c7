"""What to make of the numbers."""

NOTES = """\
784-400-400-10 with ReLU, 20 epochs, minibatches of 128, the learning rate falling along half a cosine. All weights and
biases are ranked together, by `|mean| / standard deviation`, or by magnitude; what ranks last is set to zero, without
training again, and the mean network is tested. *Badam*, *magnitude* and *MC dropout* are one network, trained by Adam
with dropout 0.2 and `betas[1] = 0.99999`; MC dropout is pruned by magnitude and averages 16 masks (its standard
deviations are proportional to the weights, so signal-to-noise says nothing). IVON and Vadam have the settings of
`mnist-bbb`. Published: the stored output of the authors' notebook, one run.
"""
