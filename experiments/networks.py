"""ResNet-18 for small images, which the experiment ``scale`` and ``benchmarks/gpu.py`` train."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

Norm = Callable[[int], nn.Module]
"""From a number of channels to a layer."""


class Residual(nn.Module):
    """Two convolutions and the path around them."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.main = nn.Sequential(first, norm(outputs), nn.ReLU(), second, norm(outputs))
        short = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs)]
        self.short = nn.Sequential(*(short if stride > 1 or inputs != outputs else []))

    def forward(self, x: Tensor) -> Tensor:
        """Return features ``(N, outputs, H / stride, W / stride)`` for features ``(N, inputs, H, W)``."""
        out: Tensor = (self.main(x) + self.short(x)).relu()
        return out


def resnet(width: int = 64, *, channels: int = 3, norm: Norm = nn.BatchNorm2d) -> nn.Sequential:
    """Create a ResNet-18 for images of about 32 x 32 pixels and ten classes: 11.2 million weights at width 64."""
    blocks: list[nn.Module] = [nn.Conv2d(channels, width, 3, 1, 1, bias=False), norm(width), nn.ReLU()]
    for stage in range(4):
        inputs, outputs = width * 2 ** max(0, stage - 1), width * 2**stage
        blocks += [Residual(inputs, outputs, 1 + (stage > 0), norm), Residual(outputs, outputs, 1, norm)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10))
