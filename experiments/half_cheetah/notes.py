"""Notes for the page: the differences from the paper."""

NOTES = """\
Lines are means over seeds, bands and bars one standard error **over seeds**. (The paper's own bands are of another
kind: its script averages over seeds first and takes the spread of the 20 test episodes.) "Paper, run 1" is the run that
the paper shows, and "paper, run 2" the authors' own repetition with the same seeds; both are computed from the arrays
that they published. The table of differences has five intervals, so that one that excludes 0 is weak evidence; with
three seeds, only large differences can be detected.

The agent is the DDPG of the authors' code, and not that of a library, since it differs in ways that matter here: target
networks start independently and follow by 0.001 a step; the actor's gradient is the **sum** over the minibatch of 64
(the paper prints the mean), which matters to SGD, to VadaGrad and to `s`; there is no warm-up, no action noise and no
scaling of observations or rewards; the last step of an episode counts as terminal. One sample of the weights is drawn
for each step of the environment and serves that step and its gradient; target networks and tests use the mean.

* **Vadam**: step 1e-4, `N = 1`, `lambda = 1e-8`; `c = 1e4` is added to the precision for sampling only, so the
  standard deviation of the noise is at most 0.01.
* **VadaGrad**: step 0.01, `gamma_2 = 0.99`, `s` starts at 1e4.
* **Adam-Explore, SGD-Explore**: the step of the mean is 1e-4. The precision starts at 1e4 and follows its gradient
  with steps of 0.01, which are so small on this scale that the noise does not change. The paper writes that the
  variance follows its gradient; in the code of its authors it is the precision.
* **Adam-Plain, SGD-Plain**: no noise of any kind.

Vadam, VadaGrad and the two methods that follow gradients of the precision are rules of this library's engine
(`experiments/half_cheetah/methods.py`); the plain methods are PyTorch's optimisers.

Departures from the authors' runs:

* HalfCheetah-v5 of gymnasium with MuJoCo's own Python package, where they had v1 of gym 0.9.1 with mujoco-py 0.5.7
  (MuJoCo 1.31). Observations (17), actions (6), length (1000 steps), reward (speed less 0.1 times the squared action)
  and the noise of the start are the same by definition; the simulator is another version, so returns need not be on
  one scale.
* 151 episodes, the first 5% of their 3,000: `python -m experiments run half-cheetah-full` runs all, with their 5
  seeds, and resumes where it was stopped. These results say nothing about Fig. 6 and about premature convergence.
* PyTorch's Adam adds its 1e-8 after the correction of the second moment, TensorFlow's before.
"""
