"""Agents that learn the rewards of actions, and the loop in which one of them plays a problem.

Thompson sampling applies a sample of the posterior, and takes the action that is best under it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import bayesadam as ba
from experiments.bandits.problems import problem

WARM_UP = 3
"""Number of times that every action is first chosen, in turn."""
EPSILON = 0.05
"""Probability of a random action of the policy ``"epsilon-greedy"``."""
TRAIN_EVERY, STEPS, BATCH_SIZE, CLIP = 20, 50, 512, 1.0
"""Rounds between two trainings, minibatches per training, their size, and the largest norm of a gradient."""
LEARNING_RATE = 0.001
PUBLISHED = {"lr": 0.1, "decay": 0.5, "start": 0.3, "clip": 5.0}
"""Kessler et al. 2018, appendix D.3: learning rate ``lr / (1 + decay * step)``, which never restarts in the library of
the authors; bound of the uniform initial weights; and largest norm of a gradient.
"""
SHAPE, RATE = 6.0, 6.0
"""Parameters of the inverse gamma prior of an unknown noise variance (Riquelme et al. 2018)."""
CHOICES, WEIGHTS = 1, 2
"""Streams of the random numbers for choices and for weights of linear regressions."""
OPTIMIZERS: Mapping[str, Any] = {
    "vadam": ba.Vadam,
    "bayesadam": ba.BayesAdam,
    "bbb": ba.population.BayesByBackprop,
}
"""Optimisers whose own posterior is sampled, by method."""


def play(config: Mapping[str, Any], seed: int, progress: Callable[[int], None]) -> tuple[NDArray[Any], ...]:
    """Play all rounds of a problem with one agent, and return its rewards, those of the optimal policy, both ``(T,)``,
    and the number of times that it was told the reward of each action, ``(A,)``.

    Args:
        config: ``problem``, ``rounds``, ``belief``, ``options`` of the agent, ``policy`` (Thompson sampling if there is
            none), ``told`` if it learns the rewards of all actions in every round, as no bandit algorithm does, and
            ``published_settings`` if a network has those of :data:`PUBLISHED`.
        seed: Seed of the problem and of all random numbers of the agent.
        progress: Function that is called with the number of rounds so far.
    """
    rounds, policy = config["rounds"], config.get("policy", "thompson")
    game = problem(config["problem"], rounds, seed)
    num_actions = game.rewards.shape[1]
    told = num_actions if config.get("told") == "all" else 1
    agent = make(config, game.contexts.shape[1], num_actions, seed)
    contexts = game.contexts.repeat_interleave(told, 0)  # one row for each reward that the agent is told
    actions, rewards = torch.zeros(rounds * told, dtype=torch.int64), torch.zeros(rounds * told)
    pulls, earned = np.zeros(num_actions), np.zeros(rounds)
    for t in range(rounds):
        if pulls.min() < WARM_UP:
            action = int(pulls.argmin())
        else:
            action = choose(agent, policy, game.contexts[t], t, num_actions, seed)
        earned[t] = game.rewards[t, action].item()
        new = slice(t * told, (t + 1) * told)
        actions[new] = torch.arange(num_actions) if told > 1 else action
        rewards[new] = game.rewards[t, actions[new]]
        pulls[actions[new].numpy()] += 1
        if policy != "uniform":
            agent.observe(contexts[new], actions[new], rewards[new])
            if (t + 1) % TRAIN_EVERY == 0:
                agent.train(contexts[: new.stop], actions[: new.stop], rewards[: new.stop], t // TRAIN_EVERY)
        if t % 20 == 0:
            progress(t)
    return earned, game.optimal.numpy(), pulls


def choose(agent: Linear | Network, policy: str, context: Tensor, number: int, num_actions: int, seed: int) -> int:
    """Return the action of round ``number``."""
    generator = np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, CHOICES, number]))
    random = int(generator.random(num_actions).argmin())
    if policy == "uniform" or (policy == "epsilon-greedy" and generator.random() < EPSILON):
        return random
    return int(agent.scores(context, number if policy == "thompson" else None).argmax())


def make(config: Mapping[str, Any], num_features: int, num_actions: int, seed: int) -> Linear | Network:
    """Create the agent of a unit before its first round."""
    if config["belief"] == "linear":
        return Linear(num_features, num_actions, seed)
    last = config["options"]["method"] in ("last-layer", "neural-linear")
    options = {**config["options"], "published": config.get("published_settings", False)}
    return (LastLayer if last else Network)(num_features, num_actions, seed, **options)


class Linear:
    """An exact Bayesian linear regression with intercept for every action, "LinFullPost" of Riquelme et al. 2018."""

    def __init__(self, num_features: int, num_actions: int, seed: int) -> None:
        self.regressions = Regressions(num_actions, num_features + 1, prior_precision=0.25, seed=seed)

    def scores(self, context: Tensor, sample: int | None) -> Tensor:
        """Return the rewards of all actions, ``(A,)``, under a posterior sample, or at the mean if it is ``None``."""
        return self.regressions.weights(sample) @ _with_intercept(context)

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Learn from new rewards, ``(n,)``, of actions in contexts ``(n, d)``."""
        self.regressions.add(_with_intercept(contexts), actions, rewards)

    def train(self, contexts: Tensor, actions: Tensor, rewards: Tensor, number: int) -> None:
        """Train on all rewards so far; there is nothing to train."""


