"""Samples of networks have the moments that the posterior has, and any posterior of the library can be one."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import bayesadam as ba
from bandits.conftest import NETWORK, belief, play
from bayesadam import bandits
from bayesadam.bandits import Agent
from bayesadam.bandits.chosen import ChosenRewards
from bayesadam.population.batches import Batch


def trained(method, problem, **options):
    agent = Agent(bandits.Neural(method, **{**NETWORK, **options}), num_features=3, actions=4)
    play(agent, problem, 30)
    return agent._agents.learner


@pytest.mark.parametrize("method", ["vadam", "badam", "badam-mle"])
def test_weights_are_drawn_from_the_posterior(method, problem):
    learner = trained(method, problem, width=0.5, prior_precision=3.0, data_weight=1.0)
    chunk, head = learner.chunk, learner.head
    draws = torch.stack([head.sample(number, [8])[0] for number in range(4000)]).double()
    state, own = chunk.state["exp_avg_sq"][0].double(), chunk.hypers[0]
    mean = chunk.mean[0].double()
    num_data = 30.0
    if method == "vadam":
        variance = chunk.variance()[0].double()
    else:
        root = (state / (1.0 - own["betas"][1] ** chunk.steps[0])).sqrt()
        variance = 1.0 / (num_data * root + 3.0)
        mean = mean * root / (root + 3.0 / num_data) if method == "badam-mle" else mean
    deviation = 0.5 * variance.sqrt()
    z = (draws.mean(0) - mean) / deviation * math.sqrt(len(draws))
    assert z.abs().max() < 5.0
    ratio = draws.var(0) / deviation.square()
    assert (ratio - 1.0).abs().max() < 5.5 * math.sqrt(2.0 / len(draws))


def test_masks_drop_whole_units_at_their_rate(problem):
    learner = trained("dropout", problem, dropout=0.3)
    networks, head = learner.chunk.objective.networks, learner.head
    weights = [networks.layout.split(head.sample(number, [8]))["3.weight"][0] for number in range(3000)]
    full = networks.layout.split(head.mean)["3.weight"][0]
    kept = (torch.stack(weights) / full).round(decimals=4)
    assert torch.equal(kept, kept[:, :1].expand_as(kept))  # all outputs of a unit together
    assert set(kept.unique().tolist()) == {0.0, kept.max().item()}
    assert kept.max().item() == pytest.approx(1.0 / 0.7, abs=1e-4)
    share = (kept[:, 0] == 0).float().mean().item()
    count = kept[:, 0].numel()
    assert abs(share - 0.3) < 4.5 * math.sqrt(0.21 / count)


@pytest.mark.parametrize("method", ["last-layer", "neural-linear"])
def test_the_last_layer_is_regressed_on_the_units_before(method, problem):
    learner = trained(method, problem, prior_precision=2.0, noise_precision=3.0)
    networks = learner.chunk.objective.networks
    weights = {name: value[0].double() for name, value in networks.layout.split(learner.chunk.mean).items()}
    head = learner.head
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    units = (x.double() @ weights["0.weight"].T + weights["0.bias"]).relu()
    features = torch.cat([units, torch.ones(7, 1, dtype=torch.float64)], dim=1)
    assert torch.allclose(head.features(x[None])[0].double(), features, atol=1e-5)
    last = torch.cat([weights["2.weight"], weights["2.bias"][:, None]], dim=1)
    center = last if method == "last-layer" else head.arms.mean()[0]
    assert torch.allclose(head.outputs(x[None], None, [0])[0].double(), features @ center.T, atol=1e-4)


@pytest.mark.parametrize("likelihood", [ba.Bernoulli(), ba.Gaussian(9.0)])
def test_the_laplace_approximation_has_the_curvature_of_the_likelihood(likelihood, problem):
    x, means = problem
    actions, clicks = np.arange(200) % 4, (means > 0).astype(float)
    options = {**NETWORK, "likelihood": likelihood, "prior_precision": 2.0, "lr": 0.02}
    agent = Agent(bandits.Neural("last-layer", **options), num_features=3, actions=4)
    agent.partial_fit(actions, clicks[np.arange(200), actions], x)
    head = agent._agents.learner.head
    features = head.features(torch.from_numpy(x).float()[None])[0].double()
    outputs = features @ head._center()[0].T
    draws = torch.stack([head.arms.sample(number, [3], center=head._center())[0] for number in range(4000)])
    for action in range(4):
        own, output = features[actions == action], outputs[actions == action, action]
        curvature = output.sigmoid() * (1.0 - output.sigmoid()) if isinstance(likelihood, ba.Bernoulli) else 9.0
        precision = (own.T * curvature) @ own + 2.0 * torch.eye(own.shape[1], dtype=torch.float64)
        expected = torch.linalg.inv(precision)
        ratio = draws[:, action].var(0) / expected.diagonal()
        assert ratio == pytest.approx(torch.ones_like(ratio), abs=0.12)  # five standard errors


def test_the_regressions_predict_rewards_whatever_the_likelihood():
    rng = np.random.default_rng(0)
    actions = np.arange(400) % 2
    clicks = (rng.random(400) < np.where(actions == 0, 0.95, 0.05)).astype(float)
    belief = bandits.Neural("neural-linear", likelihood=ba.Bernoulli(), hidden=(20,), steps=20, prior_precision=1.0)
    x = rng.normal(size=(400, 2))
    scores = Agent(belief, num_features=2, actions=2).partial_fit(actions, clicks, x).scores(x)
    assert scores.mean(0) == pytest.approx(torch.tensor([0.95, 0.05]), abs=0.05)


def test_rewards_are_standardised_and_scores_are_not(problem):
    x, means = problem
    one, other = (Agent(belief("vadam"), num_features=3, actions=4) for _ in range(2))
    actions = np.arange(40) % 4
    rewards = means[np.arange(40), actions]
    one.partial_fit(actions, rewards, x[:40])
    other.partial_fit(actions, 100.0 * rewards + 7.0, x[:40])
    for seed in (None, 2):
        expected = 100.0 * one.scores(x[:10], seed=seed) + 7.0
        assert torch.allclose(other.scores(x[:10], seed=seed), expected, rtol=1e-2, atol=1.0)


@pytest.mark.parametrize("curvature", [None, "empirical_fisher"])
def test_only_the_chosen_outputs_are_trained(curvature):
    """Against autograd, data point by data point."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)).double() for _ in range(2)]
    losses = ChosenRewards(models, [ba.Gaussian(2.0).double()] * 2, None)
    x, actions, rewards = torch.randn(2, 6, 3).double(), torch.randint(4, (2, 6)), torch.randn(2, 6).double()
    theta = torch.stack([torch.cat([p.detach().flatten() for p in model.parameters()]) for model in models])[:, None]
    found = losses.gradients(theta, Batch(x, torch.stack([actions.double(), rewards], 2), None), curvature)
    for member, model in enumerate(models):
        grads = []
        for row in range(6):
            output = model(x[member, row])[actions[member, row]]
            density = -0.5 * 2.0 * (rewards[member, row] - output) ** 2 + 0.5 * math.log(2.0 / (2.0 * math.pi))
            own = torch.autograd.grad(-density, list(model.parameters()))
            grads.append(torch.cat([grad.flatten() for grad in own]))
        each = torch.stack(grads)
        assert torch.allclose(found.grads[member, 0], each.mean(0), atol=1e-12)
        if curvature is not None:
            assert torch.allclose(found.curvature[member, 0], each.square().mean(0), atol=1e-12)
    clipped = ChosenRewards(models, [ba.Gaussian(2.0).double()] * 2, 1e-3).gradients(
        theta, Batch(x, torch.stack([actions.double(), rewards], 2), None)
    )
    assert torch.allclose(torch.linalg.vector_norm(clipped.grads, dim=2), torch.tensor(1e-3).double())
    unit = torch.nn.functional.normalize
    assert torch.allclose(unit(clipped.grads, dim=2), unit(found.grads, dim=2))


