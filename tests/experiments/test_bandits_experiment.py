"""The experiment ``bandits``: problems against what their definition says, and units that go on after a kill."""

import numpy as np
import pytest
import safetensors
import torch

from experiments.bandits import protocol
from experiments.bandits.experiment import Bandits
from experiments.bandits.problems import LENGTHS, NUM_ACTIONS, problem, wheel
from experiments.bandits.report import report
from experiments.bandits.settings import ALGORITHMS, DELTAS, LABELS, LONG, PROBLEMS, PUBLISHED, rounds_of
from experiments.results import Store, finished
from experiments.runner import run

UNIFORM = {"mushroom": -0.9, "financial": 0.0, "jester": 0.34, "statlog": 1 / 7, "adult": 1 / 14, "covertype": 1 / 7}
"""What uniform play earns in expectation: the sanity check of the protocol."""


def load(name, rounds, seeds):
    try:
        return problem(name, rounds, seeds)
    except (FileNotFoundError, ImportError) as error:
        pytest.skip(f"the data are not here: {error}")


@pytest.mark.parametrize("name", LENGTHS)
def test_problems_are_what_the_protocol_says(name):
    game = load(name, LENGTHS[name], [0, 1])
    assert game.contexts.shape[:2] == game.rewards.shape[:2] == game.optimal.shape == (2, LENGTHS[name])
    assert game.rewards.shape[2] == NUM_ACTIONS[name]
    assert not torch.equal(game.contexts[0], game.contexts[1])
    uniform = game.rewards.double().mean(2).sum(1) / game.optimal.sum(1)
    assert uniform.tolist() == pytest.approx([UNIFORM[name]] * 2, abs=0.05 if name == "mushroom" else 0.01)
    if name in ("statlog", "adult", "covertype"):
        assert (game.rewards.sum(2) == 1).all()
        spread = game.contexts[0].double().std(0, correction=0)
        assert ((spread - 1).abs() < 1e-3).logical_or(spread == 0).all()
        assert game.contexts[0].mean(0).abs().max() < 1e-4
    again = problem(name, LENGTHS[name], [1])
    assert torch.equal(again.contexts[0], game.contexts[1])
    assert torch.equal(again.rewards[0], game.rewards[1])


def test_mushrooms_pay_what_they_should():
    game = load("mushroom", 8000, [3])
    eaten, optimal = game.rewards[0, :, 1], game.optimal[0]
    assert not game.rewards[0, :, 0].any()
    assert (eaten[optimal == 5] == 5).all()
    poisonous = eaten[optimal == 0]
    assert set(poisonous.unique().tolist()) == {-35.0, 5.0}
    assert abs((poisonous == 5).float().mean().item() - 0.5) < 4.5 * 0.5 / len(poisonous) ** 0.5


def test_financial_noise_grows_with_the_action():
    game = load("financial", 3713, [0])
    x, rewards = game.contexts[0].double(), game.rewards[0].double()
    weights = torch.linalg.lstsq(x, rewards).solution
    assert torch.linalg.vector_norm(weights, dim=0).tolist() == pytest.approx([1.0] * 8, abs=0.02)
    noise = (rewards - x @ weights).std(0).tolist()
    assert noise == pytest.approx([0.01 * (i + 1) for i in range(8)], rel=0.06)
    assert torch.allclose((x @ weights).max(1).values, game.optimal[0], atol=0.1)


@pytest.mark.parametrize("delta", [0.5, 0.95])
def test_the_wheel_pays_outside(delta):
    x, rewards, optimal = wheel(np.random.default_rng(0), 20_000, delta)
    radius = np.linalg.norm(x, axis=1)
    assert radius.max() <= 1.0
    assert abs((radius > delta).mean() - (1 - delta**2)) < 4.5 * (delta**2 * (1 - delta**2) / 20_000) ** 0.5
    large = rewards > 40
    assert (large.sum(1) == (radius > delta)).all()
    assert set(rewards[radius <= delta].argmax(1).tolist()) == {0}
    outside = radius > delta
    for action in range(1, 5):  # one quadrant each
        signs = np.sign(x[outside & (rewards.argmax(1) == action)])
        assert (signs == signs[0]).all()
    assert optimal == pytest.approx(np.where(outside, 50.0, 1.2))


