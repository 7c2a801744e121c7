"""Dividing a model into the parts whose calls are observed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from bayesadam.curvature.layers import Form
from bayesadam.curvature.passes import Method, Slot, Unit
from bayesadam.curvature.recurrent import Recurrent, is_recurrent
from bayesadam.curvature.registry import form_of
from bayesadam.curvature.replay import Replay
from bayesadam.curvature.totals import Total

OPAQUE: tuple[type[nn.Module], ...] = (nn.MultiheadAttention, nn.RNNBase)
"""Modules that use their children's parameters without calling the children."""


def units_of(
    root: nn.Module, totals: dict[str, Total], closed: Callable[[Form, nn.Module], Method]
) -> tuple[list[Unit], list[Slot]]:
    """The modules that have parameters of their own, and the parameters.

    Args:
        root: The model.
        totals: Totals of earlier starts by parameter name, to which missing ones are added.
        closed: Function that returns the method of a layer with a closed form.
    """
    slots: dict[Tensor, Slot] = {}
    units, inside = [], set[nn.Module]()
    for name, module in root.named_modules():
        if module in inside:
            continue
        opaque = isinstance(module, OPAQUE) or is_parametrized(module)
        if opaque:
            inside.update(module.modules())
        owned = list(_parameters(module, deep=opaque))
        if not owned:
            continue
        slots_of_unit = {}
        for path, owner, key, parameter in owned:
            if parameter not in slots:
                full = f"{name}.{path}" if name else path
                slots[parameter] = Slot(full, totals.setdefault(full, Total()))
            slot = slots_of_unit[path] = slots[parameter]
            slot.owners.append((owner, key))
            slot.uses += 1
        several_names = len(owned) < sum(p is not None for p in module._parameters.values())
        form = None if opaque or several_names else form_of(module)
        units.append(Unit(name, module, _replay(module) if form is None else closed(form, module), slots_of_unit))
    return units, list(slots.values())


def _replay(module: nn.Module) -> Method:
    return Recurrent() if is_recurrent(module) else Replay()


def _parameters(module: nn.Module, *, deep: bool) -> Iterator[tuple[str, nn.Module, str, nn.Parameter]]:
    """Path, owner, name there, and parameter, each once."""
    seen = set[Tensor]()
    for prefix, owner in module.named_modules() if deep else [("", module)]:
        for key, parameter in owner._parameters.items():
            if parameter is None or parameter in seen:
                continue
            seen.add(parameter)
            yield f"{prefix}.{key}" if prefix else key, owner, key, parameter
