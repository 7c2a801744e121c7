"""Agents: rounds, delayed rewards, added actions, files, and what is refused."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import bayesadam as ba
from bandits.conftest import METHODS, NETWORK, belief, play, same
from bayesadam import bandits
from bayesadam.bandits import Agent, Agents

EVERY = pytest.mark.parametrize("method", [*METHODS, "linear"])
SOME = pytest.mark.parametrize("method", ["ivon", "badam", "neural-linear", "linear"])


def agent(method="ivon", **options):
    return Agent(belief(method), **{"num_features": 3, "actions": 4, **options})


@pytest.mark.parametrize("method", [own for own in [*METHODS, "linear"] if own != "dropout"])
def test_one_agent_is_one_of_many(method, problem):
    """Up to rounding: what many do at once, each does alone."""
    x, means = (torch.from_numpy(part).float() for part in problem)
    many = Agents(belief(method), num_features=3, num_actions=4, seeds=[11, 12, 13])
    alone = Agents(belief(method), num_features=3, num_actions=4, seeds=[12])
    for t in range(12):
        actions = torch.tensor([[t % 4], [(t + 1) % 4], [(t + 2) % 4]])
        rewards = means[t][actions]
        many.observe(x[t].expand(3, 1, 3), actions, rewards)
        alone.observe(x[t].expand(1, 1, 3), actions[1:2], rewards[1:2])
    rows = x[:20].expand(3, 20, 3)
    for number in (None, 4):
        found, expected = many.scores(rows, number=number)[1], alone.scores(rows[:1], number=number)[0]
        assert torch.allclose(found.double(), expected.double(), rtol=1e-3, atol=1e-3)


@EVERY
def test_samples_are_reproducible_and_differ_as_the_method_says(method, problem):
    one, other = agent(method), agent(method)
    for each in (one, other):
        play(each, problem, 25)
    assert same(one, other)
    x = problem[0][:5]
    assert torch.equal(one.scores(x, seed=3), other.scores(x, seed=3))
    assert torch.equal(one.scores(x), one.scores(x))
    assert torch.equal(one.scores(x, seed=3), one.scores(x, seed=4)) == (method == "adam")
    assert torch.allclose(one.scores(x, seed=3)[2], one.scores(x[2], seed=3))


@SOME
def test_one_sample_for_all_rows_unless_asked(method, problem):
    trained = agent(method)
    play(trained, problem, 25)
    same_rows = np.repeat(problem[0][:1], 6, axis=0)
    assert torch.allclose(*(trained.scores(same_rows, seed=3)[row] for row in (0, 5)))
    assert not torch.allclose(*(trained.scores(same_rows, seed=3, per_row=True)[row] for row in (0, 5)))


def test_linear_thompson_sampling_learns_what_is_linear(problem):
    found = play(agent("linear"), problem, 400, noise=0.3)[200:]
    assert found[:, 0].sum() > 0.97 * found[:, 1].sum()


@pytest.mark.parametrize("method", ["ivon", "neural-linear"])
def test_networks_learn_too(method, problem):
    found = play(agent(method, seed=2), problem, 400, noise=0.1)[200:]
    uniform = problem[1].mean()
    assert found[:, 0].mean() > uniform + 0.4 * (found[:, 1].mean() - uniform)


def test_warm_up_is_in_turn_and_counts_logged_decisions(problem):
    x, means = problem
    tried = agent("linear", warm_up=2)
    assert [tried.act(x[0]) for _ in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]
    logged = agent("linear", warm_up=2).partial_fit([0, 0, 1], means[0, [0, 0, 1]], x[:3])
    assert [logged.act(x[0]) for _ in range(5)] == [2, 3, 1, 2, 3]
    assert agent("linear", warm_up=1).act(x[:6])[:4] == [0, 1, 2, 3]


def test_policies(problem):
    x, _ = problem
    greedy, epsilon, uniform = (
        agent("linear", policy=policy, warm_up=0, epsilon=0.25) for policy in ("greedy", "epsilon-greedy", "uniform")
    )
    for each in (greedy, epsilon, uniform):
        each.partial_fit([0, 1, 2, 3], [0.0, 5.0, 0.0, 0.0], np.zeros((4, 3)))
    count = 4000
    row = np.zeros((count, 3))
    assert greedy.act(row) == [1] * count
    others = count - epsilon.act(row).count(1)
    assert abs(others - 0.25 * 0.75 * count) < 4.5 * (count * 0.1875 * 0.8125) ** 0.5
    shares = np.bincount(uniform.act(row), minlength=4)
    assert (abs(shares - count / 4) < 4.5 * (count * 0.1875) ** 0.5).all()
    assert greedy.act(x[:2], count=4)[0][0] == 1
    assert all(sorted(slate) == [0, 1, 2, 3] for slate in greedy.act(x[:9], count=4))


def test_a_slate_begins_with_what_waits_and_goes_on_with_the_best(problem):
    x, _ = problem
    found = agent("linear", warm_up=1, policy="greedy")
    found.partial_fit([0, 1, 3], [1.0, 9.0, 4.0], np.zeros((3, 3)))
    assert found.act(np.zeros(3), count=3) == [2, 1, 3]
    assert len(set(found.act(x[0], count=2))) == 2


@EVERY
def test_rewards_may_come_late_and_in_any_number(method, problem):
    x, means = problem
    actions = [row % 4 for row in range(37)]
    rewards = [means[row, action] for row, action in enumerate(actions)]
    one, many = agent(method), agent(method)
    for row in range(37):
        one.partial_fit([actions[row]], [rewards[row]], [x[row]])
    many.partial_fit(actions[:23], rewards[:23], x[:23]).partial_fit(actions[23:], rewards[23:], x[23:37])
    assert many.num_observations == 37
    for seed in (None, 5):
        found, expected = (each.scores(x[:9], seed=seed) for each in (one, many))
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-4)


@EVERY
def test_saved_agents_go_on_as_they_would_have(method, problem, tmp_path):
    saved = agent(method, actions=["a", "b", "c", "d"], seed=7)
    play(saved, problem, 27)
    path = tmp_path / "agent.safetensors"
    saved.save(path)
    loaded = Agent.load(path)
    assert loaded.belief == saved.belief
    assert loaded.actions == saved.actions
    assert same(loaded, saved)
    assert play(loaded, problem, 15, start=27).tolist() == play(saved, problem, 15, start=27).tolist()
    assert same(loaded, saved)


def test_files_that_do_not_fit_are_refused(problem, tmp_path):
    path = tmp_path / "agent.safetensors"
    own = bandits.Neural("adam", model=lambda d, k: nn.Linear(d, k), steps=2, train_every=5)
    Agent(own, num_features=3, actions=4).save(path)
    with pytest.raises(ValueError, match="belief must be given for an agent whose Neural has objects"):
        Agent.load(path)
    with pytest.raises(ValueError, match="belief must be a Neural as the saved agent's, got Linear"):
        Agent.load(path, belief=bandits.Linear())
    with pytest.raises(ValueError, match="the agent's file must fit its belief"):
        Agent.load(path, belief=bandits.Neural("adam", hidden=(7,)))
    assert Agent.load(path, belief=own).num_features == 3
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(ValueError, match="the agent's file must be a complete safetensors file"):
        Agent.load(path)
    with pytest.raises(FileNotFoundError, match="the agent's file must exist"):
        Agent.load(tmp_path / "none")


@EVERY
def test_added_actions_are_tried_and_what_was_known_stays(method, problem):
    x, means = problem
    grown = agent(method, actions=["a", "b", "c"])
    play(grown, (x, means[:, :3]), 25)
    before = grown.scores(x[:20])
    grown.add_action("d")
    assert torch.allclose(grown.scores(x[:20])[:, :3], before, rtol=1e-4, atol=1e-5)
    assert [grown.act(x[0]) for _ in range(3)] == ["d", "d", "d"]
    play(grown, problem, 15)
    assert grown.scores(x[:20], seed=1).shape == (20, 4)
    with pytest.raises(ValueError, match="label must be new, got 'a'"):
        grown.add_action("a")


def test_another_likelihood_gives_probabilities(problem):
    x, means = problem
    clicks = (means > 0).astype(float)
    found = Agent(
        bandits.Neural("vadam", lr=0.02, likelihood=ba.Bernoulli(), **NETWORK),
        num_features=3,
        actions=4,
        policy="greedy",
    )
    for start in range(4):  # every action in every context, as logged
        actions = (np.arange(200) + start) % 4
        found.partial_fit(actions, clicks[np.arange(200), actions], x)
    scores = found.scores(x)
    assert ((scores >= 0) & (scores <= 1)).all()
    assert np.corrcoef(scores.numpy().ravel(), clicks.ravel())[0, 1] > 0.8
    with pytest.raises(ValueError, match=r"target must be in \[0, 1\], got 2.0"):
        found.partial_fit([0], [2.0], [x[0]])


def test_arrays_frames_and_tensors_are_contexts(problem):
    x, _ = problem
    given = [x[:4], torch.from_numpy(x[:4]), x[:4].tolist(), list(torch.from_numpy(x[:4])), pd.DataFrame(x[:4])]
    found = [agent("linear").partial_fit([0, 1, 2, 3], [1, 2, 3, 4], rows) for rows in given]
    assert all(same(found[0], other) for other in found[1:])
    actions = [pd.Series([0, 1, 2, 3]), pd.Index([0, 1, 2, 3]), np.arange(4), torch.arange(4), (0, 1, 2, 3)]
    found += [agent("linear").partial_fit(own, pd.Series([1, 2, 3, 4]), x[:4]) for own in actions]
    assert all(same(found[0], other) for other in found[1:])


def test_no_rows_are_no_observations():
    found, new = agent("linear"), agent("linear")
    found.partial_fit([], [], np.zeros((0, 3)))
    assert found.act(np.zeros((0, 3)), per_row=True) == []
    assert found.scores(np.zeros((0, 3)), seed=1, per_row=True).shape == (0, 4)
    assert same(found, new)


@pytest.mark.parametrize("seed", [1.5, -1, 2**64, "1", True])
def test_bad_seeds_of_samples_are_refused(seed):
    with pytest.raises(ValueError, match=r"^seed must be None or an integer in \[0, 2\*\*64\), got "):
        agent("linear").scores(np.zeros(3), seed=seed)


def test_the_unit_and_the_offset_of_rewards_do_not_matter_to_the_regressions(problem):
    x, means = problem
    one, other = agent("linear"), agent("linear")
    for t in range(60):
        actions = [own.act(x[t]) for own in (one, other)]
        assert actions[0] == actions[1]
        reward = means[t, actions[0]]
        one.partial_fit(actions[:1], [reward], x[t : t + 1])
        other.partial_fit(actions[:1], [1e-2 * reward + 5.0], x[t : t + 1])
    assert torch.allclose(other.scores(x[:5]), 1e-2 * one.scores(x[:5]) + 5.0, atol=1e-4)


@pytest.mark.parametrize("method", ["vadam", "neural-linear"])
def test_a_training_that_fails_changes_nothing(method, problem, monkeypatch):
    x, means = problem
    one, other = agent(method), agent(method)
    for each in (one, other):
        play(each, problem, 15)
    learner = one._agents.learner
    train = learner.chunk.train_epoch

    def failing(*args):
        train(*args)
        raise FloatingPointError("gone")

    monkeypatch.setattr(learner.chunk, "train_epoch", failing)
    with pytest.raises(FloatingPointError, match="gone"):
        one.partial_fit(np.arange(30) % 4, means[:30, 0], x[:30])
    monkeypatch.undo()
    assert same(one, other)
    assert one.num_observations == 15
    for each in (one, other):
        play(each, problem, 20, start=15)
    assert same(one, other)


def test_a_fit_of_the_user_that_fails_changes_nothing(problem):
    x, _ = problem
    sizes = []

    def fit(model, contexts, actions, rewards):
        sizes.append(len(contexts))
        with torch.no_grad():
            model.weight.add_(1.0)
        if len(sizes) == 2:
            raise RuntimeError("gone")
        mean = {name: value.detach().clone() for name, value in model.named_parameters()}
        return ba.DiagonalGaussian(mean, {name: torch.ones_like(value) for name, value in mean.items()})

    found = Agent(bandits.Refit(nn.Linear, fit, train_every=10), num_features=3, actions=4)
    found.partial_fit([0] * 10, np.ones(10), x[:10])
    before = found.scores(x[:5])
    with pytest.raises(RuntimeError, match="gone"):
        found.partial_fit([0] * 10, np.ones(10), x[:10])
    assert torch.equal(found.scores(x[:5]), before)
    assert found.num_observations == 10
    found.partial_fit([0] * 10, np.ones(10), x[:10])
    assert sizes == [10, 20, 20]


@pytest.mark.parametrize("method", METHODS)
def test_torchs_generator_is_left_alone(method, problem):
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    play(agent(method).add_action(), (problem[0], np.pad(problem[1], ((0, 0), (0, 1)))), 20)
    assert torch.rand(1) == expected


CHECKED = {
    "number": ([[-1], [0]], 0.0, 3, r"actions must be from 0 to 3, got \[\[-1\], \[0\]\]"),
    "large": ([[4], [0]], 0.0, 3, "actions must be from 0 to 3"),
    "reward": ([[0], [0]], math.nan, 3, "rewards must be finite, got inf or nan"),
    "width": ([[0], [0]], 0.0, 1, r"contexts must be of shape \(2, n, 3\), got \(2, 1, 1\)"),
    "lengths": ([[0, 1], [0, 1]], 0.0, 3, r"actions must be of shape \(2, 1\), got \(2, 2\)"),
}


@pytest.mark.parametrize("bad", CHECKED)
def test_bad_observations_of_many_agents_change_nothing(bad):
    actions, reward, width, message = CHECKED[bad]
    many = Agents(bandits.Linear(), num_features=3, num_actions=4, seeds=[1, 2])
    with pytest.raises(ValueError, match=message):
        many.observe(torch.ones(2, 1, width), torch.tensor(actions), torch.full((2, 1), reward))
    assert many.replay.size == 0
    with pytest.raises(ValueError, match=r"seeds must be one for each of 2 agents, got \[1\]"):
        many.scores(torch.ones(2, 1, 3), number=0, seeds=[1])


BAD = {
    "reward": (([0], [float("nan")], np.zeros((1, 3))), "rewards must be finite, got nan at position 0"),
    "large": (([0], [1e300], np.zeros((1, 3))), "rewards must be finite, got inf at position 0"),
    "word": (([0], ["five"], np.zeros((1, 3))), r"rewards must be numbers, got \['five'\]"),
    "action": ((["z"], [1.0], np.zeros((1, 3))), r"actions must be among \[0, 1, 2, 3\], got 'z'"),
    "number": (([7], [1.0], np.zeros((1, 3))), r"actions must be among \[0, 1, 2, 3\], got 7"),
    "width": (([0], [1.0], np.zeros((1, 5))), r"contexts must be of shape \(3,\) or \(n, 3\), got \(1, 5\)"),
    "context": (([0], [1.0], [[0.0, np.inf, 0.0]]), "contexts must be finite, got inf or nan in row 0"),
    "text": (([0], [1.0], [["a", "b", "c"]]), r"contexts must be numbers of shape \(n, 3\)"),
    "digits": (([0], ["5"], np.zeros((1, 3))), r"rewards must be numbers, got \['5'\]"),
    "complex": (([0], [1.0 + 2.0j], np.zeros((1, 3))), "rewards must be numbers, got"),
    "lengths": (([0, 1], [1.0], np.zeros((2, 3))), "must be of the same length, got 2, 1 and 2"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_observations_change_nothing(bad, problem):
    given, message = BAD[bad]
    one, other = agent(), agent()
    for each in (one, other):
        play(each, problem, 12)
    with pytest.raises(ValueError, match=message):
        one.partial_fit(*given)
    assert same(one, other)
    assert one.rounds == other.rounds


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros(5), r"contexts must be of shape \(3,\) or \(n, 3\), got \(5,\)"),
        (np.full(3, np.nan), "contexts must be finite"),
    ],
)
def test_bad_contexts_are_no_round(bad, message, problem):
    found = agent()
    for call in (found.act, found.scores):
        with pytest.raises(ValueError, match=message):
            call(bad)
    with pytest.raises(ValueError, match="count must be a whole number from 1 to 4, got 5"):
        found.act(problem[0][0], count=5)
    assert found.rounds == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actions": ["a", "b", "a"]}, "actions must be unique"),
        ({"actions": 1}, "num_actions must be a whole number of at least 2, got 1"),
        ({"policy": "ucb"}, "policy must be one of"),
        ({"epsilon": 2}, r"epsilon must be in \[0, 1\], got 2"),
        ({"warm_up": -1}, "warm_up must be a whole number of at least 0, got -1"),
        ({"seed": -1}, "seeds must be one or more integers"),
        ({"seed": 1.5}, r"seeds must be one or more integers in \[0, 2\*\*64\), got \[1.5\]"),
        ({"actions": "red"}, "actions must be a whole number or a list of labels, got 'red'"),
        ({"actions": [[1], [2]]}, r"actions must have labels that are numbers or text, got \[\[1\], \[2\]\]"),
    ],
)
def test_bad_agents_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        agent(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sgd"}, "method must be one of"),
        ({"width": -1.0}, "width must be a finite number of at least 0, got -1.0"),
        ({"train_every": 0}, "train_every must be a whole number of at least 1, got 0"),
        ({"likelihood": ba.Gaussian(1.0, learned=True)}, "likelihood must not have parameters that are learned"),
        ({"likelihood": "gaussian"}, "likelihood must be"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_bad_beliefs_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bandits.Neural(**options)


def test_networks_that_do_not_fit_are_refused():
    wrong = bandits.Neural("adam", model=lambda d, k: nn.Linear(d, 7))
    with pytest.raises(ValueError, match=r"model must give 4 outputs for each context, got \(2, 7\)"):
        Agent(wrong, num_features=3, actions=4)
    with pytest.raises(ValueError, match="model must end with a linear layer"):
        Agent(
            bandits.Neural("last-layer", model=lambda d, k: nn.Sequential(nn.Linear(d, k), nn.ReLU())),
            num_features=3,
            actions=4,
        )
