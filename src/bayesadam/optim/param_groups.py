"""Groups of parameters as an optimiser wants them: what is perturbed, what is not, and priors for weight decays."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from torch import Tensor, nn

from bayesadam.checks import check
from bayesadam.optim.hyperparameters import check_ordered
from bayesadam.posterior.wrappers import unwrapping

Named: TypeAlias = tuple[str, nn.Parameter]

_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm)
"""Batch and instance norm of any number of dimensions have one base class."""
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

    Norm layers get a group with ``perturb=False``: their few gains and shifts are scales that all examples share, and
    noise on them is noise on a whole channel. They are batch, layer, group, instance and RMS norm, and every layer
    whose class has a name that ends in ``Norm`` or ``Norm2d``, say. Biases are perturbed unless it is asked otherwise:
    their uncertainty is cheap, and the data usually determine it well. ::

        groups = ba.param_groups(model, weight_decay=1e-4, num_data=len(train_set), temperature=0.03)
        opt = ba.IVON(groups, num_data=len(train_set), temperature=0.03)

    A weight decay, as the ``weight_decay`` of ``torch.optim.SGD`` and ``Adam`` (not the decoupled one of ``AdamW``),
    adds ``weight_decay * w`` to the gradient of the mean loss. A Gaussian prior adds
    ``temperature * prior_precision / num_data * w``, so that they are the same for
    ``prior_precision = weight_decay * num_data / temperature``. A posterior needs a prior, so a weight decay of 0
    leaves perturbed parameters with ``prior_precision``, or the optimiser's own; those without noise get one that is
    negligible, ``1e-8 * num_data / temperature``.

    Parameters keep the names that they have in the model (inside ``DistributedDataParallel`` or ``torch.compile``), so
    that ``optimizer.posterior()`` needs no model. Tied parameters appear once, under their first name. Frozen ones
    stay in their group: no optimiser here moves or perturbs them while they are frozen.

    Args:
        model: The network; it is only read.
        groups: Parameter groups to translate one by one, as ``torch.optim`` takes them: each has ``"params"``
            (parameters, or pairs of name and parameter) and any other entries, which are kept. ``"weight_decay"``
            becomes ``"prior_precision"``, with the group's own ``"num_data"`` and ``"temperature"`` if it has them. A
            group that says ``"perturb"`` is not divided. Default: all parameters of the model in one group.
        weight_decay: Of groups that have none of their own; 0 or more.
        prior_precision: Of groups that have neither a weight decay nor a prior precision of their own, as the
            optimisers' argument of this name; default is theirs.
        num_data: As the optimiser's; what weight decays are converted with. It is not written into the groups.
        temperature: As the optimiser's, likewise; in (0, 1]. A weight decay cannot be converted without it: the
            recipes of the optimisers have different ones.
        perturb_norms: Whether the parameters of norm layers are perturbed like all others.
        perturb_biases: Whether biases are: one-dimensional parameters with ``bias`` in their own name.

    Returns:
        New groups in the order of those given, ``"params"`` as lists of pairs of name and parameter. A group without
        noise follows the one that it was a part of.

    Raises:
        ValueError: A number out of its range; both a weight decay and a prior precision for the same parameters; a
            weight decay without ``num_data``; a group with parameters in a set, which has no order, or with a parameter
            that neither is the model's nor comes with a name.
        TypeError: A group that is no mapping, or has no ``"params"``.
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
    """A group's entries with a prior precision in place of the weight decay, and ``perturb`` where it is False."""
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
    check("temperature", temperature, "in (0, 1], to convert weight_decay", lambda v: 0 < v <= 1)
    return {**entries, "prior_precision": (decay or _EPS) * num_data / temperature}


def _refuse_both(weight_decay: Any, prior_precision: Any) -> None:
    raise ValueError(
        f"weight_decay must not be given together with prior_precision, got {weight_decay!r} and {prior_precision!r}"
    )


def _names_of(model: nn.Module) -> dict[nn.Parameter, str]:
    """The innermost model's name of each of its parameters, every one once."""
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
    """Whether a module is a norm layer: one of PyTorch's, or one with a class name like theirs."""
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
    """The parameters with noise and those without, as far as there are any; whether they have noise."""
    if perturb is not None:
        yield members, perturb
        return
    for noisy in (True, False):
        part = [(name, parameter) for name, parameter in members if (parameter not in quiet) == noisy]
        if part:
            yield part, noisy
