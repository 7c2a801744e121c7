"""Objectives that users write: trained as by a loop of one's own, and refused in full."""

import copy
import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import population
from bayesadam.population.batches import Batch
from bayesadam.population.mapped import MappedObjective
from bayesadam.sklearn.moment_objective import MomentObjective
from population.conftest import (
    BATCH,
    F32,
    F64,
    RAGGED,
    ROUNDING,
    TOLERANCE,
    assert_same,
    draw,
    exactly,
    mlp,
    models_of,
    noise_of,
    regression,
)


class Lasso(population.Objective):
    """Fourth powers of the errors, and the absolute values of all weights: what no likelihood is."""

    def __init__(self, strength):
        super().__init__()
        self.strength = strength

    def losses(self, model, x, y):
        return (model(x) - y).pow(4).sum(1)

    def penalty(self, model):
        return self.strength * sum(weight.abs().sum() for weight in model.parameters())


class Negative(population.Objective):
    """A likelihood as an objective."""

    def __init__(self, likelihood):
        super().__init__()
        self.likelihood = copy.deepcopy(likelihood)

    def losses(self, model, x, y):
        return -self.likelihood.log_density(model(x), y)


class Distilled(population.Objective):
    """Outputs like those of a frozen teacher, scaled by a buffer that every member has its own of."""

    def __init__(self, teacher, scale):
        super().__init__()
        self.teacher = copy.deepcopy(teacher).requires_grad_(False)
        self.register_buffer("scale", torch.tensor(scale, dtype=F64))

    def losses(self, model, x, y):
        return self.scale * (model(x) - self.teacher(x)).square().mean(1)


def train(models, data, objective, **options):
    options = {"method": "vadam", "batch_size": BATCH, "lr": 0.02, "epochs": 4, "progress": False, **options}
    return population.train(models, data, objective=objective, **options)


class Shared(nn.Module):
    """One layer, called twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.again = self.first
        self.last = nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.again(self.first(x).tanh()))


class TestAsLoops:
    @pytest.mark.parametrize("make", [mlp, lambda: Shared().to(F64)])
    @pytest.mark.parametrize("batch_size", [BATCH, 20])
    def test_by_adam(self, make, batch_size):
        data, models = regression(), models_of(make)
        nets = train(models, data, Lasso(0.05), method="adam", batch_size=batch_size)
        for member, (model, (x, y)) in enumerate(zip(models, data, strict=True)):
            model, losses = copy.deepcopy(model), []
            opt = torch.optim.Adam(model.parameters(), lr=0.02)
            for epoch in range(4):
                order = torch.from_numpy(population.order(len(x), seed=member, epoch=epoch))
                for rows in order.split(batch_size):
                    opt.zero_grad()
                    loss = (model(x[rows]) - y[rows]).pow(4).sum(1).mean()
                    loss = loss + 0.05 * sum(weight.abs().sum() for weight in model.parameters())
                    loss.backward()
                    opt.step()
                    losses.append(loss.item())
            for name, weight in model.named_parameters():
                torch.testing.assert_close(nets.mean[name][member], weight.detach(), **TOLERANCE[F64])
            steps = len(losses) // 4
            assert nets.history["loss"][member, -1] == pytest.approx(sum(losses[-steps:]) / steps, rel=1e-10)

    @pytest.mark.parametrize("method", ["vadam", "vogn", "von", "bbb"])
    @pytest.mark.parametrize("learned", [False, True])
    def test_a_likelihood_as_an_objective(self, method, learned):
        """Ragged, in several samples, with noise levels that differ and may be learned; every kind of curvature."""
        data, models = regression(), models_of()
        noise = [noise_of(2.0 + member, 5.0, learned=learned) for member in range(4)]
        options = {"method": method, "mc_samples": 3, "lr": 0.01, "batch_size": BATCH, "epochs": 3, "progress": False}
        expected = population.train(models, data, likelihood=noise, **options)
        found = train(models, data, [Negative(own) for own in noise], **options)
        assert found.likelihoods == expected.objectives == []
        for ours, theirs in zip(found.objectives, expected.likelihoods, strict=True):
            torch.testing.assert_close(ours.likelihood.state_dict(), theirs.state_dict(), **TOLERANCE[F64])
        torch.testing.assert_close(found.mean, expected.mean, **TOLERANCE[F64])
        torch.testing.assert_close(found.variance, expected.variance, **TOLERANCE[F64])
        torch.testing.assert_close(found.history["loss"], expected.history["loss"], **TOLERANCE[F64])

    def test_frozen_modules_and_buffers_of_every_member(self):
        data, models, teacher = regression(), models_of(), mlp()
        nets = train(models, data, [Distilled(teacher, scale) for scale in (1.0, 2.0, 1.0, 3.0)], chunk=3)
        for member, scale in enumerate((1.0, 2.0, 1.0, 3.0)):
            alone = train([models[member]], data[member], Distilled(teacher, scale), seed=member)
            for name, value in alone.mean.items():
                torch.testing.assert_close(nets.mean[name][member], value[0], **TOLERANCE[F64])
        assert nets.objectives[3].scale == 3.0

    def test_of_networks_that_give_moments(self):
        """FAWN in a population is FAWN alone: sizes differ, and so does the divergence's share."""
        data = [(x, y[:, :1]) for x, y in regression()]
        models = models_of(lambda: ba.fawn(mlp(1)).to(F64))
        noise = [noise_of(5.0, learned=True) for _ in RAGGED]
        objectives = [MomentObjective(own, "ropd", len(x)) for own, (x, _) in zip(noise, data, strict=True)]
        nets = train(models, data, objectives, method="adam", batch_size=20)
        for member, (model, (x, y)) in enumerate(zip(models, data, strict=True)):
            model, own = copy.deepcopy(model), copy.deepcopy(noise[member])
            opt = torch.optim.Adam([*model.parameters(), *own.parameters()], lr=0.02)
            for _ in range(4):
                opt.zero_grad()
                model.loss(x, y, likelihood=own, num_data=len(x)).backward()
                opt.step()
            for name, weight in model.named_parameters():
                torch.testing.assert_close(nets.mean[name][member], weight.detach(), **TOLERANCE[F64])
            torch.testing.assert_close(
                nets.objectives[member].likelihood.noise_precision, own.noise_precision, **TOLERANCE[F64]
            )


