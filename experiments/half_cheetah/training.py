"""Training of one method with one seed, with an evaluation of the mean after every few episodes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from experiments.experiment import Progress
from experiments.files import replacing
from experiments.half_cheetah.ddpg import DDPG, Replay

if TYPE_CHECKING:
    import gymnasium


def learn(config: Mapping[str, Any], folder: Path, progress: Progress) -> dict[str, Any]:
    """Train an agent, from the last checkpoint in the folder if there is one.

    Every episode has its own seeds, so that a resumed training has the same result as an uninterrupted one.

    Returns:
        ``"episodes"``: numbers, counted from 0, of the episodes after which the mean was evaluated. ``"returns"``: the
        undiscounted return of every test episode of each evaluation. ``"training"``: the return of every training
        episode.
    """
    env, *tests = (environment(config["environment"]) for _ in range(1 + config["tests"]))
    inputs, actions = env.observation_space.shape[0], env.action_space.shape[0]  # type: ignore[index]
    agent = DDPG(config, inputs, actions, float(env.action_space.high[0]))  # type: ignore[attr-defined]
    replay = Replay(min(config["replay"], config["episodes"] * config["steps"]), inputs, actions)
    found: dict[str, Any] = {"episodes": [], "returns": [], "training": []}
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        begin = _load(folder / "state.pt", agent, replay, found)
        for episode in range(begin, config["episodes"]):
            found["training"].append(_train(agent, replay, env, config, episode))
            if episode % config["every"] == 0:
                found["episodes"].append(episode)
                found["returns"].append(evaluate(agent, tests, config, episode))
                _save(folder / "state.pt", agent, replay, found)
                mean = float(np.mean(found["returns"][-1]))
                progress(episode + 1, config["episodes"], f"episode {episode}: {mean:.0f}")
    for each in (env, *tests):
        each.close()
    return found


def environment(name: str) -> gymnasium.Env[Any, Any]:
    """Create an environment of gymnasium, without rendering."""
    import gymnasium

    return gymnasium.make(name)


@contextmanager
def one_thread() -> Iterator[None]:
    """Context with one thread, because the matrices are too small for several threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seed(*numbers: int) -> int:
    """Return a different seed for every purpose, seed and episode."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0])


def _train(agent: DDPG, replay: Replay, env: gymnasium.Env[Any, Any], config: Mapping[str, Any], episode: int) -> float:
    """Train for one episode, and return its return.

    The sample of the weights that chooses the action in a step is also used for the gradient in this step.
    """
    rng = np.random.default_rng([2, config["seed"], episode])
    state = env.reset(seed=_seed(1, config["seed"], episode))[0].astype(np.float32)
    total, last = 0.0, False
    for number in range(config["steps"]):
        with agent.explored():
            action = agent.act(state[None])[0]
            following, reward, terminated, truncated, _ = env.step(action)
            following = following.astype(np.float32)
            last = terminated or truncated or number == config["steps"] - 1
            replay.add(state, action, float(reward), last, following)
            ready = len(replay) > config["batch_size"]
            if ready:
                agent.learn(*replay.draw(config["batch_size"], rng))
        if ready:
            agent.step()
        else:
            agent.optimizer.zero_grad()
        state, total = following, total + float(reward)
        if last:
            break
    return total


def evaluate(agent: DDPG, tests: list[gymnasium.Env[Any, Any]], config: Mapping[str, Any], episode: int) -> list[float]:
    """Evaluate the mean in one test episode per environment, all side by side."""
    seeds = [_seed(3, config["seed"], episode, number) for number in range(len(tests))]
    states = np.stack([env.reset(seed=seed)[0] for env, seed in zip(tests, seeds, strict=True)]).astype(np.float32)
    returns, running = np.zeros(len(tests)), np.ones(len(tests), bool)
    for _ in range(config["steps"]):
        actions = agent.act(states)
        for i in np.flatnonzero(running):
            states[i], reward, terminated, truncated, _ = tests[i].step(actions[i])
            returns[i] += float(reward)
            running[i] = not (terminated or truncated)
        if not running.any():
            break
    return [round(float(value), 3) for value in returns]


def _save(path: Path, agent: DDPG, replay: Replay, found: Mapping[str, Any]) -> None:
    rows = torch.from_numpy(replay.rows[: len(replay)])
    with replacing(path) as temporary:
        torch.save({"agent": agent.state_dict(), "rows": rows, "added": replay.added, "found": dict(found)}, temporary)


def _load(path: Path, agent: DDPG, replay: Replay, found: dict[str, Any]) -> int:
    """Restore a checkpoint, and return the number of the next episode."""
    if not path.is_file():
        return 0
    state = torch.load(path, weights_only=True)
    agent.load_state_dict(state["agent"])
    replay.rows[: len(state["rows"])] = state["rows"].numpy()
    replay.added = state["added"]
    found.update(state["found"])
    return len(found["training"])
