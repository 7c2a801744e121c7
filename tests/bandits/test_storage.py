"""Files of agents: every damage is noticed, and files of earlier versions load."""

from pathlib import Path

import numpy as np
import pytest
import torch

import bayesadam as ba
from bandits.conftest import belief, same
from bayesadam import bandits
from bayesadam.bandits import Agent
from bayesadam.files import DamagedFile, NoDigestWarning

EARLIER = Path(__file__).parents[1] / "files" / "agents" / "linear.safetensors"


def played(**options):
    """An agent after 20 rounds; nothing about it depends on the processor but the last bits of its regressions."""
    x = np.arange(60.0).reshape(20, 3) % 7 - 3
    agent = Agent(bandits.Linear(**options), num_features=3, actions=["a", "b", 3], seed=5, warm_up=1)
    for row in x:
        action = agent.act(row)
        agent.partial_fit([action], [row[agent.actions.index(action)]], [row])
    return agent


def test_a_flipped_bit_is_noticed_wherever_it_is(tmp_path):
    path = tmp_path / "agent.safetensors"
    played().save(path)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(DamagedFile, match="^the agent's file must "):
            Agent.load(path)
    path.write_bytes(whole)
    assert same(Agent.load(path), played())


def test_a_file_without_a_digest_loads_and_that_is_said_once(tmp_path):
    with pytest.warns(NoDigestWarning, match=r"linear.safetensors' has no digest, as files of earlier") as caught:
        agent = Agent.load(EARLIER)
    assert [(Path(one.filename), one.category) for one in caught] == [(Path(__file__), NoDigestWarning)]
    expected = played(standardize=False)  # the only choice there was
    assert (agent.actions, agent.rounds, agent.belief) == (expected.actions, expected.rounds, expected.belief)
    for name, value in expected._agents.tensors().items():
        torch.testing.assert_close(agent._agents.tensors()[name], value)
    agent.save(tmp_path / "again")
    assert same(Agent.load(tmp_path / "again"), agent)  # without a warning, which would be an error


def test_settings_may_be_numbers_of_numpy(tmp_path):
    own = bandits.Linear(prior_precision=np.float32(0.25), width=np.float64(0.5))
    Agent(own, num_features=2, actions=2).save(tmp_path / "agent")
    assert Agent.load(tmp_path / "agent").belief == bandits.Linear(prior_precision=0.25, width=0.5)


def test_files_of_other_things_are_refused(tmp_path):
    path = tmp_path / "q.safetensors"
    ba.DiagonalGaussian({"w": torch.ones(3)}, {"w": torch.ones(3)}).save(path)
    with pytest.raises(DamagedFile, match="^the agent's file must have been saved by an agent, got '.*q.safetensors'$"):
        Agent.load(path)
    played().save(path)
    with pytest.raises(DamagedFile, match="^the posterior file must be of a kind in "):
        ba.load_posterior(path)
    path.write_bytes(EARLIER.read_bytes()[:-9])
    with pytest.raises(DamagedFile, match="^the agent's file must be a complete safetensors file, got "):
        Agent.load(path)
    path.write_bytes(EARLIER.read_bytes().replace(b'"version\\": 1', b'"version\\": ?'))
    with pytest.raises(DamagedFile, match="^the agent's file must be a complete safetensors file, got "):
        Agent.load(path)


def test_a_file_of_a_newer_version_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "agent"
    with monkeypatch.context() as newer:
        newer.setattr(bandits.storage, "VERSION", 3)
        played().save(path)
    with pytest.raises(DamagedFile, match=r"^the agent's file must be of version 2 or older \(update bayesadam\), "):
        Agent.load(path)


@pytest.mark.parametrize("method", ["linear", "adam"])
def test_numbers_may_be_numpys(method, tmp_path):
    numbers = {"num_features": np.int64(3), "actions": np.int64(4), "warm_up": np.int64(2), "seed": np.int64(1)}
    agent = Agent(belief(method), **numbers, epsilon=np.float64(0.1))
    agent.save(tmp_path / "agent")
    loaded = Agent.load(tmp_path / "agent")
    assert loaded._agents.settings() == agent._agents.settings()
    assert {type(value) for value in agent._agents.settings().values()} == {int, float, str, list}
    agent._agents.add_actions(np.int64(2))
    assert type(agent._agents.num_actions) is int
