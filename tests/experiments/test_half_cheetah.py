"""DDPG of the half-cheetah experiment: its pieces against slow references, and short runs on Pendulum."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium", reason="needs gymnasium: pip install 'bayesadam[integrations]'")

from experiments import registry, runner
from experiments.half_cheetah.curves import conclusion, curves_of, difference
from experiments.half_cheetah.ddpg import DDPG, Replay
from experiments.half_cheetah.experiment import METHODS, PROTOCOL, HalfCheetah
from experiments.half_cheetah.methods import optimizer_of
from experiments.half_cheetah.training import environment, evaluate, learn
from experiments.results import Result, Store, finished

SHORT = {
    **{"environment": "Pendulum-v1", "episodes": 3, "steps": 60, "every": 2, "tests": 2, "hidden": [24, 16]},
    **{"batch_size": 16, "replay": 150},
}


def config(method, **changes):
    return {**PROTOCOL, **SHORT, "method": method, "settings": METHODS[method], "seed": 0, **changes}


def agent(method="sgd-plain", **changes):
    return DDPG(config(method, **changes), 3, 2, 2.0)


def minibatch(agent, n=16):
    torch.manual_seed(1)
    return torch.randn(n, 3), torch.rand(n, 2), torch.randn(n, 1), torch.zeros(n, 1), torch.randn(n, 3)


def values(network):
    return network.weights.detach().clone()


def actions_of(weights, states, hidden=(24, 16), inputs=3, actions=2, bound=2.0):
    """The actor as a function of its vector of weights, to be differentiated."""
    first, second = hidden
    sizes = [first * inputs, first, second * first, second, actions * second, actions]
    w1, b1, w2, b2, w3, b3 = weights.split(sizes)
    h = torch.relu(states @ w1.view(first, inputs).T + b1)
    h = torch.relu(h @ w2.view(second, first).T + b2)
    return bound * torch.tanh(h @ w3.view(actions, second).T + b3)


def values_of(weights, states, actions, hidden=(24, 16)):
    """The critic likewise."""
    first, second = hidden
    inputs, outputs = states.shape[1], actions.shape[1]
    w1, b1, w2, b2, w3, b3, wa = weights.split(
        [first * inputs, first, second * first, second, second, 1, second * outputs]
    )
    h = torch.relu(states @ w1.view(first, inputs).T + b1)
    h = torch.relu(h @ w2.view(second, first).T + b2 + actions @ wa.view(second, outputs).T)
    return h @ w3.view(1, second).T + b3


def test_networks_start_as_published_and_targets_independently():
    found = DDPG({**PROTOCOL, "method": "sgd-plain", "settings": METHODS["sgd-plain"], "seed": 0}, 17, 6, 1.0)
    *_, last, _ = matrices = found.actor.parts
    assert [tuple(each.shape) for each in matrices] == [(400, 17), (400,), (300, 400), (300,), (6, 300), (6,)]
    for matrix in matrices[:4:2]:  # five standard errors of a standard deviation
        assert matrix.std().item() == pytest.approx(0.3, abs=5 * 0.3 / math.sqrt(2 * matrix.numel()))
    assert all((bias == 0.1).all() for bias in matrices[1::2])
    assert 0.0028 < last.abs().max() <= 0.003
    matrices = found.critic.parts
    assert 0.0028 < matrices[4].abs().max() <= 0.003
    assert all((bias == 0).all() for bias in matrices[1:6:2])
    for matrix in (matrices[2], matrices[6]):
        assert matrix.abs().max() <= 0.04
        assert matrix.std().item() == pytest.approx(0.02 * 0.8796, rel=0.03)  # cut at two standard deviations
    for network, target in ((found.actor, found.actor_target), (found.critic, found.critic_target)):
        correlation = torch.corrcoef(torch.stack([values(network)[:6000], values(target)[:6000]]))[0, 1]
        assert abs(correlation) < 5 / math.sqrt(6000)


def test_the_gradient_of_actions_and_the_sum_over_the_minibatch_are_those_of_autograd():
    found = agent()
    states, *others = minibatch(found)
    found.learn(states, *others)
    actor = values(found.actor).requires_grad_()
    loss = -values_of(values(found.critic), states, actions_of(actor, states)).sum()  # the critic after its step
    (expected,) = torch.autograd.grad(loss, actor)
    assert expected.abs().max() > 1e-6
    torch.testing.assert_close(found.actor.weights.grad, expected, rtol=1e-4, atol=1e-9)


def test_the_critic_learns_the_discounted_value_and_nothing_follows_the_last_step():
    found, terminal = agent(), torch.tensor([[0.0], [1.0]] * 8)
    states, actions, rewards, _, following = minibatch(found)
    found.critic_target.parts[5].fill_(3.0)  # so that the future is not next to nothing
    future = values_of(values(found.critic_target), following, actions_of(values(found.actor_target), following))
    goal = torch.where(terminal == 1, rewards, rewards + 0.99 * future)
    critic = values(found.critic).requires_grad_()
    (expected,) = torch.autograd.grad((values_of(critic, states, actions) - goal).square().mean(), critic)
    found.learn(states, actions, rewards, terminal, following)
    torch.testing.assert_close(found.critic.weights.grad, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_acting_and_the_gradient_share_one_sample_and_targets_follow_the_mean(method):
    found = agent(method)
    before, target = values(found.actor), values(found.actor_target)
    seen = []
    for _ in range(3):
        with found.explored():
            seen.append(values(found.actor))
            found.learn(*minibatch(found))
            torch.testing.assert_close(values(found.actor), seen[-1], rtol=0, atol=0)
        torch.testing.assert_close(values(found.actor), before, rtol=0, atol=0)
        found.step()
        target = torch.lerp(target, values(found.actor), 0.001)
        torch.testing.assert_close(values(found.actor_target), target)
        noise = seen[-1] - before
        before = values(found.actor)
        if method.endswith("plain"):
            assert (noise == 0).all()
        else:  # a standard deviation of 0.01, to five standard errors
            assert noise.std().item() == pytest.approx(0.01, abs=5 * 0.01 / math.sqrt(2 * len(noise)))
    if not method.endswith("plain"):
        assert abs(torch.corrcoef(torch.stack([seen[1] - seen[0], seen[2] - seen[1]]))[0, 1] + 0.5) < 0.2


def reference(method, mean, gradients, noises):
    """Khan et al. 2018, appendix K, Algorithms 1 and 2, and eq. 111 with precisions; in float64."""
    s, m, v = 1e4, 0.0, 0.0
    mp = vp = 0.0
    for t, (slope, eps) in enumerate(zip(gradients, noises, strict=True), 1):
        sigma = {"vadam": (v + 1e-8 + 1e4) ** -0.5 if method == "vadam" else 0.0}.get(method, s**-0.5)
        g = slope(mean + sigma * eps)
        d = -0.5 * g * eps * s**-1.5
        if method == "vadam":
            m = 0.9 * m + 0.1 * (g + 1e-8 * mean)
            v = 0.999 * v + 0.001 * g * g
            mean -= 1e-4 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
        elif method == "vadagrad":
            s += 0.01 * g * g
            mean -= 0.01 * g / s**0.5
        elif method == "sgd-explore":
            mean, s = mean - 1e-4 * g, s - 0.01 * d
        else:
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            mp, vp = 0.9 * mp + 0.1 * d, 0.999 * vp + 0.001 * d * d
            mean -= 1e-4 * (m / (1 - 0.9**t)) / ((v / (1 - 0.999**t)) ** 0.5 + 1e-8)
            s -= 0.01 * (mp / (1 - 0.9**t)) / ((vp / (1 - 0.999**t)) ** 0.5 + 1e-8)
    return mean, s


@pytest.mark.parametrize("method", [name for name in METHODS if not name.endswith("plain")])
def test_the_rules_are_those_of_the_appendix(method):
    weight = torch.nn.Parameter(torch.tensor([0.5], dtype=torch.float64))
    module = torch.nn.Module()
    module.weight = weight
    optimizer = optimizer_of(method, METHODS[method], weight, seed=3)
    steps, noises = 40, []
    slope = lambda w: 300.0 * w**3 - 20.0 + 80.0 * w  # noqa: E731
    for _ in range(steps):
        mean = weight.item()
        variance = optimizer.posterior(module).variance["weight"].item()
        with optimizer.sampled_params():
            noises.append((weight.item() - mean) / math.sqrt(variance))
            (75.0 * weight**4 - 20.0 * weight + 40.0 * weight**2).sum().backward()
        optimizer.step()
    mean, s = reference(method, 0.5, [slope] * steps, noises)
    assert weight.item() == pytest.approx(mean, rel=1e-9)
    assert abs(mean - 0.5) > 1e-4
    if method != "vadam":
        assert 1.0 / optimizer.posterior(module).variance["weight"].item() == pytest.approx(s, rel=1e-9)
        assert s != 1e4


def test_replay_keeps_the_latest_transitions():
    replay = Replay(5, 2, 1)
    for i in range(8):
        replay.add(np.full(2, i), np.full(1, 10 + i), 20.0 + i, i == 6, np.full(2, 30 + i))
    assert len(replay) == 5
    states, actions, rewards, terminal, following = replay.draw(400, np.random.default_rng(0))
    assert [tuple(part.shape) for part in (states, actions, rewards, terminal, following)] == [
        *[(400, 2), (400, 1), (400, 1), (400, 1), (400, 2)]
    ]
    assert set(states[:, 0].tolist()) == {3.0, 4.0, 5.0, 6.0, 7.0}
    torch.testing.assert_close(actions, states[:, :1] + 10)
    torch.testing.assert_close(rewards, states[:, :1] + 20)
    torch.testing.assert_close(following, states + 30)
    assert ((terminal == 1) == (states[:, :1] == 6)).all()


class Killed(Exception):
    pass


def test_a_training_that_was_killed_has_the_same_end(tmp_path):
    given = config("vadam", episodes=5)
    expected = learn(given, tmp_path / "whole", lambda *_: None)
    calls = []

    def kill(*args):
        calls.append(args)
        raise Killed

    for _ in range(2):
        with pytest.raises(Killed):
            learn(given, tmp_path / "killed", kill)
    assert [done for done, *_ in calls] == [1, 3]
    assert learn(given, tmp_path / "killed", lambda *_: None) == expected
    assert expected["episodes"] == [0, 2, 4]
    assert [len(each) for each in expected["returns"]] == [2, 2, 2]
    assert len(expected["training"]) == 5


def test_evaluation_is_that_of_the_mean_alone():
    given = config("vadagrad")
    found = DDPG(given, 3, 1, 2.0)
    together = evaluate(found, [environment("Pendulum-v1") for _ in range(3)], given, 4)
    alone = environment("Pendulum-v1")
    for number, expected in enumerate(together):
        seed = int(np.random.SeedSequence((3, 0, 4, number)).generate_state(1)[0])
        state, total = alone.reset(seed=seed)[0], 0.0
        for _ in range(given["steps"]):
            state, reward, *_ = alone.step(found.act(state[None].astype(np.float32))[0])
            total += reward
        assert total == pytest.approx(expected, abs=0.01)
    assert len(set(together)) == 3


class Short(HalfCheetah):
    def __init__(self, folder):
        super().__init__(2, **SHORT)
        self._folder = folder

    @property
    def folder(self):
        return self._folder


def test_units_run_all_methods_of_a_seed_before_the_next_and_the_report_has_the_papers_numbers(tmp_path):
    experiment = Short(tmp_path)
    summary = runner.run(experiment, jobs=1, only=["seed0"], runs=tmp_path / "runs")
    assert (summary.failed, summary.finished, summary.units) == ({}, 6, 12)
    results = finished(experiment.units(), Store.of(experiment, tmp_path / "runs"))
    assert set(results) == {f"{method}-seed0" for method in METHODS}
    report = experiment.report(results)
    assert "nothing can be concluded" in report.notes
    assert "| Vadam | 1 |" in report.tables[0].markdown()
    costs = {unit.key: unit.cost for unit in HalfCheetah().units()}
    assert min(costs[f"{method}-seed0"] for method in METHODS) > max(costs[f"{method}-seed1"] for method in METHODS)


def made(levels, episodes=(0, 10, 50, 100)):
    """Results of methods whose seeds have these levels from the second evaluation on."""
    found = {}
    for method, seeds in levels.items():
        for seed, level in enumerate(seeds):
            returns = [[-500.0, -300.0], *([[level - 10.0, level + 10.0]] * (len(episodes) - 1))]
            result = {"episodes": list(episodes), "returns": returns, "training": []}
            given = {"method": method, "seed": seed}
            found[f"{method}-seed{seed}"] = Result("half-cheetah", "", given, {}, result, 1.0, 1.0, {}, {}, "")
    return found


def test_differences_are_paired_by_seed():
    curves = curves_of(made({"vadam": [100.0, 900.0, 520.0], "adam-plain": [50.0, 880.0, 480.0, 7.0]}))
    number, half, seeds = difference(curves, "vadam", "adam-plain")
    each = np.array([50.0, 20.0, 40.0])
    assert (number.mean, seeds) == (pytest.approx(each.mean()), 3)
    assert half == pytest.approx(4.30 * each.std(ddof=1) / math.sqrt(3))
    assert difference(curves, "vadam", "sgd-plain") is None
    assert difference(curves_of(made({"vadam": [1.0], "adam-plain": [1.0]})), "vadam", "adam-plain") is None


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (
            {"vadam": [500, 510, 520], "adam-explore": [400, 411, 419], "adam-plain": [90, 101, 109]},
            ["Vadam is better than Adam-Explore (+100 ± 2) and Adam-Plain (+410 ± 2)", "does learn faster here"],
        ),
        (
            {"vadam": [500, 510, 520], "adam-explore": [700, 200, 630], "adam-plain": [90, 101, 109]},
            [
                "better than Adam-Plain (+410 ± 2); the difference to Adam-Explore (+0 ± 676) is within",
                "cannot be concluded",
            ],
        ),
        (
            {"vadam": [50, 60, 70], "adam-explore": [70, 20, 63], "sgd-plain": [400, 411, 419]},
            ["worse than SGD-Plain (-350 ± 2)", "cannot be concluded"],
        ),
    ],
)
def test_the_conclusion_follows_from_the_intervals(levels, expected):
    text = conclusion(curves_of(made(levels)), [0, 10, 50, 100])
    assert text.count(". ") == 1
    for part in expected:
        assert part in text


def test_the_report_has_both_runs_of_the_authors():
    report = HalfCheetah().report(made({"vadam": [500.0, 700.0, 600.0], "adam-plain": [1.0, 2.0, 3.0]}))
    row = next(line for line in report.tables[0].markdown().splitlines() if line.startswith("| Vadam"))
    assert [cell.strip() for cell in row.split("|")[2:-1]][-3:] == ["600 ± 58", "1795 ± 378", "672 ± 178"]
    assert "| Adam-Plain | 2 ± 1 | 598 ± 57 | 351 to 845 | 3 |" in report.tables[1].markdown()
    axes = report.figures["curves"].axes
    assert [axis.get_title() for axis in axes] == ["ours, 3 seeds", "paper, run 1, 5 seeds", "paper, run 2, 5 seeds"]
    np.testing.assert_allclose(axes[0].lines[0].get_ydata(), [-400.0, 600.0, 600.0, 600.0])


def test_the_published_length():
    units = registry.load("half-cheetah-full").units()
    assert len(units) == 30
    assert {unit.config["episodes"] for unit in units} == {3000}
    assert units[0].config == {**HalfCheetah().units()[0].config, "episodes": 3000}
