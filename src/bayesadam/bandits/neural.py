"""Rewards predicted by neural networks, which are trained by any method for populations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.bandits.belief import Belief, Learner
from bayesadam.bandits.chosen import ChosenRewards
from bayesadam.bandits.heads import Badam, Dropout, Head, LastLayer, MeanField, Point
from bayesadam.bandits.replay import Replay
from bayesadam.checks import check, is_whole
from bayesadam.likelihoods import Gaussian, Likelihood, check_likelihood
from bayesadam.likelihoods.base import seeded
from bayesadam.population.batches import Batch
from bayesadam.population.chunk import Chunk
from bayesadam.population.layout import Layout
from bayesadam.population.members import configure
from bayesadam.population.networks import initialize
from bayesadam.population.rates import Rates
from bayesadam.predictive.batches import in_eval_mode

RULES = ("vadam", "ivon", "vogn", "vprop", "bbb")
"""Methods whose own posterior is sampled."""
POINTS = ("adam", "badam", "badam-mle", "dropout", "last-layer", "neural-linear")
"""Methods that train with Adam."""
LEARNING_RATES = {"ivon": 0.1, "vogn": 0.05}
"""Default learning rates by method; 0.001 for all others."""


@dataclass(frozen=True)
class Neural(Belief):
    """A network that takes a context and has one output per action; only the chosen action's output is trained.

    =================== ==================================================================================
    ``method``          a posterior sample is
    =================== ==================================================================================
    ``"vadam"``, ...    a draw of all weights from the rule's own posterior (``RULES``)
    ``"badam"``         a draw from :func:`bayesadam.badam`; the prior is a weight decay in Adam's loss
    ``"badam-mle"``     the same, but the prior is added after training, ``weights="mle"``
    ``"dropout"``       the network with one dropout mask
    ``"last-layer"``    the network with a draw of its last layer from the Laplace approximation
    ``"neural-linear"`` a draw of exact linear regressions on the units before the last layer
    ``"adam"``          the network itself: for greedy and epsilon-greedy agents
    =================== ==================================================================================

    After every ``train_every`` observations the network is trained further on ``steps`` minibatches, drawn with
    replacement from all observations so far (Riquelme et al. 2018). Without a ``likelihood``, rewards are standardised
    to mean 0 and standard deviation 1 over all observations, and their likelihood is Gaussian.

    Args:
        method: Method of the table above.
        hidden: Numbers of units of the hidden layers, with ReLU.
        model: Function that makes another network, given the number of features and the number of actions. If actions
            are added later, only its last layer may depend on their number.
        likelihood: Likelihood of a reward given its output, without learned parameters. Default ``Gaussian``. The
            regressions of ``"neural-linear"`` predict the rewards themselves; it is then only the loss of the network.
        noise_precision: Noise precision of the default likelihood, for standardised rewards.
        lr: Learning rate; ``None`` uses the default of the method.
        lr_decay: Decay of the learning rate, which is ``lr / (1 + lr_decay * t)`` after ``t`` steps.
        prior_precision: Precision of the weights' prior.
        initial_curvature: Curvature at the start, where the posterior has a precision of
            ``prior_precision + initial_curvature * N``; for the methods in ``RULES``.
        data_weight: Factor between the number of observations and the size ``N`` of the data on which the width of the
            posterior depends. With a factor of 1 and thousands of weights, agents explore far too much. Kessler et al.
            2018 use 512, the size of a minibatch.
        width: Factor of the standard deviations of the posterior samples; below 1 agents explore less.
        dropout: Rate of the dropout after the hidden layers, for ``"dropout"``.
        clip: Largest norm of a gradient; ``None`` for no limit.
        train_every: Number of observations between two trainings.
        steps: Number of minibatches per training.
        batch_size: Size of the minibatches.
        options: Further hyper-parameters of the optimiser (``betas``, ``temperature``, ``mc_samples``, ...).
    """

    method: str = "vadam"
    _: KW_ONLY
    hidden: Sequence[int] = (100, 100)
    model: Callable[[int, int], nn.Module] | None = None
    likelihood: Likelihood | None = None
    noise_precision: float = 1.0
    lr: float | None = None
    lr_decay: float = 0.0
    prior_precision: float = 10.0
    initial_curvature: float = 1.0
    data_weight: float = 512.0
    width: float = 1.0
    dropout: float = 0.2
    clip: float | None = 1.0
    train_every: int = 20
    steps: int = 50
    batch_size: int = 512
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.method not in (*RULES, *POINTS):
            raise ValueError(f"method must be one of {(*RULES, *POINTS)}, got {self.method!r}")
        for name in ("noise_precision", "prior_precision", "initial_curvature", "data_weight"):
            check(name, getattr(self, name), "a positive, finite number", lambda v: 0 < v < math.inf)
        for name in ("lr_decay", "width"):
            check(name, getattr(self, name), "a finite number of at least 0", lambda v: 0 <= v < math.inf)
        check("dropout", self.dropout, "in [0, 1)", lambda v: 0 <= v < 1)
        check("clip", self.clip, "None or positive", lambda v: v is None or v > 0)
        for name in ("train_every", "steps", "batch_size"):
            check(name, getattr(self, name), "a whole number of at least 1", is_whole)
        check("hidden", self.hidden, "whole numbers of at least 1", lambda v: all(map(is_whole, v)))
        if self.likelihood is not None:
            check_likelihood(self.likelihood)
            if any(parameter.requires_grad for parameter in self.likelihood.parameters()):
                raise ValueError(f"likelihood must not have parameters that are learned, got {self.likelihood!r}")

        object.__setattr__(self, "hidden", tuple(self.hidden))  # files store lists

    def start(self, num_features: int, num_actions: int, seeds: Sequence[int]) -> NeuralLearner:
        """Create the networks before any observation."""
        return NeuralLearner(self, num_features, num_actions, seeds)

    def network(self, num_features: int, num_actions: int) -> nn.Module:
        """Create a network with new weights."""
        if self.model is not None:
            return self.model(num_features, num_actions)
        layers: list[nn.Module] = []
        width = num_features
        for units in self.hidden:
            layers += [nn.Linear(width, units), nn.ReLU()]
            if self.method == "dropout":
                layers.append(nn.Dropout(self.dropout))
            width = units
        return nn.Sequential(*layers, nn.Linear(width, num_actions))

    def hyperparameters(self, num_data: float) -> dict[str, Any]:
        """Return the hyper-parameters of the optimiser for a number of data points."""
        found: dict[str, Any] = {"lr": LEARNING_RATES.get(self.method, 0.001) if self.lr is None else self.lr}
        if self.method in ("ivon", "vadam", "vogn", "vprop"):
            found["bridge"] = False
        if self.method in ("ivon", "vadam"):
            found["batch_size"] = self.batch_size
        return found | dict(self.options) | self.changing(num_data)

    def changing(self, num_data: float) -> dict[str, float]:
        """Return the hyper-parameters that depend on the number of data points."""
        if self.method in RULES:
            start = self.prior_precision + self.initial_curvature * num_data
            return {"num_data": num_data, "prior_precision": self.prior_precision, "initial_precision": start}
        if self.method == "badam-mle":
            return {"num_data": num_data}
        return {"num_data": num_data, "weight_decay": self.prior_precision / num_data}


class NeuralLearner(Learner):
    """The networks of all agents, trained together."""

    def __init__(self, belief: Neural, num_features: int, num_actions: int, seeds: Sequence[int]) -> None:
        super().__init__(num_actions, seeds)
        self.belief, self.num_features = belief, num_features
        agents = len(self.seeds)
        self.shift, self.scale = torch.zeros(agents, 1), torch.ones(agents, 1)
        self.likelihood = Gaussian(belief.noise_precision) if belief.likelihood is None else belief.likelihood
        self._stream = _Stream(belief, self)
        self.chunk, self.head = self._made()

    def _made(self) -> tuple[Chunk, Head]:
        """Create new networks for the current number of actions."""
        belief, agents = self.belief, len(self.seeds)
        models = initialize(lambda: belief.network(self.num_features, self.num_actions), seeds=self.seeds)
        with in_eval_mode(models[0]):
            output = models[0](torch.zeros(2, self.num_features))
        if not isinstance(output, Tensor) or output.shape != (2, self.num_actions):
            found = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise ValueError(f"model must give {self.num_actions} outputs for each context, got {found} for 2 contexts")
        losses = ChosenRewards(models, [self.likelihood] * agents, belief.clip)
        own = belief.hyperparameters(belief.data_weight)
        method = belief.method if belief.method in RULES else "adam"
        rule, hypers, means = configure(
            method, models, [self.likelihood] * agents, losses.layout, [{**own, "seed": seed} for seed in self.seeds]
        )
        hypers = [{**own, "num_data": belief.data_weight} for own in hypers]  # not an argument of Adam itself
        decay = belief.lr_decay
        rates = Rates(1, lr_decay=(lambda step: 1.0 / (1.0 + decay * step)) if decay else None)
        chunk = Chunk(range(agents), losses, rule, hypers, means, self._stream, rates)  # type: ignore[arg-type]
        head = self._head(losses)
        head.follow(chunk)
        return chunk, head

    def _head(self, losses: ChosenRewards) -> Head:
        belief, networks = self.belief, losses.networks
        if belief.method in RULES:
            return MeanField(networks, belief.width)
        if belief.method in ("badam", "badam-mle"):
            weights = "mle" if belief.method == "badam-mle" else "map"
            return Badam(networks, belief.width, weights, belief.prior_precision)
        if belief.method == "dropout":
            return Dropout(networks, belief.width)
        if belief.method in ("last-layer", "neural-linear"):
            laplace = belief.method == "last-layer"
            return LastLayer(
                networks,
                belief.width,
                laplace,
                len(self.seeds),
                self.num_actions,
                belief.prior_precision,
                belief.noise_precision if laplace else None,
                belief.likelihood,
            )
        return Point(networks, belief.width)

    def observe(self, replay: Replay, count: int) -> None:
        """Add new observations, as in the base class."""
        rewards = (replay.rewards[:, -count:] - self.shift) / self.scale
        self.head.add(replay.contexts[:, -count:], replay.actions[:, -count:], rewards)

    def train(self, replay: Replay, number: int) -> None:
        """Train the networks of all agents, as in the base class."""
        if self.belief.likelihood is None:
            self.shift = replay.rewards.mean(1, keepdim=True)
            spread = replay.rewards.std(1, correction=0, keepdim=True)
            self.scale = torch.where(spread > 1e-6 * self.shift.abs(), spread, 1.0)
        self.chunk.tell(**self.belief.changing(self.belief.data_weight * replay.size))
        self._stream.replay = replay
        self.chunk.objective.networks.train()
        with seeded(self.seeds[0] + number, self.chunk.mean.device):  # dropout draws from torch's generator
            self.chunk.train_epoch(number, True)
        self.head.follow(self.chunk)
        self.head.fit(replay.contexts, replay.actions, (replay.rewards - self.shift) / self.scale)

    def scores(self, contexts: Tensor, number: int | None, seeds: Sequence[int] | None = None) -> Tensor:
        """Return the expected rewards of all actions, as in the base class."""
        outputs = self.head.outputs(contexts, number, self.seeds if seeds is None else seeds)
        mean = outputs if self.head.in_rewards else self.likelihood.moments(outputs)[0]
        return mean * self.scale.unsqueeze(2) + self.shift.unsqueeze(2)

    def grow(self, count: int) -> None:
        """Add outputs to the last layer, with the weights of a new network."""
        old, trained, before = self.chunk, self.head.tensors(), self.num_actions
        self.num_actions = before + count
        try:
            chunk, head = self._made()
            layouts = old.objective.layout, chunk.objective.layout
            mean = _grafted(old.mean, chunk.mean, *layouts, before)
            state = {name: _grafted(old.state[name], own, *layouts, before) for name, own in chunk.state.items()}
        except Exception:
            self.num_actions = before
            raise
        chunk.tell(**self.belief.changing(old.hypers[0]["num_data"]))
        chunk.restore(mean, state, old.counters, old.steps)
        head.follow(chunk)
        fresh = head.tensors()
        for name, value in trained.items():
            fresh[name][:, :before] = value
        head.restore(fresh)
        self.chunk, self.head = chunk, head

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the state, as in the base class."""
        found = {"shift": self.shift, "scale": self.scale, "mean": self.chunk.mean}
        found |= {f"state/{name}": value for name, value in self.chunk.state.items()}
        return found | {f"head/{name}": value for name, value in self.head.tensors().items()}

    def facts(self) -> dict[str, Any]:
        """Return the other values of the state, as in the base class."""
        numbers = {"steps": self.chunk.steps[0], "num_data": self.chunk.hypers[0]["num_data"]}
        return {**numbers, "counters": dict(self.chunk.counters)}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Restore the state, as in the base class."""
        state = {name: tensors[f"state/{name}"].expand_as(own).clone() for name, own in self.chunk.state.items()}
        mean = tensors["mean"].expand_as(self.chunk.mean).clone()
        self.shift, self.scale = tensors["shift"], tensors["scale"]
        self.chunk.tell(**self.belief.changing(facts["num_data"]))
        self.chunk.restore(mean, state, facts["counters"], [facts["steps"]] * len(mean))
        self.head.follow(self.chunk)
        self.head.restore({name: tensors[f"head/{name}"] for name in self.head.tensors()})


class _Stream:
    """Minibatches of the agents' observations, for the training loop of a population."""

    replay: Replay

    def __init__(self, belief: Neural, learner: NeuralLearner) -> None:
        self._belief, self._learner = belief, learner
        self.batches = [belief.steps] * len(learner.seeds)

    def epoch(self, members: Sequence[int], seeds: Sequence[int], epoch: int) -> Iterator[Batch]:
        """Yield the minibatches of one training."""
        learner = self._learner
        yield from self.replay.minibatches(
            self._belief.steps,
            self._belief.batch_size,
            seeds=seeds,
            number=epoch,
            shift=learner.shift,
            scale=learner.scale,
        )


def _grafted(old: Tensor, new: Tensor, old_layout: Layout, new_layout: Layout, before: int) -> Tensor:
    """Return rows in the new layout, with the old values of all weights that existed before."""
    source, target = old_layout.split(old), new_layout.split(new.clone())
    if list(source) != list(target):
        raise ValueError("model must have the same layers for any number of actions, got others")
    for name, value in target.items():
        if value.shape == source[name].shape:
            target[name] = source[name]
        elif value.shape[2:] == source[name].shape[2:] and source[name].shape[1] == before:
            target[name] = torch.cat([source[name], value[:, before:]], dim=1)
        else:
            found = tuple(source[name].shape[1:]), tuple(value.shape[1:])
            raise ValueError(
                f"model must differ in the outputs of its last layer only when actions are added, got {name!r} of "
                f"shapes {found[0]} and {found[1]}"
            )
    return new_layout.flatten(target)
