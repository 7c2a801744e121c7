"""Modules of one's own in a line or two."""

from torch import Tensor, nn


def module_of(forward, **parts):
    """A module with this method ``forward(self, ...)``, and with layers, parameters, buffers and numbers by name."""

    class Made(nn.Module):
        def __init__(self):
            super().__init__()
            for name, part in parts.items():
                if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
                    self.register_buffer(name, part)
                else:
                    setattr(self, name, part)

    Made.forward = forward
    return Made()
