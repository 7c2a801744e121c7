"""Notes for the page: choices where the paper gives no details, and the interpretation of the numbers."""

CHOICES = """\
## Choices where the paper gives no details

* **The network.** The paper does not describe it; it repeats an experiment of Wilson et al. 2017, who used torch-rnn.
  We take torch-rnn's defaults: two LSTM layers of 128, embeddings of 64, no dropout, its initialisation; 50 streams
  of 50 characters per step, the state carried on within an epoch; gradients clamped to [-5, 5]; the text in three
  contiguous parts of 80%, 10% and 10%. The alphabet has 84 characters, the byte order mark and CR among them.
* **The unit of VadaGrad's `s0 = 1e-4`.** The rule is `mu <- mu - lr g / sqrt(s)`, `s <- s + (1 - beta) g^2`, and
  `sigma^2 = 1 / s` for the gradient `g` of the objective. If the objective is the mean loss, the noise starts at
  `sigma = 100` and nothing is learned. We try this and two other units, without decay, and take the one with the
  lowest validation loss: `s` in the unit of the mean loss with `sigma^2 = 1 / (N s)` as in Vadam (`sigma = 0.062` at
  the start), and `s` in the unit of the loss summed over the text (`sigma = 100` at the start, far below after a few
  steps).
* **AdaGrad and Adam** start from 0, as in the paper; AdaGrad's sum counts a squared gradient as `1 - beta = 0.5`, as
  VadaGrad's does; Adam's `betas` are (0.9, 0.999); SGD has no momentum.
* **Length.** The published trainings have 200 epochs; ours are shorter (the tables say how many), once with the decay
  (a tenth of the learning rate after every 40 or 80 of 200 epochs) scaled to the epochs run, and once without decay,
  which is what the published schedules are in their first 40 epochs. The published rates, decays and `beta` were
  searched for on the test loss of 200 epochs; we use the same values.
* **Other methods.** Vadam, IVON and AdamW have the library's or PyTorch's defaults and a learning rate that falls along
  half a cosine to a hundredth. Its initial value is chosen from three candidates by the validation loss of the mean
  network after a shorter training. Vadam and IVON receive the number of characters, of characters per step, and of
  steps. A step has one sample.
* **The transformer** is ours: two layers of width 64 with four heads, windows of 64 characters, 32 per step, in random
  order; no clipping. Windows are tested without the text before them.
* **Scores.** A sample reads the whole test text with a memory of its own, and probabilities are averaged. ECE has 15
  bins. Errors are standard errors over seeds; differences are paired by seed.

`python -m experiments run char-lm-full` has the published 200 epochs (60 for the transformer) and three seeds of
everything: some 50 hours of one core for the published methods. There is a checkpoint after every epoch.
"""
