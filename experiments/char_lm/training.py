"""The text, the two networks, their training by all methods, and their scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer

import bayesadam as ba
from bayesadam.optim import PerturbedOptimizer
from experiments.data import load
from experiments.framework import Context, save

State = tuple[Tensor, Tensor]
Posterior = ba.DiagonalGaussian | None
Place = tuple[slice | Tensor, slice]

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where networks are trained. A checkpoint of one device is continued on another one, with the same noise."""


@dataclass(frozen=True)
class Text:
    """A text in three contiguous parts.

    Attributes:
        alphabet: The characters that occur. The code of a character is its index in the alphabet.
        train: Codes of the first part, ``(n,)``.
        validation: Codes of the second part.
        test: Codes of the last part.
    """

    alphabet: tuple[str, ...]
    train: Tensor
    validation: Tensor
    test: Tensor


def load_text(name: str = "text/war-and-peace") -> Text:
    """Load a text, divided into 80%, 10% and 10%, as torch-rnn does."""
    data = load(name)
    codes = torch.cat([data.x_train, data.y_train[-1:]]).to(DEVICE)
    size = int(0.1 * len(codes))
    return Text(tuple(data.target_names), *torch.split(codes, [len(codes) - 2 * size, size, size]))


class Rows:
    """Characters and their successors as two matrices, of which every step takes a block.

    The rows of a matrix, one after another, are the text. Its end is left out if it does not fill a block. An LSTM
    reads ``batch_size`` streams side by side, each from beginning to end; a transformer, which has no memory, reads
    windows of ``length`` characters in random order.

    Attributes:
        x: Codes, ``(rows, columns)``.
        y: Codes of the successors, of the same shape.
        steps: Number of blocks.
    """

    def __init__(self, codes: Tensor, config: Mapping[str, Any]) -> None:
        self.batch_size, self.length = config["batch_size"], config["length"]
        self.windows = config["network"] == "transformer"
        self.steps = (len(codes) - 1) // (self.batch_size * self.length)
        used = self.steps * self.batch_size * self.length
        shape = (-1, self.length) if self.windows else (self.batch_size, -1)
        self.x, self.y = codes[:used].view(shape), codes[1 : used + 1].view(shape)

    def order(self, seed: int) -> Tensor | None:
        """Return a permutation of the windows, or ``None`` for streams, whose order is fixed."""
        return torch.randperm(len(self.x), generator=torch.Generator().manual_seed(seed)) if self.windows else None

    def block(self, step: int, order: Tensor | None = None) -> Place:
        """Return the rows and columns of a step, counted from 0, in the given order or in that of the text."""
        if not self.windows:
            return slice(None), slice(step * self.length, (step + 1) * self.length)
        rows = slice(step * self.batch_size, (step + 1) * self.batch_size)
        return (rows if order is None else order[rows]), slice(None)


