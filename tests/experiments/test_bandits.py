"""The experiment ``bandits``: problems against their definition, regressions against the textbook, and the loop."""

import numpy as np
import pytest
import torch

from experiments import bandits
from experiments.bandits.agents import RATE, SHAPE, Network, Regressions, play
from experiments.bandits.problems import LENGTHS, NUM_ACTIONS, problem, wheel

pytestmark = pytest.mark.nightly

UNIFORM = {"mushroom": -0.9, "financial": 0.0, "jester": 0.34, "statlog": 1 / 7, "adult": 1 / 14, "covertype": 1 / 7}
UNIFORM["census"] = 1 / 9
"""Ratio that uniform play earns in expectation."""


def load(name, rounds, seed):
    try:
        return problem(name, rounds, seed)
    except FileNotFoundError as error:
        pytest.skip(f"the data are not here: {error}")


@pytest.mark.parametrize("name", LENGTHS)
def test_problems_are_what_the_protocol_says(name):
    game = load(name, LENGTHS[name], 0)
    assert game.rewards.shape == (LENGTHS[name], NUM_ACTIONS[name])
    assert len(game.contexts) == len(game.optimal) == LENGTHS[name]
    uniform = game.rewards.double().mean(1).sum() / game.optimal.sum()
    assert uniform.item() == pytest.approx(UNIFORM[name], abs=0.05 if name == "mushroom" else 0.01)
    if name in ("statlog", "adult", "covertype", "census"):
        assert (game.rewards.sum(1) == 1).all()
        spread = game.contexts.double().std(0, correction=0)
        assert ((spread - 1).abs() < 1e-3).logical_or(spread == 0).all()
    if name == "mushroom":
        eaten, optimal = game.rewards[:, 1], game.optimal
        assert not game.rewards[:, 0].any()
        assert (eaten[optimal == 5] == 5).all()
        poisonous = eaten[optimal == 0]
        assert set(poisonous.tolist()) == {-35.0, 5.0}
        assert abs((poisonous == 5).float().mean().item() - 0.5) < 4.5 * 0.5 / len(poisonous) ** 0.5
    if name == "financial":
        weights = torch.linalg.lstsq(game.contexts, game.rewards).solution
        assert torch.linalg.vector_norm(weights, dim=0).tolist() == pytest.approx([1.0] * 8, abs=0.02)
        noise = (game.rewards - game.contexts @ weights).std(0).tolist()
        assert noise == pytest.approx([0.01 * (i + 1) for i in range(8)], rel=0.06)


@pytest.mark.parametrize("delta", [0.5, 0.95])
def test_the_wheel_pays_outside(delta):
    x, rewards, optimal = wheel(np.random.default_rng(0), 20_000, delta)
    radius = np.linalg.norm(x, axis=1)
    outside = radius > delta
    assert radius.max() <= 1.0
    assert abs(outside.mean() - (1 - delta**2)) < 4.5 * (delta**2 * (1 - delta**2) / 20_000) ** 0.5
    assert ((rewards > 40).sum(1) == outside).all()
    assert set(rewards[~outside].argmax(1).tolist()) == {0}
    for action in range(1, 5):  # one quadrant each
        signs = np.sign(x[outside & (rewards.argmax(1) == action)])
        assert (signs == signs[0]).all()
    assert optimal == pytest.approx(np.where(outside, 50.0, 1.2))


