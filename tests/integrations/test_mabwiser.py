"""The adapter with the methods of MABWiser's ``MAB``; ``tests/bandits`` compares it with MABWiser itself."""

import numpy as np
import pandas as pd
import pytest

from bayesadam.bandits import Agent, Linear
from bayesadam.integrations.mabwiser import MAB


def mab(num_features, actions):
    return MAB(Agent(Linear(), num_features=num_features, actions=actions, policy="greedy", warm_up=0))


def test_fit_forgets_what_was_learned_since_the_adapter_was_made():
    agent = Agent(Linear(), num_features=2, actions=["a", "b"])
    agent.partial_fit(["a"] * 50, np.full(50, 9.0), np.zeros((50, 2)))
    known = MAB(agent).predict_expectations([[0.0, 0.0]])
    found = MAB(agent)
    found.partial_fit(["b"] * 30, np.ones(30), np.zeros((30, 2)))
    found.fit([], [], np.zeros((0, 2)))
    assert found.predict_expectations([[0.0, 0.0]]) == known
    assert "since the adapter was made" in MAB.fit.__doc__


@pytest.mark.parametrize("kind", [list, np.array, pd.Series, lambda values: pd.DataFrame({"x": values})])
def test_a_single_feature_may_be_a_column(kind):
    values = np.linspace(-1.0, 1.0, 40)
    decisions, rewards = ["low", "high"] * 20, np.where(np.arange(40) % 2, values, -values)
    found, expected = mab(1, ["low", "high"]), mab(1, ["low", "high"])
    expected.fit(decisions, rewards, values[:, None]).partial_fit(decisions, rewards, values[:, None])
    found.fit(decisions, rewards, kind(values)).partial_fit(decisions, rewards, kind(values))
    new = kind([-0.9, 0.8, 0.7])
    assert found.predict(new) == ["low", "high", "high"]
    assert found.predict_expectations(new) == expected.predict_expectations([[-0.9], [0.8], [0.7]])
    assert found.predict(kind([0.5])) == "high"


def test_several_features_of_one_context_may_be_a_series():
    assert mab(2, ["a", "b"]).predict(pd.Series([0.0, 1.0])) in ("a", "b")
    with pytest.raises(ValueError, match=r"^contexts must be of shape \(2,\) or \(n, 2\), got"):
        mab(2, ["a", "b"]).predict(pd.Series([0.0, 1.0, 2.0]))


def test_labels_of_several_types():
    """NumPy would make an array of text of them."""
    found = mab(2, [1, "x"])
    found.fit([1, "x"], [0.0, 1.0], np.zeros((2, 2))).partial_fit((1, "x"), [0.0, 1.0], np.zeros((2, 2)))
    assert found.agent.num_observations == 4
    assert found.predict([[0.0, 0.0]]) == "x"


def test_no_contexts():
    found = mab(2, ["a", "b"])
    assert found.predict(np.zeros((0, 2))) == []
    assert found.predict_expectations(np.zeros((0, 2))) == []
