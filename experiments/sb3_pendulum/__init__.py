"""Parameter-space exploration in unmodified stable-baselines3: DDPG on Pendulum."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

import bayesadam as ba
from experiments.framework import Context, Report, Unit, pick
from experiments.plots import panels
from experiments.tables import Number, frame

TITLE = "Noise in the weights in unmodified stable-baselines3: DDPG on Pendulum"
SOURCE = "The exploration of Khan et al. 2018, appendix K, in another library; no published numbers"

WIDE = {"num_data": 1e8, "prior_precision": 400.0, "initial_precision": 400.0}
NARROW = {"num_data": 1e8, "prior_precision": 1e4, "initial_precision": 1e4}
EXPLORATIONS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "weights-wide": ("weights, up to 0.05", "#0072B2", WIDE),
    "weights-narrow": ("weights, up to 0.01", "#56B4E9", NARROW),
    "action-noise": ("actions, 0.1", "#D55E00", {"sigma": 0.1}),
    "none": ("none", "#000000", {}),
}
"""Name, colour and settings of the kinds of exploration: Vadam's noise in the weights with a standard deviation of at
most 0.05, or 0.01 as in Khan et al. 2018, which is smaller where gradients have been large; Gaussian noise in the
actions, which are in [-1, 1]; and none.
"""
SEEDS = 3
PROTOCOL = {
    "environment": "Pendulum-v1",
    "steps": 5000,
    "every": 1000,
    "tests": 10,
    "hidden": [64, 64],
    "learning_rate": 0.001,
    "learning_starts": 200,
}


def units() -> list[Unit]:
    """Return the units. All kinds of exploration with the first seed come first."""
    return [
        Unit(f"{name}-seed{seed}", {**PROTOCOL, "exploration": name, "settings": settings, "seed": seed})
        for seed in range(SEEDS)
        for name, (_, _, settings) in EXPLORATIONS.items()
    ]


def run(unit: Unit, context: Context) -> dict[str, Any]:
    """Train an agent, and evaluate its deterministic policy regularly in episodes with the same starts each time.

    Returns:
        ``"steps"``: numbers of steps after which the agent was evaluated. ``"returns"``: the return of every test
        episode of each evaluation. ``"deviation"``: the mean standard deviation of the weights' noise at the end, if
        there is noise.
    """
    from stable_baselines3 import DDPG
    from stable_baselines3.common.callbacks import BaseCallback, ConvertCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.noise import NormalActionNoise

    from bayesadam.integrations.stable_baselines3 import ParameterExploration

    config = unit.config
    settings, seed, kind = config["settings"], config["seed"], config["exploration"]
    model = DDPG(
        "MlpPolicy",
        config["environment"],
        action_noise=NormalActionNoise(np.zeros(1), np.full(1, settings["sigma"])) if kind == "action-noise" else None,
        policy_kwargs={"net_arch": config["hidden"]},
        seed=seed,
        **pick(config, "learning_rate", "learning_starts"),
    )
    tests = make_vec_env(config["environment"], n_envs=config["tests"])
    found: dict[str, Any] = {"steps": [], "returns": [], "deviation": None}

    def evaluate(*_: dict[str, Any]) -> bool:
        step = model.num_timesteps
        if step % config["every"] == 0:
            tests.seed(10_000 + seed)
            options: dict[str, Any] = {
                "n_eval_episodes": config["tests"],
                "return_episode_rewards": True,
                "warn": False,
            }
            rewards: Any = evaluate_policy(model, tests, **options)[0]
            found["steps"].append(step)
            found["returns"].append([round(float(value), 3) for value in rewards])
            context.progress(step, config["steps"], f"step {step}: {np.mean(found['returns'][-1]):.0f}")
        return True

    callbacks: list[BaseCallback] = [ConvertCallback(evaluate)]
    if kind.startswith("weights"):
        exploration = ParameterExploration(lambda weights: ba.Vadam(weights, seed=seed, **settings))
        callbacks.append(exploration)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.learn(config["steps"], callback=callbacks)
        if kind.startswith("weights"):
            assert exploration.optimizer is not None
            variance = exploration.optimizer.posterior(model.actor).variance
            found["deviation"] = torch.cat([each.flatten() for each in variance.values()]).sqrt().mean().item()
    return found


def report(results: Mapping[str, Any]) -> Report:
    """Return a table and a figure of the returns by the number of steps."""
    figure, axes = panels(1, 1, 6.5, 4)
    axis, rows = axes[0, 0], []
    steps = next(iter(results.values()))["steps"]
    for name, (label, colour, _) in EXPLORATIONS.items():
        own = [result for key, result in results.items() if key.startswith(f"{name}-seed")]
        curves = np.array([np.mean(result["returns"], 1) for result in own])
        means = [Number.of(curves[:, i].tolist(), decimals=0) for i in range(len(steps))]
        deviations = [result["deviation"] for result in own if result["deviation"] is not None]
        rows.append([label, len(own), *means, Number.of(deviations, decimals=4)])
        mean, error = curves.mean(0), curves.std(0, ddof=1) / len(own) ** 0.5
        axis.plot(steps, mean, color=colour, linewidth=1.8, label=label)
        axis.fill_between(steps, mean - error, mean + error, color=colour, alpha=0.18, linewidth=0)
    axis.set(xlabel="steps of the environment", ylabel="return of the deterministic policy")
    axis.legend(title="noise in", frameon=False, fontsize=9)
    header = ["noise in", "seeds", *(f"{step:,} steps" for step in steps), "deviation at the end"]
    title = "Return of the deterministic policy: mean over seeds with its standard error"
    return Report({title: frame(header, rows)}, {"curves": figure})