def test_other_networks_train_as_perceptrons_do(problem):
    """By autograd in place of the closed form; the layers are the same."""

    class Wrapped(nn.Module):
        def __init__(self, d, k):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(d, 6), nn.ReLU(), nn.Linear(6, k))

        def forward(self, x):
            return self.layers(x)

    made = (lambda d, k: Wrapped(d, k).layers, Wrapped)
    x = problem[0]
    scores = []
    for model in made:
        agent = Agent(
            bandits.Neural("vogn", model=model, steps=3, batch_size=16, train_every=10), num_features=3, actions=4
        )
        agent.partial_fit(np.arange(20) % 4, x[:20, 0], x[:20])
        scores.append(agent.scores(x[:8]))
    assert torch.allclose(*scores, rtol=1e-3, atol=1e-4)


def fit(model, contexts, actions, rewards):
    """Twenty steps of Adam, and Badam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(20):
        optimizer.zero_grad()
        chosen = model(contexts).gather(1, actions[:, None])[:, 0]
        (chosen - rewards).square().mean().backward()
        optimizer.step()
    return ba.badam(optimizer, model, num_data=10 * len(contexts), prior_precision=1.0)


def network(num_features, num_actions):
    return nn.Sequential(nn.Linear(num_features, 8), nn.ReLU(), nn.Linear(8, num_actions))


def test_any_posterior_of_a_function_of_yours(problem, tmp_path):
    own = bandits.Refit(network, fit, train_every=20)
    agent = Agent(own, num_features=3, actions=4)
    play(agent, problem, 60)
    x = problem[0][:6]
    assert not torch.equal(agent.scores(x, seed=1), agent.scores(x, seed=2))
    learner = agent._agents.learner
    posterior, model = learner.posteriors[0], learner.models[0]
    with posterior.applied(model, sample=0, seed=3):
        expected = model(torch.from_numpy(x).float()).detach()
    assert torch.equal(agent.scores(x, seed=3), expected)
    agent.save(tmp_path / "agent")
    loaded = Agent.load(tmp_path / "agent", belief=own)
    assert torch.equal(loaded.scores(x, seed=3), expected)
    dropout = bandits.Refit(
        lambda d, k: nn.Sequential(nn.Linear(d, 8), nn.Dropout(0.5), nn.Linear(8, k)),
        lambda model, x, a, r: ba.MCDropout(model),
        train_every=5,
    )
    masked = Agent(dropout, num_features=3, actions=4)
    play(masked, problem, 6)
    assert not torch.equal(masked.scores(x, seed=1), masked.scores(x, seed=2))
    with pytest.raises(TypeError, match="fit must return a Posterior for the agent to be saved, got MCDropout"):
        masked.save(tmp_path / "masked")
    wrong = Agent(bandits.Refit(network, lambda *_: None, train_every=1), num_features=3, actions=4)
    with pytest.raises(TypeError, match="fit must return a posterior, got NoneType"):
        wrong.partial_fit([0], [1.0], [x[0]])
