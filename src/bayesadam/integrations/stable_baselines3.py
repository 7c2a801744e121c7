"""Exploration by noise in the weights of the actor, for unmodified off-policy algorithms of stable-baselines3."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any, TypeAlias

import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from torch import nn

from bayesadam.checks import check
from bayesadam.optim import PerturbedOptimizer

__all__ = ["ParameterExploration"]

Schedule: TypeAlias = Callable[[float], float]
"""Function from the remaining fraction of the training, from 1 down to 0, to a learning rate, as in
stable-baselines3.
"""
ACT, STEP, ROLLOUT = "noise_step", "step", "rollout"


class ParameterExploration(BaseCallback):
    """Callback that trains the actor with an optimiser of this library, and explores by its posterior samples.

    The actor acts with a sample of its weights, and the gradient of the next step is taken at the same sample (Khan et
    al. 2018, appendix K, Algorithms 1 and 2). It works with algorithms that train an ``actor`` and a ``critic``, each
    with its own optimiser: DDPG, TD3, SAC, and similar ones of sb3-contrib. ::

        exploration = ParameterExploration(lambda weights: ba.VadaGrad(weights, initial_precision=1e4))
        model = DDPG("MlpPolicy", "Pendulum-v1").learn(10_000, callback=exploration)

    Where exploration is not wanted, the mean is used: for ``predict(..., deterministic=True)``, and so in evaluation
    callbacks at any place in the list, for saved models, for target networks of the actor, and after the training.
    During the training ``predict(..., deterministic=False)`` acts with the sample.

    The optimiser stays with the actor: ``learn`` may be called again with the callback. A saved model contains the
    optimiser's state, from which another ``ParameterExploration`` with the same arguments continues. The training
    cannot be continued without such a callback; predictions do not need one. After an interrupted training,
    ``optimizer.eval()`` puts the mean into the weights.

    Args:
        optimizer: Function that makes the optimiser from the actor's named parameters. Its ``mc_samples`` must be 1.
            The actor's objective is a mean over the minibatch, so ``num_data`` is the factor by which gradients enter
            precisions.
        every: How long a sample acts: ``"step"``, for one step of the environment (or of all environments, if there are
            several), or ``"rollout"``, for all steps between two rounds of training. A step of the optimiser ends a
            sample, too.
        learning_rate: Learning rate of the actor, a number or a schedule. ``None`` uses that of the algorithm, which
            stable-baselines3 sets in all optimisers, whatever they were constructed with.
        verbose: Verbosity, as for every callback.

    Attributes:
        optimizer: The optimiser, once the training has begun; ``optimizer.posterior(model.actor)`` is the posterior.

    Raises:
        ValueError: ``every`` or ``learning_rate`` is none of the above. At the start of the training: the algorithm has
            no actor and critic with optimisers, or the function did not return an optimiser of this library with an
            ``mc_samples`` of 1.
    """

    def __init__(
        self,
        optimizer: Callable[[Iterator[tuple[str, nn.Parameter]]], PerturbedOptimizer],
        *,
        every: str = STEP,
        learning_rate: float | Schedule | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        if every not in (STEP, ROLLOUT):
            raise ValueError(f"every must be {STEP!r} or {ROLLOUT!r}, got {every!r}")
        if learning_rate is not None and not callable(learning_rate):
            check("learning_rate", learning_rate, "None, a number of at least 0, or a schedule", lambda v: v >= 0)
        self.optimizer: PerturbedOptimizer | None = None
        self._make, self._every, self._learning_rate = optimizer, every, learning_rate
        self._acted: int | None = None
        self._undo = ExitStack()

    def _on_training_start(self) -> None:
        self._undo.close()
        actor, critic = _trained(self.model)
        if self.optimizer is None or actor.optimizer is not self.optimizer:
            self.optimizer = self._made(actor)
            actor.optimizer = self.optimizer
        opt = self.optimizer
        handles = [opt.register_step_pre_hook(self._set_learning_rate)]
        if hasattr(self.model, "actor_target"):  # it follows what the actor has after a step: that must be the mean
            handles.append(opt.register_step_post_hook(lambda *_: opt.eval()))
            handles.append(critic.optimizer.register_step_post_hook(lambda *_: opt.train()))
        for handle in handles:
            self._undo.callback(handle.remove)
        self._watch(self.model.policy)
        opt.train()

    def _on_rollout_start(self) -> None:
        if self._every == ROLLOUT:
            self._renew()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        self._optimizer().train()

    def _on_training_end(self) -> None:
        self._optimizer().eval()
        self._undo.close()

    def _made(self, actor: Any) -> PerturbedOptimizer:
        made = self._make(actor.named_parameters())
        if not isinstance(made, PerturbedOptimizer) or made.param_groups[0]["mc_samples"] != 1:
            raise ValueError(f"optimizer must make an optimiser of bayesadam with mc_samples=1, got {made!r}")
        if ACT in actor.optimizer.param_groups[0]:  # of a saved model, or of another callback
            if isinstance(actor.optimizer, PerturbedOptimizer):
                actor.optimizer.eval()
            made.load_state_dict(actor.optimizer.state_dict())
        made.attach(self.model.policy)
        return made

    def _watch(self, policy: Any) -> None:
        """Make the policy predict with the mean if it is asked to be deterministic, and with a sample otherwise."""
        predict, optimizer = policy.predict, self._optimizer()

        def predict_watched(
            observation: Any, state: Any = None, episode_start: Any = None, deterministic: bool = False
        ) -> Any:
            if deterministic:
                optimizer.eval()
            else:
                if self._every == STEP:
                    self._renew()
                optimizer.train()
                self._acted = self._number()
            return predict(observation, state, episode_start, deterministic)

        policy.predict = predict_watched
        self._undo.callback(partial(policy.__dict__.pop, "predict", None))

    def _renew(self) -> None:
        """Draw another sample if this one has acted and no step of the optimiser has ended it."""
        if self._number() == self._acted:
            optimizer = self._optimizer()
            optimizer.eval()
            with optimizer.sampled_params():
                pass
            optimizer.zero_grad()  # gives the sample up

    def _number(self) -> int:
        """Number of the sample."""
        return int(self._optimizer().param_groups[0][ACT])

    def _set_learning_rate(self, *_: Any) -> None:
        if self._learning_rate is not None:
            rate = self._learning_rate
            value = rate(self.model._current_progress_remaining) if callable(rate) else rate
            for group in self._optimizer().param_groups:
                group["lr"] = value

    def _optimizer(self) -> PerturbedOptimizer:
        assert self.optimizer is not None
        return self.optimizer


def _trained(model: BaseAlgorithm) -> tuple[Any, Any]:
    """Actor and critic."""
    found = getattr(model, "actor", None), getattr(model, "critic", None)
    if not all(isinstance(getattr(part, "optimizer", None), torch.optim.Optimizer) for part in found):
        name = type(model).__name__
        raise ValueError(f"the algorithm must train an actor and a critic, as DDPG, TD3 and SAC do, got {name}")
    return found
