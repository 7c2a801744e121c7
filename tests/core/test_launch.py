"""A kernel's table of addresses is kept only when it is whole; flats without kernels; and two threads."""

import sys
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock, patch

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import native, noise
from bayesadam.core import launch
from bayesadam.core.flat import Flat
from optim.methods import make_step


@pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")
def test_an_exception_while_addresses_are_collected(monkeypatch):
    """As from the handler of a signal."""
    weight = torch.nn.Parameter(torch.ones(10))
    opt = ba.Vadam([weight], num_data=10.0, compile=True)
    monkeypatch.setattr(launch.Launch, "__init__", interrupted(launch.Launch.__init__))
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
        if event == "line" and frame.f_locals.get("addresses") is not None:
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


@pytest.mark.parametrize(
    ("mode", "options", "draws"),
    [
        ("train", {}, 4),
        ("block", {}, 3),
        ("closure", {"mc_samples": 2, "antithetic": True}, 6),
    ],
)
def test_whole_flats_off_the_cpu(mode, options, draws, monkeypatch):
    """There every sample's noise is drawn once."""
    expected, _ = trained(mode, options)
    monkeypatch.setattr(Flat, "is_whole", True)
    found, count = trained(mode, options)
    assert count == draws
    assert torch.equal(found, expected)


def trained(mode, options):
    """The mean after three steps, and how often noise was drawn."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 50), nn.Tanh(), nn.Linear(50, 2))
    opt = ba.IVON(net.named_parameters(), num_data=50.0, compile=False, **options)
    with patch.object(noise, "fill_runs", Mock(side_effect=noise.fill_runs)) as fill:
        for step in range(3):
            make_step(opt, lambda step=step: net(torch.ones(4, 3) * step).square().mean(), mode)
    opt.eval()
    return torch.cat([p.detach().flatten() for p in net.parameters()]), fill.call_count


def test_weights_with_channels_last_are_written_by_operations_wherever_a_block_of_numbers_ends():
    """A block that ended within such a weight was written to a copy."""
    means = []
    for order in (torch.contiguous_format, torch.channels_last):
        line = torch.linspace(-1, 1, 10 * noise.TILE).view(64, 40, 4, 4)
        params = [nn.Parameter(line.clone().to(memory_format=order)) for _ in range(2)]
        opt = ba.Vadam(params, num_data=100.0, lr=0.1, compile=False)
        opt.train()
        for param in params:
            param.grad = torch.ones_like(param)
        opt.step()
        opt.eval()
        means.append(torch.stack([param.detach().contiguous() for param in params]))
    assert torch.equal(*means)


def trained_by_operations(seed):
    weight = nn.Parameter(torch.full((60000,), 1.0 + seed))
    opt = ba.Vadam([weight], num_data=100.0, seed=seed, compile=False)
    opt.train()
    for _ in range(10):
        weight.grad = torch.sin(weight.detach())
        opt.step()
    opt.eval()
    return weight.detach()


def test_two_threads_train_as_one_after_the_other():
    alone = list(map(trained_by_operations, range(2)))
    with ThreadPoolExecutor(2) as pool:
        assert all(map(torch.equal, alone, pool.map(trained_by_operations, range(2))))