class Network:
    """A network with one output per action, of which the output of the chosen action is trained.

    Args:
        num_features: Length of a context.
        num_actions: Number of actions ``A``.
        seed: Seed of the initial weights, of the minibatches and of all noise.
        method: One of :data:`OPTIMIZERS`, or a method that trains with Adam: ``"badam"`` with the prior as weight decay
            in the loss, ``"badam-mle"`` with the prior added after the training, ``"dropout"``, or ``"adam"`` without a
            posterior.
        data_weight: Number of times that every observation is counted.
        prior_precision: Precision of the weights' prior.
        published: Whether learning rate, initial weights and clipping are those of :data:`PUBLISHED`.
    """

    def __init__(
        self,
        num_features: int,
        num_actions: int,
        seed: int,
        method: str,
        data_weight: float = 512.0,
        prior_precision: float = 10.0,
        published: bool = False,
    ) -> None:
        self.seed, self.method = seed, method
        self.data_weight, self.prior_precision = data_weight, prior_precision
        torch.manual_seed(seed)
        layers: list[nn.Module] = []
        for inputs in (num_features, 100):
            layers += [nn.Linear(inputs, 100), nn.ReLU()]
            if method == "dropout":
                layers.append(nn.Dropout(0.2))
        self.model = nn.Sequential(*layers, nn.Linear(100, num_actions))
        self.lr, self.decay, self.clip, self.steps = LEARNING_RATE, 0.0, CLIP, 0
        if published:
            self.lr, self.decay, self.clip = PUBLISHED["lr"], PUBLISHED["decay"], PUBLISHED["clip"]
            for parameter in self.model.parameters():
                nn.init.uniform_(parameter, -PUBLISHED["start"], PUBLISHED["start"])
        self.optimizer = self._optimizer()
        self.shift, self.scale = torch.tensor(0.0), torch.tensor(1.0)
        self.posterior: ba.posterior.NetworkDistribution = ba.DiagonalGaussian.point_mass(self.model)
        if method in OPTIMIZERS or method == "dropout":
            self._follow(data_weight)

    def _optimizer(self) -> Any:
        if self.method not in OPTIMIZERS:
            return torch.optim.Adam(self.model.parameters(), lr=self.lr)
        own: dict[str, dict[str, Any]] = {
            "vadam": {"initial_precision": self.prior_precision},  # a curvature of 0, as in the code of its authors
            # Rate and noise of the end of a plan at all times, since nobody knows how many visits there will be.
            "bayesadam": {"batch_size": BATCH_SIZE, "temperature": 1.0, "total_steps": 1},
            "bbb": {"initial_precision": self.prior_precision + self.data_weight},
        }
        optimizer = OPTIMIZERS[self.method](
            self.model.named_parameters(),
            lr=self.lr,
            num_data=self.data_weight,
            prior_precision=self.prior_precision,
            seed=self.seed,
            **own[self.method],
        )
        for group in optimizer.param_groups:
            group["initial_lr"] = self.lr  # as with a scheduler of PyTorch: no cosine
        return optimizer

    def scores(self, context: Tensor, sample: int | None) -> Tensor:
        """Return standardised rewards of all actions, as for :class:`Linear`."""
        with torch.no_grad(), self.posterior.applied(self.model, sample, seed=self.seed):
            scores: Tensor = self.model(context[None])[0]
        return scores

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Learn from new rewards; the network learns in training only."""

    def train(self, contexts: Tensor, actions: Tensor, rewards: Tensor, number: int) -> None:
        """Train the network further, on minibatches drawn with replacement from all rewards so far, and standardise the
        rewards by their present mean and standard deviation.

        Args:
            contexts: Contexts ``(n, d)``.
            actions: Actions ``(n,)``.
            rewards: Their rewards ``(n,)``.
            number: Number of this training, counted from 0.
        """
        self.shift, spread = rewards.mean(), rewards.std(correction=0)
        self.scale = torch.where(spread > 1e-6 * self.shift.abs(), spread, 1.0)
        targets = (rewards - self.shift) / self.scale
        num_data = self.data_weight * len(rewards)
        self._tell(num_data)
        rows = ba.population.order(len(rewards), seed=self.seed, epoch=number, size=STEPS * BATCH_SIZE)
        self.model.train()
        torch.manual_seed(self.seed + number)  # for dropout
        for batch in torch.split(torch.from_numpy(rows), BATCH_SIZE):
            self._step(contexts[batch], actions[batch], targets[batch])
        self.model.eval()
        self._follow(num_data)

    def _step(self, contexts: Tensor, actions: Tensor, targets: Tensor) -> None:
        def closure() -> Tensor:
            self.optimizer.zero_grad()
            chosen = self.model(contexts).gather(1, actions[:, None])[:, 0]
            loss: Tensor = 0.5 * (chosen - targets).square().mean()  # of a Gaussian with a standard deviation of 1
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            return loss

        for group in self.optimizer.param_groups:
            group["lr"] = self.lr / (1.0 + self.decay * self.steps)
        self.optimizer.step(closure)
        self.steps += 1

    def _tell(self, num_data: float) -> None:
        """Tell the optimiser the size of the data, on which the width of the posterior depends."""
        (group,) = self.optimizer.param_groups
        if self.method in OPTIMIZERS:
            group["num_data"] = num_data
        elif self.method != "badam-mle":
            group["weight_decay"] = self.prior_precision / num_data

    def _follow(self, num_data: float) -> None:
        """Take the posterior of the trained network."""
        if self.method in OPTIMIZERS:
            self.posterior = self.optimizer.posterior(self.model)
        elif self.method == "dropout":
            self.posterior = ba.MCDropout(self.model)
        elif self.method.startswith("badam"):
            weights = "mle" if self.method == "badam-mle" else "map"
            self.posterior = ba.badam(
                self.optimizer, self.model, num_data=num_data, prior_precision=self.prior_precision, weights=weights
            )
        else:
            self.posterior = ba.DiagonalGaussian.point_mass(self.model)


class LastLayer(Network):
    """A network trained with Adam, and regressions of the rewards on the units before its last layer.

    For ``"neural-linear"`` their posterior is that of :class:`Linear`. For ``"last-layer"`` it is centred on the
    trained weights, with noise of standard deviation 1: the Laplace approximation of the last layer.
    """

    def __init__(self, num_features: int, num_actions: int, seed: int, method: str, **options: Any) -> None:
        super().__init__(num_features, num_actions, seed, method, **options)
        self.num_actions = num_actions
        self._forget()

    def _forget(self) -> None:
        noise = 1.0 if self.method == "last-layer" else None
        self.regressions = Regressions(self.num_actions, 101, self.prior_precision, self.seed, noise_precision=noise)

    @torch.no_grad()
    def _features(self, contexts: Tensor) -> Tensor:
        return _with_intercept(self.model[:-1](contexts))

    @torch.no_grad()
    def scores(self, context: Tensor, sample: int | None) -> Tensor:
        """Return standardised rewards of all actions, as in the base class."""
        last, center = self.model[-1], None
        if self.method == "last-layer":
            assert isinstance(last, nn.Linear)
            center = torch.cat([last.weight, last.bias[:, None]], dim=1).double()
        return self.regressions.weights(sample, center) @ self._features(context[None])[0]

    def observe(self, contexts: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Learn from new rewards, as in the base class."""
        self.regressions.add(self._features(contexts), actions, (rewards - self.shift) / self.scale)

    def train(self, contexts: Tensor, actions: Tensor, rewards: Tensor, number: int) -> None:
        """Train the network, and fit the regressions on its new units to all rewards."""
        super().train(contexts, actions, rewards, number)
        self._forget()
        self.observe(contexts, actions, rewards)


