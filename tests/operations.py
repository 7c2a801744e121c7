"""Counting what is dispatched."""

import collections

from torch.utils._python_dispatch import TorchDispatchMode


class Counted(TorchDispatchMode):
    """The operations that are dispatched, by name."""

    def __init__(self):
        super().__init__()
        self.calls = collections.Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))