@pytest.mark.parametrize("noise_precision", [None, 4.0])
def test_regressions_are_those_of_the_textbook(noise_precision):
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(25, 4, generator=generator, dtype=torch.float64)
    rewards, actions = x[:, 0] + torch.randn(25, generator=generator), torch.randint(3, (25,), generator=generator)
    found = Regressions(3, 4, prior_precision=0.5, seed=5, noise_precision=noise_precision)
    found.add(x[:10], actions[:10], rewards[:10])
    found.weights(0)
    for row in range(10, 25):  # one by one, after a draw
        found.add(x[row : row + 1], actions[row : row + 1], rewards[row : row + 1])
    draws = torch.stack([found.weights(number) for number in range(6000)])
    assert torch.equal(draws[7], found.weights(7))
    for action in range(3):
        own = actions == action
        precision, moment = 0.5 / (noise_precision or 1.0) * np.eye(4), np.zeros(4)
        for row, reward in zip(x[own].numpy(), rewards[own].numpy(), strict=True):
            precision += np.outer(row, row)
            moment += row * reward
        mean = np.linalg.solve(precision, moment)
        shape = SHAPE + 0.5 * own.sum().item()
        rate = RATE + 0.5 * ((rewards[own] ** 2).sum().item() - mean @ precision @ mean)
        variance = rate / (shape - 1.0) if noise_precision is None else 1.0 / noise_precision
        covariance = variance * np.linalg.inv(precision)
        assert np.allclose(found.weights(None)[action].numpy(), mean, atol=1e-10)
        drawn = draws[:, action].numpy()
        assert (abs(drawn.mean(0) - mean) < 4.5 * np.sqrt(np.diag(covariance) / len(drawn))).all()
        # The standard error of a variance is about 2% of it for 6,000 draws, and a little more for heavy tails.
        assert np.allclose(np.diag(np.cov(drawn.T)) / np.diag(covariance), 1.0, atol=0.11)


def test_ratios_are_rewards_over_the_optimal():
    config = {"problem": "wheel-0.5", "rounds": 4000, **bandits.ALGORITHMS["uniform"]}
    earned, optimal, pulls = play(config, 0, lambda done: None)
    found = bandits.scores(earned[None], optimal[None], pulls[None])
    # At delta 0.5 three quarters of the area are outside.
    expected = (0.75 * (50 + 1.2 + 3) / 5 + 0.25 * (1.2 + 4) / 5) / (0.75 * 50 + 0.25 * 1.2)
    assert found["ratio"] == pytest.approx([expected], rel=0.12)
    assert found["curve"][-1] == pytest.approx(found["ratio"][0], abs=1e-4)


@pytest.mark.parametrize(("told", "rows"), [("one", 40), ("all", 200)])
def test_trainings_see_all_rewards_so_far(monkeypatch, told, rows):
    seen = []
    monkeypatch.setattr(Network, "train", lambda self, x, actions, rewards, number: seen.append((x, actions, rewards)))
    config = {"problem": "wheel-0.5", "rounds": 40, **bandits.ALGORITHMS["greedy"], "told": told}
    earned, _, pulls = play(config, 1, lambda done: None)
    x, actions, rewards = seen[-1]
    game = problem("wheel-0.5", 40, 1)
    assert [len(part[0]) for part in seen] == [rows // 2, rows]
    assert torch.equal(x[:: rows // 40], game.contexts)
    assert pulls.tolist() == actions.bincount(minlength=5).tolist()
    if told == "all":
        assert torch.equal(rewards.view(40, 5), game.rewards)
    else:
        assert actions[:15].tolist() == list(range(5)) * 3
        assert rewards.tolist() == earned.tolist()


@pytest.mark.parametrize("name", ["vadam", "bayesadam", "bbb", "badam", "dropout", "last-layer", "neural-linear"])
def test_networks_learn_and_depend_on_their_seed_only(name, monkeypatch):
    monkeypatch.setattr(bandits.agents, "BATCH_SIZE", 16)
    x, actions = torch.randn(60, 3, generator=torch.Generator().manual_seed(1)), torch.arange(60) % 2
    rewards, context = torch.where(actions == 1, 20.0, 10.0) * x[:, 0], torch.tensor([2.0, 0.0, 0.0])
    found = []
    for _ in range(2):
        agent = bandits.agents.make(bandits.ALGORITHMS[name], 3, 2, seed=4)
        for number in range(4):
            agent.train(x, actions, rewards, number)
        found.append(agent.scores(context, 3))
    assert torch.equal(*found)
    assert not torch.equal(found[0], agent.scores(context, 4))
    assert agent.scores(context, None).argmax() == 1
