"""Images: digits and MNIST by MLPs, Fashion-MNIST at 14 x 14 by a convolutional network with BatchNorm."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional

from default_tasks.task import Data, Part, Task, divide, divided
from networks import perceptron
from public_data import load

TEST, OUTSIDE = 5_000, 2_000
"""Test images and outside images of MNIST and Fashion-MNIST at most: 32 predictions of each are made."""


@lru_cache(4)
def idx(name: str, side: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images ``(n, 1, side, side)`` in [0, 1] and labels, of the published training and test part."""
    found = load(name)
    scale = 1.0 if found.x_train.max() <= 1 else 255.0
    x, x_test = (
        functional.adaptive_avg_pool2d(part.view(-1, 1, 28, 28).float() / scale, side)
        for part in (found.x_train, found.x_test)
    )
    return x, found.y_train, x_test, found.y_test


def pictures(seed: int, size: int | None, *, name: str, other: str, side: int) -> Data:
    """Training and validation (a fifth, at most 1,000) from the published training part, test from its test part."""
    x, y, x_test, y_test = idx(name, side)
    total = len(x) if size is None else size
    held_out = min(1_000, total // 5)
    train, validation = divide(len(x), seed, total - held_out if size is None else size, held_out)
    test = divide(len(x_test), seed, TEST)[0]
    mean, std = x[train].mean(), x[train].std()
    strange = idx(other, side)[2]
    outside = strange[divide(len(strange), seed, OUTSIDE)[0]]

    def white(part: Tensor) -> Tensor:
        return (part - mean) / std

    return Data(
        (white(x[train]), y[train]),
        (white(x[validation]), y[validation]),
        (white(x_test[test]), y_test[test]),
        white(outside),
    )


def mislabelled(seed: int, size: int | None) -> Data:
    """MNIST with a tenth of the training labels replaced by random ones; validation and test labels are right."""
    data = pictures(seed, size, name="mnist", other="fashion-mnist", side=14)
    x, y = data.train
    generator = Generator().manual_seed(seed)
    wrong = torch.rand(len(y), generator=generator) < 0.1
    y = torch.where(wrong, torch.randint(10, y.shape, generator=generator), y)
    return replace(data, train=(x, y))


def digit_parts(seed: int, *sizes: int) -> list[Part]:
    """Random parts, which share nothing, of the 1,797 digits of scikit-learn at 8 x 8."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    return divided(x, y, seed, *sizes)


def digits(seed: int, size: int | None) -> Data:
    """Of scikit-learn, and clothes."""
    clothes = idx("fashion-mnist", 8)[2].flatten(1)
    return Data(*digit_parts(seed, size or 1_000, 400, 397), outside=clothes[divide(len(clothes), seed, 397)[0]])


def flattened(*widths: int) -> nn.Sequential:
    """A perceptron of pictures."""
    return nn.Sequential(nn.Flatten(), *perceptron(*widths))


def block(inputs: int, outputs: int) -> list[nn.Module]:
    """A convolution with BatchNorm and ReLU."""
    return [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]


def convolutional(data: Data) -> nn.Module:
    """Three convolutions with BatchNorm at 14, 7 and 3 pixels, pooled to a vector: 24,000 weights."""
    body = [*block(1, 16), nn.MaxPool2d(2), *block(16, 32), nn.MaxPool2d(2), *block(32, 64)]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def shift_and_flip(x: Tensor, generator: Generator) -> Tensor:
    """Every image moved by up to a pixel in each direction, and every other one mirrored."""
    side = x.shape[-1]
    padded = functional.pad(x, (1, 1, 1, 1), value=float(x.min()))
    down, right = torch.randint(0, 3, (2, len(x), 1, 1, 1), generator=generator)
    steps = torch.arange(side)
    rows = (down + steps.view(1, 1, -1, 1)).expand(-1, 1, -1, side + 2)
    moved = padded.gather(2, rows).gather(3, (right + steps.view(1, 1, 1, -1)).expand(-1, 1, side, -1))
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    return torch.where(mirrored.view(-1, 1, 1, 1), moved.flip(-1), moved)


def fashion(size: int, epochs: int, *, augmented: bool = False) -> Task:
    """Fashion-MNIST with so many training images."""
    name = f"fashion-{size // 1000}k{'-augmented' if augmented else ''}"
    data = partial(pictures, name="fashion-mnist", other="mnist", side=14)
    return Task(name, data, convolutional, epochs, size, batch_size=128, augment=shift_and_flip if augmented else None)


_MNIST = partial(pictures, name="mnist", other="fashion-mnist", side=28)
TASKS = [
    Task("digits", digits, lambda data: perceptron(64, 128, 128, 10), epochs=30, size=1_000),
    Task("mnist", _MNIST, lambda data: flattened(784, 400, 400, 10), epochs=10, size=8_000, batch_size=128),
    *(fashion(4_000, 10, augmented=augmented) for augmented in (False, True)),
    *(fashion(10_000, 6, augmented=augmented) for augmented in (False, True)),
    Task("wrong-labels", mislabelled, lambda data: flattened(196, 200, 200, 10), 15, 5_000, batch_size=64),
]
