"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
`F = -h` with the paper's `h(x, y) = exp(-(x sin 20y + y sin 20x)^2 - (x cos 10y - y sin 10x)^2)`. Its minimum -1 is
reached on the whole line `x = 0`, a valley that is widest around the origin, and at isolated points in narrow holes:
a value near -1 does not tell in which of them a method has ended. The paper has a picture of four paths and no
starts, rates or schedule, so that the rest is ours: 200 starts uniform on [-1, 1]^2 and ten such sets, each method
from the same ones; 2,000 steps; standard deviation 0.3 at the start and prior precision 1; the temperature falls
linearly from 1 to 0. Rates (and the factor on `F`, which is what `num_data` is here) are those with the lowest mean
`F` from five other sets; the share in the flat minimum was not looked at. Gradient descent and Adam follow the
gradient of `F` without noise.

*On x = 0* is `|x| < 0.02` and `F < -0.99`. *Settled there* is the same after 2,000 steps of gradient descent with
rate 0.001 from where the method ended, which take away the noise of its last steps. *Any minimum* is `F < -0.99`;
*curvature* the median trace of the Hessian of `F` at the ends with that.

What to make of it:

* Annealed Vadam ends in the flat minimum from all of the first 200 starts (settled; the 95% interval of the other
  share ends at 1.8%), gradient descent from 15%, and Adam from 17%. The claim of the figure holds.
* Its last steps are noisy: before settling `|x| < 0.02` holds for 41%. The others are beside the line, around the
  origin, where the valley is wide and `F` hardly differs; the curvature is 6 there, and 470 where gradient descent
  ends.
* The noise is what leads to the flat minimum, and not the annealing: Vadam at the constant temperature 1 finds it
  nearly as often, and annealing gives a slightly lower `F`. VadaGrad, whose noise decreases from the beginning, finds
  the flat minimum from 61% of the starts; its rate was chosen by `F`, and its mean `F` is the lowest.
* With larger rates, gradient descent reaches the flat line more often (34% at 0.1), but its mean `F` is only -0.43,
  because its steps are too large to settle.
* Narrow holes do not count for `E_q[F]` while `q` is wider than they are. In a problem whose deepest minimum is
  narrow, the same property is a disadvantage.
"""
