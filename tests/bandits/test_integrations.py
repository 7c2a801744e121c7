"""The views, each against the package that it looks like."""

import numpy as np
import pandas as pd
import pytest

from bayesadam import bandits
from bayesadam.bandits import Agent


def linear(actions, **options):
    return Agent(bandits.Linear(prior_precision=0.04, noise_precision=4.0), num_features=5, actions=actions, **options)


@pytest.fixture
def logged():
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(150, 5))
    decisions = rng.choice(["red", "green", "blue"], size=150)
    weights = {arm: rng.normal(size=5) for arm in ("red", "green", "blue")}
    rewards = np.array([row @ weights[arm] for row, arm in zip(contexts, decisions, strict=True)])
    return decisions, rewards, contexts, weights


def test_mab_has_the_shapes_of_mabwiser(logged):
    mabwiser = pytest.importorskip("mabwiser.mab", reason="mabwiser is not installed")
    from bayesadam.integrations.mabwiser import MAB

    decisions, rewards, contexts, weights = logged
    arms = ["red", "green", "blue"]
    theirs = mabwiser.MAB(arms, mabwiser.LearningPolicy.LinGreedy(epsilon=0.0, l2_lambda=0.01))
    ours = MAB(linear(arms, policy="greedy"))
    for mab in (theirs, ours):
        mab.fit(decisions[:100], rewards[:100], contexts[:100])
        mab.partial_fit(pd.Series(decisions[100:]), pd.Series(rewards[100:]), pd.DataFrame(contexts[100:]))
    new = np.random.default_rng(1).normal(size=(40, 5))
    assert ours.predict(new) == theirs.predict(new) == [max(arms, key=lambda a: row @ weights[a]) for row in new]
    assert ours.predict(new[:1]) == theirs.predict(new[:1])
    one, other = ours.predict_expectations(new), theirs.predict_expectations(new)
    assert [list(row) for row in one] == [list(row) for row in other]
    for row, found in zip(one, other, strict=True):
        assert [row[arm] for arm in arms] == pytest.approx([found[arm] for arm in arms], abs=0.05)
    assert ours.predict_expectations(new[:1]).keys() == theirs.predict_expectations(new[:1]).keys()
    for mab in (theirs, ours):
        mab.add_arm("white")
        assert mab.arms == [*arms, "white"]
    assert ours.predict(new[:1]) == "white"  # warmed up first


def test_fit_forgets_and_partial_fit_does_not(logged):
    from bayesadam.integrations.mabwiser import MAB

    decisions, rewards, contexts, _ = logged
    mab = MAB(linear(["red", "green", "blue"]))
    mab.fit(decisions, rewards, contexts).partial_fit(decisions, rewards, contexts)
    assert mab.agent.num_observations == 300
    mab.fit(decisions, rewards, contexts)
    assert mab.agent.num_observations == 150
    with pytest.raises(ValueError, match="rewards must be finite"):
        mab.fit(decisions, np.full(150, np.nan), contexts)
    assert mab.agent.num_observations == 150


@pytest.mark.filterwarnings("ignore")  # other packages' own
def test_obp_simulates_the_policy():
    pytest.importorskip("obp.simulator", reason="obp is not installed")
    from obp.policy import LinTS
    from obp.simulator import run_bandit_simulation

    from bayesadam.integrations.open_bandit_pipeline import OpenBanditPolicy

    rng = np.random.default_rng(3)
    contexts = rng.normal(size=(400, 5))
    action = rng.integers(4, size=400)
    weights = rng.normal(size=(4, 5))
    feedback = {
        "n_rounds": 400,
        "n_actions": 4,
        "context": contexts,
        "action": action,
        "position": np.zeros(400, dtype=int),
        "reward": (contexts * weights[action]).sum(1),
        "pscore": np.full(400, 0.25),
    }
    policy, theirs = OpenBanditPolicy(linear(4)), LinTS(dim=5, n_actions=4, random_state=1)
    found, expected = (run_bandit_simulation(bandit_feedback=feedback, policy=own) for own in (policy, theirs))
    assert found.shape == expected.shape == (400, 4, 1)
    assert (found.sum(1) == 1).all()
    best = (contexts @ weights.T).argmax(1)
    assert (found[200:, :, 0].argmax(1) == best[200:]).mean() > 0.8
    assert policy.n_trial == (found[np.arange(400), action, 0]).sum()
    assert policy.select_action(contexts[:1]).shape == theirs.select_action(contexts[:1]).shape
    slate = OpenBanditPolicy(linear(4), len_list=3)
    assert slate.select_action(contexts[:1]).shape == (3,)
    policy.initialize()
    assert (policy.n_trial, policy.agent.rounds) == (0, 0)
    with pytest.raises(ValueError, match=r"context must be of shape \(1, 5\), got \(5,\)"):
        policy.select_action(contexts[0])
    with pytest.raises(ValueError, match="actions of the agent must be the numbers"):
        OpenBanditPolicy(linear(["a", "b"]))
    with pytest.raises(ValueError, match="len_list must be a whole number from 1 to 4, got 5"):
        OpenBanditPolicy(linear(4), len_list=5)
