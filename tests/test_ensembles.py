"""Ensembles that are trained in one call: each member is what a training of its own gives, and what is refused."""

import functools
import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.population import order

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
Y = (X.sum(1) > 0).long()


def perceptron():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def normalised():
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def ensemble(make=perceptron, data=(X, Y), **options):
    options = {"likelihood": ba.Categorical(), "epochs": 3, "batch_size": 16, "members": 3, **options}
    return ba.train_ensemble(make, data, progress=False, **options)


def alone(seed, make_optimizer):
    """A member by a loop that is written out."""
    torch.manual_seed(seed)
    model = perceptron()
    optimizer = make_optimizer(model, seed)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / 9)))
    model.train()
    if hasattr(optimizer, "train"):
        optimizer.train()
    for epoch in range(3):
        rows = torch.from_numpy(order(40, seed=seed, epoch=epoch))
        for start in range(0, 40, 16):
            batch = rows[start : start + 16]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(X[batch]), Y[batch]).backward()
            optimizer.step()
            schedule.step()
    if hasattr(optimizer, "eval"):
        optimizer.eval()
        return optimizer.posterior(model)
    return ba.DiagonalGaussian.point_mass(model)


def same(ours, theirs):
    for name, mean in theirs.mean.items():
        torch.testing.assert_close(ours.mean[name], mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.variance[name], theirs.variance[name], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("method", ["bayesadam", "ivon", "vogn", "adam"])
def test_members_are_trained_alone(method):
    def optimizer(model, seed):
        if method == "adam":
            return torch.optim.Adam(model.parameters(), lr=0.01)
        own = {"bayesadam": {"batch_size": 16, "total_steps": 9}, "vogn": {"curvature": ba.PerExampleSquares(model)}}
        plan = {"num_data": 40, "seed": seed, "lr": 0.01, **own.get(method, {})}
        return ba.optim.OPTIMIZERS[method](model.named_parameters(), **plan)

    q = ensemble(method=method, lr=0.01, seed=4, together=method != "vogn")
    assert isinstance(q, ba.Mixture)
    assert len(q.components) == 3
    for number, member in enumerate(q.components):
        same(member, alone(4 + number, optimizer))
    if method == "adam":
        assert not any(v.any() for v in q.components[0].variance.values())


def test_a_member_does_not_depend_on_the_others_or_on_the_generator():
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, other = ensemble(seed=1).components[1], ensemble(seed=2, members=1).components[0]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one.mean[name], other.mean[name]) for name in one.mean)
    assert all(torch.equal(one.variance[name], other.variance[name]) for name in one.mean)


@pytest.mark.parametrize(
    ("width", "trained"), [(8, "together"), (2_000, "in turn: on a CPU such networks are faster so")]
)
def test_large_networks_are_trained_in_turn_on_a_cpu(width, trained):
    def make():
        return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    assert ensemble(make, epochs=1, members=2).hyperparameters["trained"] == trained


@pytest.mark.parametrize("together", [True, False])
def test_a_learned_noise_level_is_that_of_the_residuals_of_all(together):
    likelihood = ba.Gaussian(1.0, learned=True)
    y = X @ torch.ones(3, 2) + 0.3 * torch.randn(40, 2, generator=torch.Generator().manual_seed(1))
    plan = {"epochs": 800, "batch_size": 40, "method": "adam", "lr": 0.05}
    q = ensemble(functools.partial(nn.Linear, 3, 2), (X, y), likelihood=likelihood, together=together, **plan)
    residuals = [X @ member.mean["weight"].T + member.mean["bias"] - y for member in q.components]
    variance = torch.stack(residuals).square().mean()
    torch.testing.assert_close(likelihood.noise_precision.detach(), 1 / variance, rtol=0.01, atol=0.0)


