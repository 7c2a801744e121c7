"""Objectives that users write: trained as by a loop of one's own, and refused in full."""

import copy

import pytest
import torch

import bayesadam as ba
from bayesadam import population
from population.conftest import TOLERANCE
from population.problems import BATCH, F64, RAGGED, mlp, models_of, noise_of, regression


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


class Moments(population.Objective):
    """FAWN on the predictive density, with a share of the divergence for the size of the member's data."""

    def __init__(self, likelihood, num_data):
        super().__init__()
        self.likelihood = copy.deepcopy(likelihood)
        self.register_buffer("num_data", torch.tensor(num_data, dtype=F64))

    def losses(self, model, x, y):
        output = model(x)
        return -self.likelihood.log_expected_density(output.mean, output.spread(), y, output.covariance)

    def penalty(self, model):
        return model.kl_divergence() / self.num_data


def train(models, data, objective, **options):
    options = {"method": "vadam", "batch_size": BATCH, "lr": 0.02, "epochs": 4, "progress": False, **options}
    return population.train(models, data, objective=objective, **options)


class TestAsLoops:
    @pytest.mark.parametrize("batch_size", [BATCH, 20])
    def test_by_adam(self, batch_size):
        data, models = regression(), models_of()
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

    @pytest.mark.parametrize(
        ("method", "learned"), [("vadam", True), ("vogn", False), ("vogn", True), ("von", True), ("bbb", False)]
    )
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
        objectives = [Moments(own, len(x)) for own, (x, _) in zip(noise, data, strict=True)]
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
