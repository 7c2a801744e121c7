"""Names of hyper-parameters in other libraries, and their equivalents in this one."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

_NUM_DATA = "given as num_data, the number of training examples"
_PRIOR = "given as prior_precision"
_SAMPLES = "given as mc_samples"
_BETAS = "given as betas=(beta1, beta2)"
_SPEED = "left out: a step is one compiled kernel wherever there is a compiler (compile=None)"

TRANSLATIONS = {
    "weight_decay": f"{_PRIOR} = weight_decay * num_data / temperature (ba.param_groups does it)",
    "decoupled_weight_decay": "left out: the prior's gradient is part of the loss's, as the weight decay of "
    "torch.optim.Adam and unlike AdamW's (prior_precision = weight_decay * num_data / temperature)",
    "eps": f"{_PRIOR} = eps * num_data: prior_precision / num_data is what the step's denominator never falls below",
    "amsgrad": "left out: the posterior's precision follows a running average, not the largest one so far",
    "ess": "given as num_data = ess, with temperature=1",
    "hess_init": "given as initial_precision = num_data * hess_init + prior_precision",
    "lam": "given as prior_precision (the lambda of Khan et al. 2018) or as num_data (that of Shen et al. 2024)",
    "prior_prec": _PRIOR,
    "prec_init": "given as initial_precision",
    "train_set_size": _NUM_DATA,
    "dataset_size": _NUM_DATA,
    "n_data": _NUM_DATA,
    "n_samples": _SAMPLES,
    "num_samples": _SAMPLES,
    "train_samples": _SAMPLES,
    "beta1": _BETAS,
    "beta2": _BETAS,
    "momentum": "given as betas[0]",
    "foreach": _SPEED,
    "fused": _SPEED,
}
"""Advice for each foreign name, as it appears in error messages. The names are those of ``torch.optim``, of the
``ivon`` package and of the code of Khan et al. 2018, and frequent misspellings."""


def check_foreign(given: Mapping[str, Any], known: Container[str]) -> None:
    """Refuse hyper-parameters of other libraries, and name their equivalents here.

    Args:
        given: Arguments of a constructor, or a parameter group.
        known: Names that the method itself has; Bayes by Backprop has an ``eps``, for example.

    Raises:
        TypeError: A name belongs to another library and not to the method.
    """
    for name, value in given.items():
        if name in TRANSLATIONS and name not in known:
            raise TypeError(f"{name} must be {TRANSLATIONS[name]}, got {value!r}")