def test_the_noise_level_goes_on_from_a_checkpoint(tmp_path):
    """An interruption leaves the level where a training without one has it."""
    y, levels = X @ torch.ones(3, 2), [ba.Gaussian(1.0, learned=True) for _ in range(2)]
    plan = {"data": (X, y), "epochs": 3, "checkpoint": tmp_path / "training.pt", "members": 2}

    class Stopped(Exception):
        pass

    def stop(module, inputs, output):
        stop.passes += 1
        if stop.passes > 7:
            raise Stopped

    def interrupted():
        model = perceptron()
        model.register_forward_hook(stop)
        return model

    ensemble(likelihood=levels[0], **{**plan, "checkpoint": None})
    stop.passes = 0
    with pytest.raises(Stopped):
        ensemble(interrupted, likelihood=levels[1], together=False, **plan)
    levels[1] = ba.Gaussian(5.0, learned=True)
    ensemble(likelihood=levels[1], together=False, **plan)
    assert levels[1].log_noise_precision.item() == pytest.approx(levels[0].log_noise_precision.item(), rel=1e-3)


def test_tokens_of_a_sequence_count_as_data_points():
    def tagger():
        return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 2))

    sequences, tags = X[..., None], (X > 0).long()
    tags[:, 2] = -100
    likelihood = ba.Categorical()
    told = {"options": {"num_data": 80, "batch_size": 32}, "loss": likelihood.nll, "likelihood": None}
    ours = ensemble(tagger, (sequences, tags), likelihood=likelihood)
    for member, same_member in zip(
        ours.components, ensemble(tagger, (sequences, tags), **told).components, strict=True
    ):
        same(member, same_member)


@pytest.mark.parametrize("method", ["ivon", "adam"])
def test_batch_normalisation_is_a_part_of_each_member(method, tmp_path):
    """Predictions of the mixture are the average of those of the members, each with its own statistics."""
    q = ensemble(normalised, method=method, lr=0.05, epochs=20)
    q.save(tmp_path / "q.safetensors")
    pred = ba.predict(normalised(), ba.load_posterior(tmp_path / "q.safetensors"), X, likelihood=ba.Categorical())
    if method == "adam":
        models = [normalised() for _ in q.components]
        for model, member in zip(models, q.components, strict=True):
            model.load_state_dict({**member.mean, **member.buffers})
        exact = torch.stack([model.eval()(X).softmax(-1) for model in models]).mean(0).detach()
        pred = ba.predict(normalised(), q, X, likelihood=ba.Categorical(), mc_samples=3)
        torch.testing.assert_close(pred.class_probs.float(), exact, rtol=1e-4, atol=1e-5)
    assert ba.metrics.accuracy(pred.class_probs, Y) > 0.7


def test_it_learns_and_tells_how_it_was_made():
    q = ensemble(epochs=30, lr=0.05, options={"prior_precision": 2.0})
    told = {"method": "bayesadam", "epochs": 30, "batch_size": 16, "lr": 0.05, "seed": 0, "prior_precision": 2.0}
    assert {name: q.hyperparameters[name] for name in told} == told
    pred = ba.predict(perceptron(), q, X, likelihood=ba.Categorical(), mc_samples=30)
    assert ba.metrics.accuracy(pred.class_probs, Y) > 0.9
    assert all((v > 0).all() for v in q.components[0].variance.values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "^epochs must be a whole number of at least 1, got 0$"),
        ({"method": "sgd"}, r"^method must be one of \('bayesadam', .*'adam'\), got 'sgd'$"),
        ({"lr": -0.1}, "^lr must be a positive, finite number, got -0.1$"),
        ({"likelihood": nn.CrossEntropyLoss()}, "^likelihood must be"),
        ({"make": perceptron()}, "^make_model must be a function that returns a network, got Sequential$"),
        ({"make": dict}, "^make_model must be a function that returns a network, got one for dict$"),
        ({"make": functools.cache(perceptron)}, "^make_model must return new parameters at each call, got those of"),
        ({"data": X}, r"^data must be a pair of tensors \(x, y\), got Tensor$"),
        ({"data": (X, Y[:-1])}, "^data must be as many inputs as targets, got 40 and 39$"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ValueError, match=message):
        ensemble(**arguments)


def test_more_refusals():
    with pytest.raises(TypeError, match="momentum"):
        ensemble(options={"momentum": 0.9})
    with pytest.raises(FloatingPointError, match="^the loss of member 0 must be finite, got nan$"):
        ensemble(data=(X * math.nan, Y))
