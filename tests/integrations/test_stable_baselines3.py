"""Parameter-space exploration with stable-baselines3 as it is."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch

pytest.importorskip("stable_baselines3", reason="needs stable-baselines3: pip install 'bayesadam[integrations]'")

from stable_baselines3 import DDPG, PPO, SAC, TD3
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback

import bayesadam as ba
from bayesadam.integrations.stable_baselines3 import ParameterExploration

SMALL = {"learning_starts": 5, "batch_size": 8, "buffer_size": 500}


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def model_of(kind=DDPG, optimizer_class=torch.optim.Adam, **options):
    policy = {"net_arch": [16, 16], "optimizer_class": optimizer_class}
    return kind("MlpPolicy", "Pendulum-v1", seed=0, policy_kwargs=policy, **{**SMALL, **options})


def vadagrad(weights):
    return ba.VadaGrad(weights, initial_precision=1e4)


def vector(module):
    return torch.cat([parameter.detach().flatten().clone() for parameter in module.parameters()])


def mean_of(exploration, actor):
    means = exploration.optimizer.posterior(actor).mean
    return torch.cat([means[name].flatten() for name, _ in actor.named_parameters()])


class Spy(BaseCallback):
    """What the actor holds after every step of the environment, and at every gradient."""

    def __init__(self, exploration):
        super().__init__()
        self.exploration, self.events = exploration, []

    def _on_training_start(self):
        self.handles = [
            self.exploration.optimizer.register_step_pre_hook(lambda *_: self.note("gradient")),
            self.exploration.optimizer.register_step_post_hook(lambda *_: self.note("stepped")),
        ]

    def _on_step(self):
        self.note("acted")
        return True

    def _on_training_end(self):
        for handle in self.handles:
            handle.remove()

    def note(self, name):
        actor = self.model.actor
        self.events.append((name, vector(actor), mean_of(self.exploration, actor)))

    def noises(self, name):
        return [weights - mean for event, weights, mean in self.events if event == name]


def spied(kind=DDPG, steps=30, every="step", **options):
    model, exploration = model_of(kind, **options), ParameterExploration(vadagrad, every=every)
    spy = Spy(exploration)
    model.learn(steps, callback=[exploration, spy])
    return model, exploration, spy


def runs(noises):
    """How often the same noise comes in a row."""
    found = [1]
    for one, other in pairwise(noises):
        if torch.equal(one, other):
            found[-1] += 1
        else:
            found.append(1)
    return found


@pytest.mark.parametrize("kind", [DDPG, TD3, SAC])
def test_every_step_of_the_environment_has_a_sample_and_the_gradient_is_taken_at_it(kind):
    steps = 30
    model, exploration, spy = spied(kind, steps, **({"policy_delay": 1} if kind is TD3 else {}))
    acted, gradients = spy.noises("acted"), spy.noises("gradient")
    assert (len(acted), len(gradients)) == (steps, steps - 5)  # 5 random actions
    for one, other in zip(acted[5:], gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-7, rtol=0)
    assert len({tuple(noise.tolist()) for noise in acted[5:]}) == steps - 5
    spread = torch.stack(acted[5:]).std().item()
    n = (steps - 5) * len(acted[0])
    assert spread == pytest.approx(0.01, abs=5 * 0.01 / np.sqrt(2 * n))  # the precision hardly grows in these steps
    last = spy.events[-1][2]  # the mean, which is left after training
    torch.testing.assert_close(vector(model.actor), last, atol=1e-7, rtol=0)
    assert not torch.equal(last, vector(model_of(kind).actor))
    assert "predict" not in model.policy.__dict__
    assert exploration.optimizer.param_groups[0]["weights"] == "mean"


def test_the_target_of_the_actor_follows_the_mean():
    tau, targets = 0.1, []
    model, exploration = model_of(tau=tau), ParameterExploration(vadagrad)

    class Targets(BaseCallback):
        def _on_step(self):
            targets.append((vector(self.model.actor_target), mean_of(exploration, self.model.actor)))
            return True

    model.learn(30, callback=[exploration, Targets()])
    for (before, _), (after, mean) in pairwise(targets[6:]):
        torch.testing.assert_close(after, torch.lerp(before, mean, tau), atol=1e-7, rtol=0)


def test_several_gradients_and_delayed_ones_each_have_a_sample_of_their_own():
    _, _, spy = spied(TD3, 40, train_freq=4, gradient_steps=4, policy_delay=2)
    gradients = spy.noises("gradient")
    assert len(gradients) >= 16
    assert runs(gradients) == [1] * len(gradients)
    assert all(0.008 < noise.std().item() < 0.012 for noise in gradients)
    assert all((noise == 0).all() for noise in spy.noises("stepped"))  # the mean, which the target follows


@pytest.mark.parametrize(("every", "expected"), [("step", [1] * 24), ("rollout", [4] * 6)])
def test_how_long_a_sample_acts(every, expected):
    _, _, spy = spied(DDPG, 32, every, learning_starts=0, train_freq=4, gradient_steps=0)
    acted = spy.noises("acted")[8:]
    assert runs(acted) == expected
    assert all(0.007 < noise.std().item() < 0.013 for noise in acted)


@pytest.mark.parametrize("first", [True, False])
def test_evaluation_is_at_the_mean_whatever_the_order_of_callbacks(first):
    model, exploration, inside = model_of(), ParameterExploration(vadagrad), []

    class Evaluation(EvalCallback):
        def _on_step(self):
            handle = self.model.actor.register_forward_pre_hook(lambda *_: self.note())
            try:
                return super()._on_step()
            finally:
                handle.remove()

        def note(self):
            inside.append((vector(self.model.actor), mean_of(exploration, self.model.actor)))

    evaluation = Evaluation(model.get_env(), n_eval_episodes=1, eval_freq=10, verbose=0, warn=False)
    model.learn(30, callback=[exploration, evaluation] if first else [evaluation, exploration])
    assert len(inside) == 600  # three episodes of 200 steps
    for weights, mean in inside:
        assert torch.equal(weights, mean)


def test_what_is_saved_is_the_mean_and_the_training_goes_on_from_it(tmp_path):
    model, exploration = model_of(), ParameterExploration(vadagrad)
    spy = Spy(exploration)
    model.learn(30, callback=[CheckpointCallback(20, str(tmp_path)), exploration, spy])
    means = [mean for name, _, mean in spy.events if name == "acted"]
    loaded = DDPG.load(tmp_path / "rl_model_20_steps", env=model.get_env())
    torch.testing.assert_close(vector(loaded.actor), means[19], atol=0, rtol=0)
    again = ParameterExploration(vadagrad)
    loaded.learn(10, callback=again, reset_num_timesteps=False)
    assert loaded.actor.optimizer is again.optimizer
    assert again.optimizer.state[next(loaded.actor.parameters())]["step"] == 24  # of steps 6 to 19, and 10 more


def test_the_actor_may_have_a_learning_rate_of_its_own():
    model, rates = model_of(), []
    exploration = ParameterExploration(vadagrad, learning_rate=lambda left: 0.5 * left)

    class Rates(BaseCallback):
        def _on_training_start(self):
            group = exploration.optimizer.param_groups[0]
            exploration.optimizer.register_step_post_hook(lambda *_: rates.append(group["lr"]))

        def _on_step(self):
            return True

    model.learn(20, callback=[exploration, Rates()])
    np.testing.assert_allclose(rates, 0.5 * (1 - np.arange(6, 21) / 20), atol=1e-12)


def test_without_noise_it_is_the_algorithm_itself():
    plain = model_of(optimizer_class=torch.optim.SGD).learn(30)

    def quiet(weights):
        return ba.VadaGrad([{"params": list(weights), "perturb": False}], initial_precision=1.0, betas=(0.0, 1 - 1e-12))

    explored = model_of(optimizer_class=torch.optim.SGD)
    explored.learn(30, callback=ParameterExploration(quiet))  # a step of lr times the gradient: the sum stays 1
    torch.testing.assert_close(vector(explored.actor), vector(plain.actor))
    torch.testing.assert_close(vector(explored.critic), vector(plain.critic))


def test_wrong_algorithms_and_optimisers_change_nothing():
    with pytest.raises(ValueError, match="every must be 'step' or 'rollout', got 'episode'"):
        ParameterExploration(vadagrad, every="episode")
    for rate in (-1.0, "linear"):
        with pytest.raises(ValueError, match="learning_rate must be None, .* got "):
            ParameterExploration(vadagrad, learning_rate=rate)
    with pytest.raises(ValueError, match="must train an actor and a critic, as DDPG, TD3 and SAC do, got PPO"):
        PPO("MlpPolicy", "Pendulum-v1", n_steps=8, batch_size=8).learn(8, callback=ParameterExploration(vadagrad))
    model = model_of()
    before = model.actor.optimizer
    for make in (
        lambda weights: torch.optim.Adam([p for _, p in weights]),
        lambda weights: ba.VadaGrad(weights, initial_precision=1e4, mc_samples=2),
    ):
        with pytest.raises(ValueError, match="optimizer must make an optimiser of bayesadam with mc_samples=1, got"):
            model.learn(8, callback=ParameterExploration(make))
    assert model.actor.optimizer is before
    assert "predict" not in model.policy.__dict__
