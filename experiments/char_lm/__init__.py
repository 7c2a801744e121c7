"""Khan et al. 2018, Fig. 8: a language model of characters; and what posteriors add to it, and to a transformer."""

from experiments.char_lm.experiment import EXPERIMENT as EXPERIMENT
