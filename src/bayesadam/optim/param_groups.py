"""Sorting a model's parameters into groups with and without noise, with priors in place of weight decays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from bayesadam.checks import check, check_temperature
from bayesadam.optim.groups import check_ordered
from bayesadam.posterior.wrappers import unwrapping

Named: TypeAlias = tuple[str, nn.Parameter]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
"""PyTorch's norm layers; batch and instance norm of any number of dimensions share a base class."""
_NORM_NAME = re.compile(r"norm(\d+d)?$", re.IGNORECASE)
_EPS = 1e-8


def param_groups(
    model: nn.Module,
    groups: Iterable[Mapping[str, Any]] | None = None,
    *,
    weight_decay: float | None = None,
    prior_precision: float | str | None = None,
    num_data: float | None = None,
    temperature: float | None = None,
    perturb_norms: bool = False,
    perturb_biases: bool = True,
) -> list[dict[str, Any]]:
    """Sort a model's parameters into groups for any optimiser of this library, with priors in place of weight decays.

    Norm layers get a group with ``perturb=False``, since noise on one of their few gains and shifts is noise on a whole
    channel. Norm layers are batch, layer, group, instance and RMS norm, and every layer whose class name ends in
    ``Norm``, or in ``Norm2d`` and the like. Biases are perturbed unless ``perturb_biases=False``: their uncertainty is
    cheap, and the data usually determine it well. ::

        groups = ba.param_groups(model, weight_decay=1e-4, num_data=len(train_set), temperature=0.01)
        opt = ba.BayesAdam(groups, num_data=len(train_set), batch_size=32, temperature=0.01)

    A weight decay, as the ``weight_decay`` of ``torch.optim.SGD`` and ``Adam`` (not the decoupled one of ``AdamW``),
    adds ``weight_decay * w`` to the gradient of the mean loss. A Gaussian prior adds
    ``temperature * prior_precision / num_data * w``, so the two are the same for
    ``prior_precision = weight_decay * num_data / temperature``. A posterior needs a prior, so perturbed parameters
    with a weight decay of 0 have ``prior_precision``, or the optimiser's default; parameters without noise get a
    negligible prior precision of ``1e-8 * num_data / temperature``.

    Parameters keep the names that they have in the model (inside ``DistributedDataParallel`` or ``torch.compile``), so
    that ``optimizer.posterior()`` needs no model. Tied parameters appear once, under their first name. Frozen
    parameters stay in their group; the optimisers of this library neither move nor perturb them while they are frozen.

    Args:
        model: The network; it is only read.
        groups: Parameter groups to translate one by one, as ``torch.optim`` takes them: each has ``"params"``
            (parameters, or pairs of name and parameter) and any other entries, which are kept. ``"weight_decay"``
            becomes ``"prior_precision"``, with the group's own ``"num_data"`` and ``"temperature"`` if it has them. A
            group that has the entry ``"perturb"`` is not divided. Default: all parameters of the model in one group.
        weight_decay: Weight decay of groups that have none of their own; 0 or more.
        prior_precision: Prior precision of groups that have neither a weight decay nor a prior precision of their own,
            as in the optimisers. Default: the optimiser's.
        num_data: Number of training examples, as given to the optimiser. It is used to convert weight decays and is not
            written into the groups.
        temperature: Temperature, as given to the optimiser; in (0, 1]. It is needed to convert weight decays, since
            the default differs between optimisers, and is not written into the groups.
        perturb_norms: Whether the parameters of norm layers are perturbed like all others.
        perturb_biases: Whether biases (one-dimensional parameters with ``bias`` in their own name) are perturbed.

    Returns:
        New groups in the order of those given, with ``"params"`` as lists of pairs of name and parameter. If a group is
        divided, its part without noise follows the part with noise.

    Raises:
        ValueError: A number is out of its range; the same parameters have both a weight decay and a prior precision; a
            weight decay is given without ``num_data`` or ``temperature``; or a group has its parameters in a set, which
            has no order, or a parameter that neither belongs to the model nor comes with a name.
        TypeError: A group is not a mapping, or has no ``"params"``.
    """
    if weight_decay is not None and prior_precision is not None:
        _refuse_both(weight_decay, prior_precision)
    names, quiet = _names_of(model), _unperturbed(model, norms=not perturb_norms, biases=not perturb_biases)
    given: list[Mapping[str, Any]] = [{"params": list(names)}] if groups is None else list(groups)
    shared = {"num_data": num_data, "temperature": temperature}
    sorted_groups = []
    for group in given:
        if not isinstance(group, Mapping) or "params" not in group:
            raise TypeError(f"groups must be mappings with 'params', got {group!r}")
        own = {name: value for name, value in group.items() if name not in ("params", "param_names")}
        if "weight_decay" not in own and "prior_precision" not in own:
            settings = {"weight_decay": weight_decay, "prior_precision": prior_precision}
            own.update({name: value for name, value in settings.items() if value is not None})
        for members, perturb in _divided(_named(group["params"], names), group.get("perturb"), quiet):
            sorted_groups.append({"params": members, **_with_prior(own, shared, prior_precision, perturb)})
    return sorted_groups


