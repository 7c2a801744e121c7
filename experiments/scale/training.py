"""The two problems, their training by all methods with the same loop and minibatches, and scores and costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

import bayesadam as ba
from bayesadam.optim import PerturbedOptimizer, half_cosine
from experiments.char_lm.training import Rows, Transformer, load_text, scored
from experiments.data import load
from experiments.framework import Context
from experiments.networks import resnet

Part = tuple[Tensor, Tensor]
"""Inputs with one row per example, and labels: ``(n, length)`` of characters, and ``(n,)`` of images."""


@dataclass(frozen=True)
class Problem:
    """A network and its data.

    Attributes:
        model: The network, initialised with the seed, which returns logits, alone or first in a tuple.
        train: Examples that are trained on.
        validation: Examples by which learning rates are chosen.
        test: Examples by which the trained networks are judged.
    """

    model: nn.Module
    train: Part
    validation: Part
    test: Part


def build(config: Mapping[str, Any]) -> Problem:
    """Create the network and load the first examples of each part; see ``SIZES`` of the experiment for the config."""
    device, counts = torch.device(config["device"]), (config["train"], config["held_out"], config["held_out"])
    torch.manual_seed(config["seed"])
    parts: list[Part]
    if config["problem"] == "text":
        text = load_text(config["data"])
        windows = {"network": "transformer", "batch_size": 1, "length": config["sizes"]["length"]}
        rows = [Rows(codes, windows) for codes in (text.train, text.validation, text.test)]
        parts = [(part.x, part.y) for part in rows]
        decoder = Transformer(len(text.alphabet), **config["sizes"])
        decoder.head.weight = decoder.embedding.weight  # as in GPT-2
        model: nn.Module = decoder
    else:
        data = load(config["data"])
        x, start = data.x_train.view(-1, 1, 28, 28), config["train"]
        parts = [(x, data.y_train), (x[start:], data.y_train[start:])]
        parts.append((data.x_test.view(-1, 1, 28, 28), data.y_test))
        norm = partial(nn.GroupNorm, config["sizes"]["groups"])
        model = resnet(config["sizes"]["width"], channels=1, norm=norm)
    cut = [(x[:n].to(device), y[:n].to(device)) for (x, y), n in zip(parts, counts, strict=True)]
    return Problem(model.to(device), *cut)


def make_optimizer(config: Mapping[str, Any], problem: Problem, steps: int) -> torch.optim.Optimizer:
    """Create the optimiser of a method, with the learning rate ``lr`` of the config, or its default if there is none.

    An example is a label, but for VOGN, whose examples are rows, with the loss summed over their labels.
    """
    method, model, labels = config["method"], problem.model, problem.train[1]
    options, seed = dict(config["options"]), config["seed"]
    if "lr" in config:
        options["lr"] = config["lr"]
    if method in ("adamw", "sgd"):
        kind: Callable[..., torch.optim.Optimizer] = {"adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}[method]
        return kind(model.parameters(), fused=True, **options)
    if method == "ivon-opt":
        import ivon

        found: torch.optim.Optimizer = ivon.IVON(model.parameters(), **{"ess": labels.numel(), **options})
        return found
    groups = ba.param_groups(model)
    if method == "vogn":
        options |= {"curvature": ba.PerExampleSquares(model), "betas": (0.9, 0.999), "seed": seed}
        return ba.VOGN(groups, num_data=len(labels), **options)
    size = config["batch_size"] * labels[0].numel()
    return ba.BayesAdam(groups, num_data=labels.numel(), batch_size=size, total_steps=steps, seed=seed, **options)


def logits(model: nn.Module, x: Tensor, config: Mapping[str, Any]) -> Tensor:
    """Return logits in float32, ``(labels, classes)``, in the order of the flattened labels."""
    with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=config["autocast"]):
        out = model(x)
    out = out[0] if isinstance(out, tuple) else out
    return out.float().flatten(0, -2)


def train(config: Mapping[str, Any], problem: Problem, context: Context) -> tuple[Any, dict[str, Any]]:
    """Train a network; :func:`posterior` ends the training.

    Returns:
        The optimiser; and facts: ``steps``; ``weights``, their number;
        ``diverged``, the step, counted from 1, at which the loss or a gradient was not finite; ``curve``, the training
        losses of twenty stretches; ``milliseconds``, the median of a step, of processor time on a CPU and else of wall
        time; ``state_bytes`` of the optimiser per weight, and ``peak_mib``, the largest memory on a GPU.
    """
    model, (x, y), size = problem.model, problem.train, config["batch_size"]
    device, each = x.device, len(x) // size
    total = round(config["epochs"] * each)
    optimizer: Any = make_optimizer(config, problem, total)
    has_cosine = isinstance(optimizer, ba.BayesAdam)
    schedule = None if has_cosine else LambdaLR(optimizer, lambda done: half_cosine(done / total))
    factor = y[0].numel() if config["method"] == "vogn" else 1
    if isinstance(optimizer, PerturbedOptimizer):
        optimizer.train()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    generator, losses, times, diverged = torch.Generator().manual_seed(config["seed"]), [], [], None
    order = torch.empty(0)
    for step in range(total):
        if step % each == 0:
            order = torch.randperm(len(x), generator=generator).to(device)
        rows = order[step % each * size : (step % each + 1) * size]
        began = _clock(device)
        try:
            with optimizer.sampled_params(train=True) if config["method"] == "ivon-opt" else nullcontext():
                optimizer.zero_grad()
                loss = F.cross_entropy(logits(model, x[rows], config), y[rows].flatten())
                torch.autograd.backward(factor * loss)
            optimizer.step()
            losses.append(loss.item())
        except FloatingPointError:
            losses.append(math.nan)
        times.append(_clock(device) - began)
        if not math.isfinite(losses[-1]):
            diverged = step + 1
            break
        if schedule is not None:
            schedule.step()
        context.progress(step + 1, total, f"loss {losses[-1]:.3f}")
    count = sum(parameter.numel() for parameter in model.parameters())
    facts = {
        "steps": total,
        "weights": count,
        "diverged": diverged,
        "curve": [
            sum(part) / len(part)
            for part in (losses[total * i // 20 : total * (i + 1) // 20] for i in range(20))
            if part
        ],
        "milliseconds": 1000.0 * median(times),
        "state_bytes": state_bytes(optimizer) / count,
        "peak_mib": torch.cuda.max_memory_allocated() / 2**20 if device.type == "cuda" else None,
    }
    return optimizer, facts


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Return the size of all tensors that the optimiser keeps; ``ivon-opt`` has some of them in its groups."""
    groups = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    states = [value for value in optimizer.state.values() if isinstance(value, dict)]
    return sum(t.nbytes for values in (*groups, *states) for t in values.values() if isinstance(t, Tensor))


