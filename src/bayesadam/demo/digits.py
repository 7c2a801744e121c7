"""Images of digits and other images: IVON with its defaults, and Adam at its best learning rate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam import metrics
from bayesadam.calibration import calibrate
from bayesadam.demo.effort import Advance, Effort, Part, Rows, differences, mean_rows, seed_of
from bayesadam.likelihoods import Categorical
from bayesadam.likelihoods.base import seeded
from bayesadam.optim import IVON
from bayesadam.posterior import DiagonalGaussian
from bayesadam.predictive import predict
from bayesadam.pruning import pruning_curve

RATES = (1e-3, 3e-3, 1e-2)
"""Adam's learning rates, of which the one with the best validation loss is used."""
BATCH_SIZE = 32
VALIDATION = 200
"""Number of images by which Adam's learning rate and temperature are chosen; IVON does not use them."""
MC_SAMPLES = 64
PRUNED = (0.5, 0.8, 0.9, 0.95, 0.98)
ADAM, SCALED, OURS = "Adam", "Adam, scaled", "IVON"
SIGNAL_TO_NOISE, MAGNITUDE = "by signal-to-noise", "by magnitude"
DIGITS, PHOTOGRAPHS, SHUFFLED = "digits", "photographs", "shuffled"

Predict = Callable[[Tensor], Tensor]
"""A function from inputs to class probabilities."""


def compare_digits(effort: Effort, *, seed: int, advance: Advance) -> Part:
    """Compare scores and pruning on several splits of the digits, with a report on the posterior of the first one."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x, y, others = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels), photographs()
    scores: list[Rows] = []
    pruned: list[dict[str, Rows]] = []
    shown: dict[str, Any] = {"entropy": {ADAM: [], OURS: []}}
    steps = effort.repetitions * (len(RATES) + 1)
    for repetition in range(effort.repetitions):
        own = seed_of(seed, 2, repetition)
        generator = torch.Generator().manual_seed(own)
        order = torch.randperm(len(x), generator=generator)
        sizes = [effort.digit_rows, VALIDATION, len(x) - effort.digit_rows - VALIDATION]
        training, validation, test = torch.split(order, sizes)
        shuffles = torch.rand(len(test), x.shape[1], generator=generator).argsort(1)
        outside = {PHOTOGRAPHS: others, SHUFFLED: x[test].gather(1, shuffles)}

        def done(number: int, repetition: int = repetition) -> None:
            advance("digits", repetition * (len(RATES) + 1) + number, steps)

        adam, scaled = _best_adam(x[training], y[training], x[validation], y[validation], effort.epochs, own, done)
        network, optimizer, start = train_ivon(x[training], y[training], epochs=effort.epochs, seed=own)
        done(len(RATES) + 1)
        q = optimizer.posterior(network)
        ours = _predicting(network, q)
        groups = {DIGITS: x[test], **outside}
        entropy = {
            name: {group: _entropy(found(inputs)) for group, inputs in groups.items()}
            for name, found in ((ADAM, adam), (SCALED, scaled), (OURS, ours))
        }
        scores.append(
            {
                name: _scores(found(x[test]), y[test], entropy[name])
                for name, found in ((ADAM, adam), (SCALED, scaled), (OURS, ours))
            }
        )
        pruned.append(_pruned(network, q, x[test], y[test]))
        for name, entropies in shown["entropy"].items():
            entropies.append(entropy[name])
        if not repetition:
            shown |= {"report": optimizer.report(), "posterior": q, "start": start}
    numbers = {
        "rows": mean_rows(scores),
        "differences": {SCALED: differences(scores, OURS, SCALED)},
        "pruned": {level: mean_rows([rows[level] for rows in pruned]) for level in pruned[0]},
        "pruned differences": {
            level: differences([rows[level] for rows in pruned], SIGNAL_TO_NOISE, MAGNITUDE) for level in pruned[0]
        },
        "report": shown["report"].to_dict(),
    }
    return Part(numbers, shown)


def photographs() -> Tensor:
    """Return grey 8 by 8 parts of scikit-learn's two photographs, with the contrast of the digits."""
    from sklearn.datasets import load_sample_images

    parts = []
    for image in load_sample_images().images:
        grey = torch.tensor(image, dtype=torch.float32).mean(-1)
        small = nn.functional.avg_pool2d(grey[None], 4)[0]
        parts.append(small.unfold(0, 8, 8).unfold(1, 8, 8).reshape(-1, 64))
    pixels = torch.cat(parts)
    least, most = pixels.amin(1, keepdim=True), pixels.amax(1, keepdim=True)
    return (pixels - least) / (most - least).clamp_min(1.0)