def test_losses_by_hand():
    """Every member and sample, with minibatches that are filled up."""
    models, x, y = models_of(count=2), draw(2, 5, 3, seed=1), draw(2, 5, 2, seed=2)
    losses, theta = MappedObjective(models, [Lasso(0.1)] * 2), draw(2, 3, 38, seed=3)
    weight = torch.tensor([[0.2] * 5, [0.5, 0.5, 0.0, 0.0, 0.0]], dtype=F64)
    found = losses.losses(theta, Batch(x, y, weight))
    for member in range(2):
        rows = slice(0, 5) if member == 0 else slice(0, 2)
        for sample in range(3):
            model = copy.deepcopy(models[member])
            nn.utils.vector_to_parameters(theta[member, sample], model.parameters())
            expected = (model(x[member, rows]) - y[member, rows]).pow(4).sum(1).mean()
            expected = expected + 0.1 * theta[member, sample].abs().sum()
            torch.testing.assert_close(found[member, sample], expected.detach(), **ROUNDING)


def test_a_checkpoint_is_of_one_objective(tmp_path):
    data, models = regression(), models_of()
    whole = train(models, data, Lasso(0.1), checkpoint=tmp_path)
    assert_same(train(models, data, Lasso(0.1), checkpoint=tmp_path), whole)
    with pytest.raises(ValueError, match="^checkpoint must be a folder of this very run"):
        train(models, data, Lasso(0.2), checkpoint=tmp_path)


class Means(Lasso):
    def losses(self, model, x, y):
        return super().losses(model, x, y).mean()


class Vector(Lasso):
    def penalty(self, model):
        return torch.ones(2)


ONE_LIKELIHOOD = "likelihood must be given, or objective in its place, got "
REFUSALS = {
    "objective must be a population.Objective, got Gaussian()": {"objective": ba.Gaussian(4.0)},
    "objective must be a population.Objective, got 'mse' at position 0": {"objective": ["mse"] * 4},
    "objective must be one or one for each of 4 members, got 3": {"objective": [Lasso(0.1)] * 3},
    "objective must be of one kind for all members, which may differ in parameters and buffers only, got another at "
    "position 2": {"objective": [Lasso(0.1), Lasso(0.1), Lasso(0.2), Lasso(0.1)]},
    "validation must be None with an objective, which makes no predictions, got data": {"validation": regression()},
    ONE_LIKELIHOOD + "None and None": {"objective": None},
    ONE_LIKELIHOOD + "Gaussian() and Lasso(strength=0.1)": {"likelihood": ba.Gaussian(4.0)},
    "losses of the objective must be of shape (2,) for 2 data points, got () for data of member 0": {
        "objective": Means(0.1)
    },
    "penalty of the objective must be one number, got shape (2,)": {"objective": Vector(0.1)},
}


@pytest.mark.parametrize("message", REFUSALS)
def test_refusals(message):
    models = models_of()
    before = [copy.deepcopy(model.state_dict()) for model in models]
    options = {"objective": Lasso(0.1), **REFUSALS[message]}
    with pytest.raises(ValueError, match=exactly(message)):
        train(models, regression(), **options)
    assert all(
        torch.equal(value, old[n]) for m, old in zip(models, before, strict=True) for n, value in m.state_dict().items()
    )


def test_predictions_need_a_likelihood():
    nets = train(models_of(dtype_32, 2), regression((6, 6), dtype=F32), Lasso(0.1))
    with pytest.raises(
        ValueError,
        match=exactly("likelihood must be given to train() to predict, got the objective Lasso(strength=0.1)"),
    ):
        nets.predict(draw(3, 3, dtype=F32))
    assert math.isfinite(nets.history["loss"].sum())


def dtype_32():
    return mlp(dtype=F32)