def posterior(optimizer: Any, model: nn.Module) -> ba.DiagonalGaussian:
    """Return the posterior, a point for AdamW and SGD, at whose mean the network's weights are then."""
    if isinstance(optimizer, PerturbedOptimizer):
        optimizer.eval()
        return optimizer.posterior(model)
    point = ba.DiagonalGaussian.point_mass(model)
    if "hess" not in (group := optimizer.param_groups[0]):
        return point
    precision = group["ess"] * (group["hess"] + group["weight_decay"])
    pieces = precision.split_with_sizes([mean.numel() for mean in point.mean.values()])
    variance = {name: 1.0 / piece.view_as(mean) for piece, (name, mean) in zip(pieces, point.mean.items(), strict=True)}
    return ba.DiagonalGaussian(point.mean, variance)


@torch.no_grad()
def scores(
    config: Mapping[str, Any], model: nn.Module, posterior: ba.DiagonalGaussian, part: Part, samples: int
) -> dict[str, Any]:
    """Return scores of the mean network, and of the mean probabilities of posterior samples if ``samples`` > 0."""
    x, y = part

    def probabilities() -> Tensor:
        return torch.cat([logits(model, rows, config).softmax(-1) for rows in torch.split(x, 4 * config["batch_size"])])

    found = {"mean": scored(probabilities(), y.flatten())}
    if samples:
        total = torch.zeros((), device=x.device)
        for number in range(samples):
            with posterior.applied(model, sample=number):
                total = total + probabilities()
        found["samples"] = scored(total / samples, y.flatten())
    return found
