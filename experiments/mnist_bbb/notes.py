"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
784-400-400-10 with ReLU, pixels in [0, 1], minibatches of 128, 20 epochs (the paper's have 600), the learning rate
falling along half a cosine for all. Every method but Bayes by Backprop has three candidate settings, trained on
50,000 digits and scored on the same other 10,000; the one with the lowest NLL is trained on all 60,000, with two
seeds. Bayes by Backprop, the slowest, has one setting that was not searched for, and one seed. Predictions average 32
samples (16 in the search); Adam's network predicts without samples. The out-of-distribution score is the AUROC with
which the predictive entropy separates the 10,000 test images of Fashion-MNIST from the 10,000 of MNIST. No data
augmentation is used.

**The published errors are recollections** of Blundell et al. 2015, Table 1, whose text was not available; only its best
number, 1.34% with 800 units, is confirmed elsewhere. Its *SGD* is shown beside our Adam.

What to make of it:

* IVON, with a single setting, is better than Adam and than dropout in all four scores: error, NLL, ECE and
  out-of-distribution detection.
* Chosen by NLL, Adam gets its smallest learning rate: the point estimate is overconfident as soon as it fits well
  (the candidate with the lowest validation error, 1.54%, has the highest NLL).
* Vadam untempered is underconfident (ECE 0.14): with minibatches of 128, the square of their mean gradient is far
  below the Hessian, most standard deviations stay at the prior's, and the average over such wide samples is too
  uncertain; its mean network alone is better in error, NLL and ECE. With temperature 0.01 it is close to a point
  estimate, and detects images that are not digits as badly as one.
* The entropy of IVON's mean network alone detects clothes as well as that of its average over samples. Training with
  noise therefore helps detection more than averaging. For NLL and ECE, the averaging helps.
* Bayes by Backprop is not converged after 20 epochs: 2.3% with the Gaussian prior and 1.7% with the scale mixture;
  published, after 600 epochs, are 1.8% and 1.4%. Both are underconfident and have a worse NLL than IVON and dropout;
  the scale mixture detects clothes as well as IVON does. 600 epochs take too long here, and the settings of Bayes by
  Backprop were not searched for.

Departures: Adam in place of SGD for all but IVON; batches of 128 as published; pixels are divided by 255, not 126; the
KL divergence has equal weights in all minibatches.
"""
