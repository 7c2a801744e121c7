"""Sorting a model's parameters into groups with and without noise, with priors in place of weight decays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from bayesadam.checks import check, check_temperature, is_positive
from bayesadam.modules.wrappers import innermost

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
"""PyTorch's norm layers; batch and instance norm of any number of dimensions share a base class."""
_NORM_NAME = re.compile(r"norm(\d+d)?$", re.IGNORECASE)
_EPS = 1e-8


def param_groups(
    model: nn.Module,
    *,
    weight_decay: float | None = None,
    prior_precision: float | str | None = None,
    num_data: float | None = None,
    temperature: float | None = None,
) -> list[dict[str, Any]]:
    """Sort a model's parameters into groups for any optimiser of this library, with priors in place of weight decays.

    Norm layers get a group with ``perturb=False``, since noise on one of their few gains and shifts is noise on a whole
    channel. Norm layers are batch, layer, group, instance and RMS norm, and every layer whose class name ends in
    ``Norm``, or in ``Norm2d`` and the like. So does the bias of a layer that the model defines directly before a batch
    norm layer with as many channels. The mean of a batch takes it away, so that its gradient is 0 and its width stays
    the prior's, but the statistics that predictions use do not. ::

        groups = ba.param_groups(model, weight_decay=1e-4, num_data=len(train_set), temperature=0.01)
        opt = ba.BayesAdam(
            groups, num_data=len(train_set), batch_size=32, total_steps=epochs * len(loader), temperature=0.01
        )

    A weight decay, as the ``weight_decay`` of ``torch.optim.SGD`` and ``Adam`` (not the decoupled one of ``AdamW``),
    adds ``weight_decay * w`` to the gradient of the mean loss. A Gaussian prior adds
    ``temperature * prior_precision / num_data * w``, so the two are the same for
    ``prior_precision = weight_decay * num_data / temperature``. (The temperature of BayesAdam
    grows with ``(t / total_steps)^4``; its prior pulls as much as the weight decay at the end of the training, and less
    before.) A posterior needs a prior, so with a weight decay of 0 perturbed parameters have the optimiser's default,
    and parameters without noise a negligible prior precision of ``1e-8 * num_data / temperature``.

    Parameters keep the names that they have in the model (inside ``DistributedDataParallel`` or ``torch.compile``), so
    that ``optimizer.posterior()`` needs no model. Tied parameters appear once, under their first name. Frozen
    parameters stay in their group; the optimisers of this library neither move nor perturb them while they are frozen.

    Args:
        model: The network; it is only read.
        weight_decay: Weight decay of all parameters, to be translated into a prior precision; 0 or more.
        prior_precision: Prior precision of all parameters, as in the optimisers. Default: the optimiser's.
        num_data: Number of training examples, as given to the optimiser. It is used to convert the weight decay and is
            not written into the groups.
        temperature: Temperature, as given to the optimiser; in (0, 1]. It is needed to convert a weight decay, since
            the default differs between optimisers, and is not written into the groups.

    Returns:
        The group with noise and the one without, each unless it is empty, with ``"params"`` as lists of pairs of name
        and parameter.

    Raises:
        ValueError: A number is out of its range, there are both a weight decay and a prior precision, or a weight decay
            is given without ``num_data`` or ``temperature``.
    """
    precisions = {True: prior_precision, False: prior_precision}
    if weight_decay is not None:
        if prior_precision is not None:
            raise ValueError(
                "weight_decay must not be given together with prior_precision, got "
                f"{weight_decay!r} and {prior_precision!r}"
            )
        check("weight_decay", weight_decay, "a finite number of at least 0", lambda v: 0 <= v < math.inf)
        check("num_data", num_data, "a positive, finite number, to convert weight_decay", is_positive)
        check_temperature(temperature, zero=False)
        scale = num_data / temperature  # type: ignore[operator]
        precisions = {True: weight_decay * scale or None, False: (weight_decay or _EPS) * scale}
    inner = innermost(model)
    quiet = {p for module in inner.modules() if is_norm(module) for p in module.parameters(recurse=False)}
    quiet |= set(_biases_before_batch_norm(inner))
    groups = []
    for perturb, precision in precisions.items():
        params = [(name, p) for name, p in inner.named_parameters() if (p not in quiet) == perturb]
        noise = {} if perturb else {"perturb": False}
        prior = {} if precision is None else {"prior_precision": precision}
        if params:
            groups.append({"params": params, **noise, **prior})
    return groups


def _biases_before_batch_norm(model: nn.Module) -> Iterator[nn.Parameter]:
    layers = [module for module in model.modules() if not any(module.children())]
    for layer, norm in pairwise(layers):
        bias = getattr(layer, "bias", None)
        if isinstance(norm, _BatchNorm) and isinstance(bias, nn.Parameter) and len(bias) == norm.num_features:
            yield bias


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm layer of PyTorch, or has a class name that ends as theirs do."""
    return isinstance(module, _NORMS) or _NORM_NAME.search(type(module).__name__) is not None