def _network(seed: int) -> nn.Sequential:
    with seeded(seed, torch.device("cpu")):
        return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def _steps(rows: int, epochs: int) -> int:
    return epochs * math.ceil(rows / BATCH_SIZE)


def _train(network: nn.Module, x: Tensor, y: Tensor, *, epochs: int, seed: int, step: Callable[[], Any]) -> None:
    """Call ``step`` after computing the gradients of every minibatch; minibatches are the same for all optimisers."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(x), generator=generator), BATCH_SIZE):
            network.zero_grad()
            nn.functional.cross_entropy(network(x[rows]), y[rows]).backward()  # type: ignore[no-untyped-call]
            step()


def train_ivon(x: Tensor, y: Tensor, *, epochs: int, seed: int) -> tuple[nn.Sequential, IVON, DiagonalGaussian]:
    """Train a network by IVON with its defaults; also return the posterior from before the first step."""
    network = _network(seed)
    optimizer = IVON(
        network.named_parameters(),
        num_data=len(x),
        batch_size=BATCH_SIZE,
        total_steps=_steps(len(x), epochs),
        seed=seed,
    )
    start = optimizer.posterior()
    optimizer.train()
    _train(network, x, y, epochs=epochs, seed=seed, step=optimizer.step)
    optimizer.eval()
    return network, optimizer, start


def _best_adam(
    x: Tensor, y: Tensor, x_held: Tensor, y_held: Tensor, epochs: int, seed: int, done: Callable[[int], None]
) -> tuple[Predict, Predict]:
    """Train by Adam at its best rate, with IVON's cosine schedule; predict without and with a tuned temperature."""
    candidates = []
    for number, rate in enumerate(RATES, start=1):
        network = _network(seed)
        optimizer = torch.optim.Adam(network.parameters(), lr=rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _steps(len(x), epochs))

        def step(optimizer: torch.optim.Adam = optimizer, schedule: Any = schedule) -> None:
            optimizer.step()
            schedule.step()

        _train(network, x, y, epochs=epochs, seed=seed, step=step)
        with torch.no_grad():
            loss = float(nn.functional.cross_entropy(network(x_held), y_held))
        candidates.append((loss, number, network))
        done(number)
    best = min(candidates)[-1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a network that has hardly been trained
        temperature = float(calibrate(best, (x_held, y_held), likelihood=Categorical()).temperature)  # type: ignore[arg-type]
    return _softmax(best, 1.0), _softmax(best, temperature)


def _softmax(network: nn.Module, temperature: float) -> Predict:
    @torch.no_grad()
    def probabilities(inputs: Tensor) -> Tensor:
        found: Tensor = (network(inputs) / temperature).softmax(1)
        return found

    return probabilities


def _predicting(network: nn.Module, posterior: DiagonalGaussian) -> Predict:
    def probabilities(inputs: Tensor) -> Tensor:
        found: Any = predict(network, posterior, inputs, likelihood=Categorical(), mc_samples=MC_SAMPLES)
        probs: Tensor = found.probs
        return probs

    return probabilities


def _entropy(probs: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probs).sum(1)
    return entropy


def _scores(probs: Tensor, target: Tensor, entropy: dict[str, Tensor]) -> dict[str, float]:
    right = probs.gather(1, target[:, None]).double().clamp_min(1e-30)
    outside = {name: metrics.ood_auroc(entropy[DIGITS], entropy[name]) for name in (PHOTOGRAPHS, SHUFFLED)}
    return {
        "accuracy": metrics.accuracy(probs, target),
        "NLL": float(-right.log().mean()),
        "ECE": metrics.expected_calibration_error(probs, target),
        **outside,
    }


def _pruned(network: nn.Module, posterior: DiagonalGaussian, x: Tensor, y: Tensor) -> dict[str, Rows]:
    """Return the accuracy of the pruned mean network, by the share of pruned weights and by the criterion."""
    found: dict[str, Rows] = {f"{level:.0%}": {} for level in PRUNED}
    for name, by in ((SIGNAL_TO_NOISE, "signal_to_noise"), (MAGNITUDE, "magnitude")):
        curve = pruning_curve(
            network, posterior, x, y, likelihood=Categorical(), fractions=PRUNED, by=by, progress=False
        )
        for level, accuracy in zip(found.values(), curve.scores["accuracy"], strict=True):
            level[name] = {"accuracy": accuracy}
    return found