def _with_prior(
    own: Mapping[str, Any], shared: Mapping[str, Any], prior_precision: Any, perturb: bool
) -> dict[str, Any]:
    """A group's entries, with a prior precision in place of the weight decay and ``perturb=False`` where it applies."""
    entries = {name: value for name, value in own.items() if name != "weight_decay"}
    if not perturb:
        entries["perturb"] = False
    decay = own.get("weight_decay")
    if decay is None:
        return entries
    if "prior_precision" in own:
        _refuse_both(decay, own["prior_precision"])
    check("weight_decay", decay, "a finite number of at least 0", lambda v: 0 <= v < math.inf)
    if decay == 0 and perturb:
        return entries if prior_precision is None else {**entries, "prior_precision": prior_precision}
    num_data, temperature = ({**shared, **own}[name] for name in ("num_data", "temperature"))
    check("num_data", num_data, "a positive, finite number, to convert weight_decay", lambda v: 0 < v < math.inf)
    check_temperature(temperature, zero=False)
    return {**entries, "prior_precision": (decay or _EPS) * num_data / temperature}


def _refuse_both(weight_decay: Any, prior_precision: Any) -> None:
    raise ValueError(
        f"weight_decay must not be given together with prior_precision, got {weight_decay!r} and {prior_precision!r}"
    )


def _names_of(model: nn.Module) -> dict[nn.Parameter, str]:
    """Names of the parameters in the innermost model, without wrappers; each parameter appears once."""
    *_, inner = unwrapping(model)
    return {parameter: name for name, parameter in inner.named_parameters()}


def _unperturbed(model: nn.Module, *, norms: bool, biases: bool) -> set[Tensor]:
    """The model's parameters that are to be trained without noise."""
    return {
        parameter
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if (norms and is_norm(module)) or (biases and parameter.ndim == 1 and "bias" in name)
    }


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm layer of PyTorch, or has a class name that ends as theirs do."""
    return isinstance(module, _NORMS) or _NORM_NAME.search(type(module).__name__) is not None


def _named(params: Any, names: Mapping[nn.Parameter, str]) -> list[Named]:
    """Pairs of name and parameter, each parameter once."""
    check_ordered(params)
    found: dict[nn.Parameter, str] = {}
    for entry in [params] if isinstance(params, Tensor) else params:
        name, parameter = entry if isinstance(entry, tuple) else (None, entry)
        name = names.get(parameter, name)
        if name is None:
            raise ValueError(
                "groups must have parameters of the model, or others with a name, got one without a name "
                f"of shape {tuple(parameter.shape)}"
            )
        found.setdefault(parameter, name)
    return [(name, parameter) for parameter, name in found.items()]


def _divided(members: list[Named], perturb: bool | None, quiet: set[Tensor]) -> Iterator[tuple[list[Named], bool]]:
    """Divide parameters into those with noise and those without; yield each part that is not empty, with that flag."""
    if perturb is not None:
        yield members, perturb
        return
    for noisy in (True, False):
        part = [(name, parameter) for name, parameter in members if (parameter not in quiet) == noisy]
        if part:
            yield part, noisy
