"""A kernel's table of addresses is kept only when it is whole."""

import sys

import pytest
import torch

import bayesadam as ba
from bayesadam import native
from bayesadam.core import launch


@pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")
def test_an_exception_while_addresses_are_collected(monkeypatch):
    """As from the handler of a signal."""
    weight = torch.nn.Parameter(torch.ones(10))
    opt = ba.Vadam([weight], num_data=10.0, compile=True)
    monkeypatch.setattr(launch, "_table", interrupted(launch._table))
    with pytest.raises(TimeoutError):
        opt.train()
    monkeypatch.undo()
    opt.eval()
    opt.train()
    weight.grad = torch.ones(10)
    opt.step()
    opt.eval()
    assert weight.isfinite().all()


def interrupted(function):
    """A function whose first line after the table was made raises."""

    def trace(frame, event, argument):
        if event == "line" and frame.f_locals.get("column") is not None:
            raise TimeoutError
        return trace

    def call(*args):
        before = sys.gettrace()
        sys.settrace(lambda frame, event, argument: trace if frame.f_code is function.__code__ else None)
        try:
            return function(*args)
        finally:
            sys.settrace(before)

    return call
