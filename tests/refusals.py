"""Mistakes and the errors that name them: what the tables of ``test_refusals.py`` in the folders have in common."""

import copy
import re

import pytest
from torch import nn

from optim.methods import same


def refusals(rows, *, literal=False):
    """Parametrise a test by ``call``, ``error`` and ``message``, from rows without the error if it is a ``ValueError``.

    A message is a regular expression, or a part of the text itself if ``literal``.
    """
    rows = [row if len(row) == 3 else (row[0], ValueError, row[1]) for row in rows]
    rows = [(call, error, re.escape(message) if literal else message) for call, error, message in rows]
    return pytest.mark.parametrize(("call", "error", "message"), rows, ids=[message[:60] for *_, message in rows])


def contents(thing):
    """Everything that a refused call could have changed in a module or an optimiser."""
    if isinstance(thing, nn.Module):
        modules = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in thing.modules()]
        wanted = [(p.requires_grad, p.grad) for p in thing.parameters()]
        return copy.deepcopy((dict(thing.state_dict()), modules, wanted))
    groups = [{name: value for name, value in group.items() if name != "params"} for group in thing.param_groups]
    parameters = [parameter for group in thing.param_groups for parameter in group["params"]]
    states = [dict(thing.state[parameter]) for parameter in parameters if parameter in thing.state]
    return copy.deepcopy((groups, states, [parameter.detach() for parameter in parameters]))


def assert_refused(call, error, message, *things):
    """The call with these modules and optimisers raises the error, names the rule in it, and changes nothing."""
    before = [contents(thing) for thing in things]
    with pytest.raises(error, match=message) as raised:
        call(*things)
    assert re.search(r"\b(must|needs)\b", str(raised.value))
    assert same([contents(thing) for thing in things], before)