class Regressions:
    """``r = w_a' x + noise`` for every action, in closed form and float64 (Bishop 2006, section 3.3)::

        Lambda = prior_precision I + sum x x',  mean = Lambda^-1 sum x r
        w | sigma^2 ~ N(mean, sigma^2 Lambda^-1)
        sigma^2 ~ InvGamma(6 + n / 2, 6 + (sum r^2 - mean' Lambda mean) / 2)

    With a known noise precision ``b`` the prior ``N(0, 1 / prior_precision)`` does not depend on the noise,
    ``Lambda = prior_precision I / b + sum x x'`` and ``sigma^2 = 1 / b``.
    """

    def __init__(
        self, actions: int, width: int, prior_precision: float, seed: int, noise_precision: float | None = None
    ) -> None:
        self.seed, self.noise_precision = seed, noise_precision
        ridge = prior_precision / (noise_precision or 1.0)
        eye = torch.eye(width, dtype=torch.float64).expand(actions, -1, -1)
        self.gram, self.root = ridge * eye, ridge**-0.5 * eye
        self.moment, self.mean = torch.zeros(2, actions, width, dtype=torch.float64)
        self.count, self.square = torch.zeros(2, actions, dtype=torch.float64)
        self.stale: set[int] = set()

    def add(self, x: Tensor, actions: Tensor, rewards: Tensor) -> None:
        """Add features ``(n, F)`` with their actions and rewards ``(n,)``."""
        for action in set(actions.tolist()):
            own, reward = x[actions == action], rewards[actions == action].double()
            self.gram[action] += own.T @ own
            self.moment[action] += reward @ own
            self.count[action] += len(own)
            self.square[action] += reward.square().sum()
            self.stale.add(action)

    def weights(self, sample: int | None, center: Tensor | None = None) -> Tensor:
        """Draw the weights ``(A, F)``; ``None`` returns their mean, or the center that replaces it."""
        for action in self.stale:  # root root' = Lambda^-1
            lower = torch.linalg.cholesky(self.gram[action])
            root = torch.linalg.solve_triangular(lower, torch.eye(len(lower), dtype=lower.dtype), upper=False).T
            self.root[action], self.mean[action] = root, root @ (root.T @ self.moment[action])
        self.stale.clear()
        center = self.mean if center is None else center
        if sample is None:
            return center
        generator = np.random.Generator(np.random.Philox(key=self.seed, counter=[0, 0, WEIGHTS, sample]))
        noise: Tensor = self.root @ torch.from_numpy(generator.standard_normal((*self.mean.shape, 1)))
        if self.noise_precision is not None:
            return center + noise[..., 0] / math.sqrt(self.noise_precision)
        rate = RATE + 0.5 * (self.square - (self.mean * self.moment).sum(1)).clamp_min(0.0)
        variance: Tensor = rate / torch.from_numpy(generator.gamma(SHAPE + 0.5 * self.count.numpy()))
        return center + variance.sqrt()[:, None] * noise[..., 0]


def _with_intercept(x: Tensor) -> Tensor:
    return nn.functional.pad(x, (0, 1), value=1.0).double()
