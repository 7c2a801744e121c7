"""Notes for the page: the interpretation of the numbers."""

NOTES = """\
All agents with a network have one of 100 and 100 ReLU units, trained by 50 minibatches of 512, drawn with replacement
from all observations so far, after every 20 rounds; every action is tried three times first; one posterior sample per
round; the ten runs of a unit are trained as one population. `--quick` runs at most 2,000 rounds of every problem with
three runs; in the table Badam (prior in the loss), Vadam, IVON, linear and neural-linear run at the published length,
the other algorithms stop after 10,000 rounds, where their ratio has still to be compared with the curves of the
others.

Departures from the paper:

* Rewards are standardised by the running mean and standard deviation, and the learning rates are 0.001 (Adam, Vadam),
  0.1 (IVON) and 0.05 (VOGN), constant. The published 0.1 with inverse decay, which never restarts in the authors'
  library, falls below 0.001 after 200 of the up to 108,750 minibatches. Gradients are clipped at norm 1 (published:
  5).
* Weights start as `torch.nn.Linear` does, not uniformly in +-0.3.
* Mushroom has as many rounds as mushrooms, drawn with replacement. Covertype's 10,000 rows are drawn from a 16%
  sample of the data. Adult has 92 features of the published 94. Census is omitted, as its data are not available.
* Jester: the published reward of uniform play has no spread over the runs, so that the arms must have been the same
  eight jokes, but which is not known. Ours are the first random choice with the same reward of uniform play; other
  choices differ by up to 0.2, so that this column compares less strictly than the others.
* Bayes by Backprop shares one weight sample in a minibatch; its widths are trained at the same rate as its means.

Settings: Vadam and Badam count every observation 512 times, as the paper does (`N_t = t * 512`). We had planned to
choose the settings on one data set alone, but this plan was **not kept** for Vadam. Runs of one to three seeds over
the first 2,000 rounds were looked at: Vadam with observations counted 1, 30 and 200 times on Covertype, 30 times on
all six problems, 128 times on Statlog, Adult, Financial and Jester, and 150 and 512 times on Mushroom; the prior
precisions 10 and 100 on Statlog, Mushroom and Adult, and 1 on Statlog. 512 was taken because it is the published
value and was best on Mushroom; a prior precision of 10 because it was best on Statlog (100 earns more on Mushroom and
less on Statlog). VOGN's settings (observations count 30 times, prior precision 100) are from two runs on Covertype,
and so is Badam's prior precision of 3,000 (0.595 after 2,000 rounds; 0.477 with 10). All others have the library's
defaults. No algorithm has a setting for a single problem.

IVON counts observations 30 times. Its prior precision was 100 at first, which earned 0.681 ± 0.002 on Covertype,
0.479 ± 0.003 on Jester, 0.771 ± 0.023 on Mushroom, 0.851 ± 0.007 on Financial and 0.990 on Statlog. Two runs over all
rounds of Covertype earn 0.679 with 1,000 and 0.575 with 5,000, so that Covertype does not tell 100 from 1,000. Before
1,000 was taken, the largest of the three that costs nothing on Covertype, we also looked at all rounds of Jester (two
runs: 0.504 with 1,000, 0.503 with 10,000) and of Adult (one run: 0.251 and 0.213), so that these two columns are
**not** free of selection. Observations counted 1 or 5 times earn less on Covertype (0.54 to 0.66) and on Jester
(0.467). With 1,000 IVON earns more on Jester and Adult, and less on Mushroom, Financial and the wheel, whose rewards
the context explains.

The prior precision decides how much a network believes a few noisy rewards, and no single value suits all problems.
Jester's and Adult's rewards are mostly noise, and there a network with a weak prior learns this noise: it sees every
observation some thousand times in training, and Vadam's ratio (prior precision 10) hardly grows on Adult, from 0.167
after 6,477 rounds to 0.183 after all 45,222. With 3,000 in place of 10, three other seeds of Vadam earn 0.704 ± 0.003
on Covertype in all 10,000 rounds, and over the first 2,000 rounds it earns more on Adult (0.199), Covertype (0.621)
and Jester (0.471), and less on Financial (0.769), Mushroom (0.599) and Statlog (0.920).

The best of Vadam, IVON and VOGN is at least as good as the best published algorithm on five of the six problems;
which of them it is differs (Vadam on Mushroom, Financial and Statlog, IVON on Jester and Adult), so that this is no
claim for one algorithm. On Covertype ours earn more than every published algorithm but the paper's own Vadam, which
is far ahead of all others there (0.74 against at most 0.62). That number is what full information is worth: our
network of the same size, trained as often, earns 0.736 if it is told the rewards of **all** actions in every round
and never explores. We do not know how a bandit, which is told one reward in a round, could earn as much. Jester's
column depends on the choice of the eight arms.

Badam earns more than the published Badam on Mushroom, Financial, Statlog, Adult and Covertype, and less on Jester.

The exact linear regression, which the paper does not have, earns more than every published network on four of the six
problems (Mushroom, Financial, Jester and Adult), and more than all of ours on three; on Financial the greedy network
earns as much. Neural-linear, with the settings of
Riquelme et al., is ahead of it on Statlog only.

**The best of ours is not the best network.** On Mushroom and Financial, which have fewer than 10,000 rounds, a greedy
network earns more than every network that samples all of its weights (0.854 against 0.795 of Vadam, and 0.945 against
0.927): the context tells the reward, so that exploration costs more than it gains, as with the published greedy agent
on Financial. On Mushroom the last-layer Laplace approximation earns as much, 0.854. Sampling gains most on Jester and
Adult (IVON), whose rewards are mostly noise, and on the wheel, whose best reward is rare.

At delta 0.95 of the wheel most networks stop exploring before they have seen the large reward once; such a run earns
0.2. What decides is how fast the posterior narrows: with the table's settings an agent is nearly greedy after 100
rounds. IVON that counts every observation once, with a prior precision of 1, explores longer. It is the most
rewarding of five settings tried on delta 0.9, where the table's Vadam earns more than any of them; seven settings had
been looked at for 400 rounds of 0.95, and three for all rounds. It is the only network here that is ahead of
neural-linear at 0.95, by less than the errors of five runs. With a prior precision of 10 it is not (0.38).
"""
