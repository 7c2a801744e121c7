"""Training of the DDPG of stable-baselines3, which a callback of this module evaluates."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from stable_baselines3 import DDPG
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise

import bayesadam as ba
from bayesadam.integrations.stable_baselines3 import ParameterExploration
from experiments.experiment import Progress


def learn(config: Mapping[str, Any], progress: Progress) -> dict[str, Any]:
    """Train an agent, and evaluate it regularly.

    Returns:
        ``"steps"``: numbers of steps after which the agent was evaluated. ``"returns"``: the return of every test
        episode of each evaluation. ``"deviation"``: the mean standard deviation of the weights' noise at the end, if
        there is noise.
    """
    torch.set_num_threads(1)
    settings, seed, kind = config["settings"], config["seed"], config["exploration"]
    noise = NormalActionNoise(np.zeros(1), np.full(1, settings["sigma"])) if kind == "action-noise" else None
    model = DDPG(
        "MlpPolicy",
        config["environment"],
        learning_rate=config["learning_rate"],
        learning_starts=config["learning_starts"],
        action_noise=noise,
        policy_kwargs={"net_arch": config["hidden"]},
        seed=seed,
    )
    evaluation = Evaluation(config, progress)
    callbacks: list[BaseCallback] = [evaluation]
    if kind.startswith("weights"):
        exploration = ParameterExploration(lambda weights: ba.Vadam(weights, recipe="paper", seed=seed, **settings))
        callbacks.append(exploration)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn(config["steps"], callback=callbacks)
        found: dict[str, Any] = {"steps": evaluation.steps, "returns": evaluation.returns, "deviation": None}
        if kind.startswith("weights"):
            assert exploration.optimizer is not None
            variance = exploration.optimizer.posterior(model.actor).variance
            found["deviation"] = torch.cat([each.flatten() for each in variance.values()]).sqrt().mean().item()
    return found


class Evaluation(BaseCallback):
    """Callback that evaluates the deterministic policy in test episodes, which have the same starts each time."""

    def __init__(self, config: Mapping[str, Any], progress: Progress) -> None:
        super().__init__()
        self.config, self.progress = config, progress
        self.steps: list[int] = []
        self.returns: list[list[float]] = []
        self.tests = make_vec_env(config["environment"], n_envs=config["tests"])

    def _on_step(self) -> bool:
        if self.num_timesteps % self.config["every"] == 0:
            self.tests.seed(10_000 + self.config["seed"])
            rewards, _ = evaluate_policy(
                self.model, self.tests, n_eval_episodes=self.config["tests"], return_episode_rewards=True, warn=False
            )
            self.steps.append(self.num_timesteps)
            self.returns.append([round(float(value), 3) for value in rewards])  # type: ignore[union-attr]
            note = f"step {self.num_timesteps}: {np.mean(self.returns[-1]):.0f}"
            self.progress(self.num_timesteps, self.config["steps"], note)
        return True
