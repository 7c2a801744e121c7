"""Reproductions of published tables and figures, with our numbers beside those of the paper.

python -m experiments list
python -m experiments run NAME       # resumes a stopped run; writes the report at the end
python -m experiments report NAME    # tables and figures from the committed results
"""

NAMES = (
    "uci-table1",
    "uci-best",
    "logreg-toy",
    "logreg-usps",
    "logreg-breast-cancer",
    "convergence",
    "toy-regression",
    "mnist-pruning",
    "mnist-bbb",
    "fawn-uci",
    "fawn-multioutput",
    "fawn-histogram",
    "landscape",
    "half-cheetah",
    "char-lm",
    "bandits",
    "scale",
    "precision",
)
"""The experiments. The package of ``uci-table1`` is ``experiments.uci_table1``."""