def test_settings_are_complete():
    assert ALGORITHMS.keys() == LABELS.keys()
    assert set(LONG) | set(PUBLISHED) <= ALGORITHMS.keys()
    assert rounds_of("statlog", "vadam") == 43_500
    assert rounds_of("statlog", "dropout") == 10_000
    assert rounds_of("financial", "dropout") == 3_713


CONFIG = {
    "problem": "wheel-0.5",
    "rounds": 60,
    "runs": 2,
    "belief": "neural",
    "options": {"method": "vadam", "hidden": [8], "steps": 2, "batch_size": 16},
}


def silent(done, total, note=""):
    pass


def test_a_killed_unit_goes_on_to_the_same_end(tmp_path, monkeypatch):
    whole = protocol.play(CONFIG, tmp_path, silent)
    monkeypatch.setattr(protocol, "EVERY", 0.0)

    def killed(done, total, note=""):
        if done == 40:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        protocol.play(CONFIG, tmp_path, killed)
    assert (tmp_path / "agents.safetensors").is_file()
    resumed = protocol.play(CONFIG, tmp_path, silent)
    for name, value in whole.items():
        assert np.array_equal(resumed[name], value), name


def test_an_agent_that_is_told_all_rewards(tmp_path, monkeypatch):
    monkeypatch.setattr(protocol, "EVERY", 0.0)
    told = {**CONFIG, "policy": "greedy", "told": "all"}
    protocol.play(told, tmp_path, silent)
    with safetensors.safe_open(tmp_path / "agents.safetensors", framework="pt") as file:
        rewards = file.get_tensor("replay/rewards")
    assert rewards.shape == (2, 41 * 5)  # the last checkpoint is after 41 rounds of five actions
    game = problem("wheel-0.5", 60, range(2))
    assert torch.equal(rewards, game.rewards[:, :41].flatten(1))
    assert protocol.agents(told, game).train_every == 20 * 5


def test_ratios_are_rewards_over_the_optimal(tmp_path):
    uniform = {**CONFIG, "belief": "linear", "options": {}, "policy": "uniform", "rounds": 4000}
    found = protocol.play(uniform, tmp_path, silent)
    # Half of the area is outside of delta = 0.707; at 0.5 three quarters are.
    expected = (0.75 * (50 + 1.2 + 3) / 5 + 0.25 * (1.2 + 4) / 5) / (0.75 * 50 + 0.25 * 1.2)
    assert found["ratio"] == pytest.approx([expected] * 2, rel=0.12)
    assert found["curve"][-1] == pytest.approx(found["ratio"].mean(), abs=0.01)


def test_units_and_report(tmp_path, monkeypatch):
    load("financial", 10, [0])
    tiny = {"vadam": ALGORITHMS["vadam"], "uniform": ALGORITHMS["uniform"]}
    experiment = Bandits(tiny, ("financial",), quick=(25, 2))
    monkeypatch.setattr(Bandits, "folder", tmp_path)
    keys = [unit.key for unit in experiment.units()]
    assert {"quick-financial-vadam", "table-financial-vadam", "wheel-0.95-vadam"} <= set(keys)
    summary = run(experiment, jobs=1, only=["quick-"], runs=tmp_path / "runs")
    assert not summary.failed
    results = finished(experiment.units(), Store.of(experiment, tmp_path / "runs"))
    page = report(results)
    assert [table.title[:3] for table in page.tables] == ["The"]
    assert set(page.figures) == {"curves"}
    assert [row[0] for row in page.tables[0].rows] == ["Vadam", "uniform"]


def test_algorithms_that_do_not_play_all_problems():
    keys = [unit.key for unit in Bandits().units()]
    own = {name: {key.removesuffix(f"-{name}") for key in keys if key.endswith(f"-{name}")} for name in PROBLEMS}
    assert own["ivon-once"] == {f"wheel-{delta}" for delta in DELTAS}
    assert own["all-rewards"] == {f"{kind}-{name}" for kind in ("quick", "table") for name in ("adult", "covertype")}
