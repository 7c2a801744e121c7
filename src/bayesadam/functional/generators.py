"""PyTorch's generators, which all threads share, at other states for a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

GENERATORS = threading.RLock()
"""Lock of the thread that has other states in the generators and will restore them."""


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Context that seeds torch's generators of the CPU and of a device; afterwards their states are restored.

    Other threads that enter it wait. The generators of other devices are left alone: ``torch.manual_seed`` would seed
    them as well, without restoring them.
    """
    kind = "cpu" if device.type == "meta" else device.type
    accelerators = [] if kind == "cpu" else [device]
    with GENERATORS, torch.random.fork_rng(devices=accelerators, device_type=kind):
        torch.default_generator.manual_seed(seed)
        for each in accelerators:
            torch.get_device_module(each).set_rng_state(torch.Generator(each).manual_seed(seed).get_state(), each)
        yield