class LSTM(nn.Module):
    """torch-rnn's language model, with its initialisation.

    A cell has one bias (the second of PyTorch's two is frozen at 0), 1 for the forget gate and else 0; the other
    weights of a layer are normal with variance ``1 / (inputs + hidden)``, embeddings standard normal.
    """

    def __init__(self, characters: int, *, embedding: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, embedding)
        self.lstm = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, characters)
        for layer in range(layers):
            scale = 1.0 / math.sqrt((embedding if layer == 0 else hidden) + hidden)
            for name in ("weight_ih", "weight_hh"):
                nn.init.normal_(getattr(self.lstm, f"{name}_l{layer}"), 0.0, scale)
            bias, other = getattr(self.lstm, f"bias_ih_l{layer}"), getattr(self.lstm, f"bias_hh_l{layer}")
            nn.init.zeros_(bias)
            nn.init.ones_(bias[hidden : 2 * hidden])  # PyTorch's order is input, forget, cell, output
            nn.init.zeros_(other).requires_grad_(False)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return logits ``(batch, length, characters)`` and the state after the last character."""
        hidden, state = self.lstm(self.embedding(x), state)
        return self.head(hidden), state


class Block(nn.Module):
    """Causal attention and a perceptron, each after a layer norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return hidden states for hidden states, both ``(batch, length, width)``."""
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(seen.transpose(1, 2).reshape(batch, length, width))
        x = x + self.outer(F.gelu(self.inner(self.norm2(x))))
        return x


class Transformer(nn.Module):
    """A decoder with learned positions; linear weights and embeddings start normal with standard deviation 0.02."""

    def __init__(self, characters: int, *, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(characters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, characters)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                small = 0.02 / math.sqrt(2 * layers) if name.endswith(("projection.weight", "outer.weight")) else 0.02
                nn.init.normal_(parameter, 0.0, small)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State | None]:
        """Return logits ``(batch, length, characters)``, without a state."""
        hidden = self.embedding(x) + self.position(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden)), None


def build(config: Mapping[str, Any], characters: int) -> nn.Module:
    """Create the network of a unit, initialised with its seed."""
    torch.manual_seed(config["seed"])
    network: type[nn.Module] = {"lstm": LSTM, "transformer": Transformer}[config["network"]]
    return network(characters, **config["sizes"]).to(DEVICE)


def make_optimizer(model: nn.Module, config: Mapping[str, Any], characters: int, steps: int) -> Optimizer:
    """Create the optimiser of a unit.

    Args:
        model: The network.
        config: ``method``, its ``options``, ``batch_size``, ``length``, ``seed``.
        characters: Size of the training part, which is ``num_data``.
        steps: Number of steps of the training.
    """
    name, options = config["method"], dict(config["options"])
    parameters = [p for p in model.parameters() if p.requires_grad]
    if "betas" in options:
        options["betas"] = tuple(options["betas"])
    if name == "sgd":
        return torch.optim.SGD(parameters, **options)
    if name == "adagrad":  # the paper's sum counts a squared gradient as 1 - beta, PyTorch's as 1
        share = 1.0 - options["beta"]
        rate, start = options["lr"] / math.sqrt(share), options.get("s0", 0.0) / share
        return torch.optim.Adagrad(parameters, lr=rate, initial_accumulator_value=start)
    if name == "adam":
        return torch.optim.Adam(parameters, **options)
    if name == "adamw":
        return torch.optim.AdamW(parameters, **options)
    if name == "vadagrad":
        s0 = options["s0"]
        num_data, precision = {
            "mean": (1.0, s0),
            "data": (math.sqrt(characters), characters * s0),
            "sum": (float(characters), s0),
        }[options["unit"]]
        settings = {"betas": (0.0, options["beta"]), "initial_precision": precision, "seed": config["seed"]}
        return ba.VadaGrad(model.named_parameters(), options["lr"], num_data=num_data, **settings)
    options |= {"num_data": characters, "seed": config["seed"]}
    if name == "ivon":
        return ba.IVON(ba.param_groups(model), **options)
    batch_size = config["batch_size"] * config["length"]
    return ba.BayesAdam(ba.param_groups(model), batch_size=batch_size, total_steps=steps, **options)


def annealing(config: Mapping[str, Any], done: float) -> float | None:
    """Return the factor of the learning rate at the completed share of the training, or ``None`` if the optimiser has
    its own schedule.
    """
    if config["decay"] == "steps":
        every: float = config["decay_every"] / config["published_epochs"]
        return math.pow(0.1, math.floor(done / every + 1e-9))
    if config["method"] == "bayesadam":
        return None
    return 0.01 + 0.99 * 0.5 * (1.0 + math.cos(math.pi * done))  # as in BayesAdam


def train(config: Mapping[str, Any], text: Text, context: Context) -> tuple[nn.Module, Posterior, dict[str, Any]]:
    """Train one network, or resume its training from the checkpoint, which is written with every record.

    Returns:
        The network, whose weights are the point estimate or the posterior mean; the posterior, if the method has one;
        and facts: ``steps``, the number of steps; ``diverged``, the step, counted from 1, at which the training ended
        because a loss or a gradient was not finite; and ``curve``, records of the time in epochs, of the mean training
        loss per character since the last record, and of the loss of the mean network per character of the test part.
    """
    model = build(config, len(text.alphabet))
    data, test = Rows(text.train, config), Rows(text.test, config)
    total = round(config["epochs"] * data.steps)
    optimizer = make_optimizer(model, config, len(text.train), total)
    rates = [group["lr"] for group in optimizer.param_groups]
    path, begun, state, order = context.folder / "training.pt", 0, None, None
    curve: dict[str, list[float]] = {"epoch": [], "train": [], "test": []}
    if path.is_file():
        saved = torch.load(path, map_location="cpu")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        curve, begun = saved["curve"], saved["step"]
        state = None if saved["state"] is None else tuple(part.to(DEVICE) for part in saved["state"])
    marks = {math.ceil(i * data.steps / config["records"]) for i in range(1, config["records"] + 1)}
    losses: list[float] = []
    for step in range(begun, total):
        epoch, place = divmod(step, data.steps)
        if place == 0:
            state = None
        factor = annealing(config, step / total)
        if factor is not None:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate * factor
        if place == 0 or step == begun:
            order = data.order(config["seed"] * 1000 + epoch)
        block = data.block(place, order)
        try:
            loss, state = _step(model, optimizer, data.x[block], data.y[block], state, config["clamp"])
        except FloatingPointError:
            loss = math.nan
        if not math.isfinite(loss):
            return model, None, {"steps": step, "diverged": step + 1, "curve": curve}
        losses.append(loss)
        if place + 1 in marks:
            curve["epoch"].append((step + 1) / data.steps)
            curve["train"].append(sum(losses) / len(losses))
            curve["test"].append(mean_loss(model, test))
            losses = []
            states = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(path, {**states, "curve": curve, "step": step + 1, "state": state})
        if step % 20 == 0 or step + 1 == total:
            context.progress(step + 1, total, f"epoch {epoch + 1}, loss {loss:.3f}")
    posterior = optimizer.posterior(model) if isinstance(optimizer, PerturbedOptimizer) else None
    return model, posterior, {"steps": total, "diverged": None, "curve": curve}


def _step(
    model: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor, state: State | None, clamp: float | None
) -> tuple[float, State | None]:
    """Make one step, at a posterior sample if the method has one, and return the loss and the next state."""
    with optimizer.sampled_params() if isinstance(optimizer, PerturbedOptimizer) else nullcontext():
        optimizer.zero_grad()
        logits, state = model(x, state)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
    if clamp is not None:
        nn.utils.clip_grad_value_(model.parameters(), clamp)
    optimizer.step()
    return loss.item(), None if state is None else (state[0].detach(), state[1].detach())


def _logits(model: nn.Module, data: Rows) -> Iterator[tuple[Place, Tensor]]:
    """Yield the logits of all blocks in the order of the text; the state is carried from one block to the next."""
    state = None
    for step in range(data.steps):
        rows, columns = data.block(step)
        logits, state = model(data.x[rows, columns], state)
        yield (rows, columns), logits


@torch.no_grad()
def mean_loss(model: nn.Module, data: Rows) -> float:
    """Return the loss in nats per character with the current weights of the network."""
    total = math.fsum(
        float(F.cross_entropy(logits.flatten(0, 1), data.y[block].flatten(), reduction="sum"))
        for block, logits in _logits(model, data)
    )
    return total / data.y.numel()


@torch.no_grad()
def scores(model: nn.Module, posterior: Posterior, data: Rows, counts: Sequence[int] = ()) -> dict[str, Any]:
    """Return scores per character of the predictive distributions. Each sample reads the text with its own memory.

    Args:
        model: Network with the posterior mean or the point estimate as weights.
        posterior: Posterior from which weights are sampled.
        data: The text to predict.
        counts: Numbers of samples, in ascending order; predictions are averaged over the first samples.

    Returns:
        Entries such as ``"mean"`` and ``"samples-8"``, each with ``nll`` in nats, ``perplexity``, ``ece`` in 15 bins
        and ``accuracy``.
    """
    probs = _probabilities(model, data)
    target = data.y.flatten()
    found: dict[str, Any] = {"mean": scored(probs, target)}
    if posterior is not None and counts:
        total = torch.zeros_like(probs)
        for number in range(counts[-1]):
            with posterior.applied(model, sample=number):
                total += _probabilities(model, data)
            if number + 1 in counts:
                found[f"samples-{number + 1}"] = scored(total / (number + 1), target)
    return found


def _probabilities(model: nn.Module, data: Rows) -> Tensor:
    """Return the probabilities in the order of the text, ``(n, characters)``."""
    probs: Tensor | None = None
    for block, logits in _logits(model, data):
        if probs is None:
            probs = logits.new_empty(*data.y.shape, logits.shape[-1])
        probs[block] = logits.softmax(-1)
    assert probs is not None
    return probs.flatten(0, 1)


def scored(probs: Tensor, target: Tensor) -> dict[str, float]:
    """Return the scores of probabilities ``(n, classes)`` for labels ``(n,)``; see :func:`scores`."""
    nll = -float(probs.gather(1, target[:, None]).log().double().mean())
    return {
        "nll": nll,
        "perplexity": math.exp(nll),
        "ece": ba.metrics.expected_calibration_error(probs, target),
        "accuracy": ba.metrics.accuracy(probs, target),
    }
