"""Every method takes every likelihood: a user's own that defines a density alone, and those that the library ships."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import bayesadam as ba
from bayesadam.moments import expected_log_likelihood
from bayesadam.optim import OPTIMIZERS
from bayesadam.posthoc import LaplaceApproximation, laplace, tune_laplace
from likelihoods import models
from likelihoods.models import F64, ByDistribution, ByElements, Exponential, draw, waiting_times
from population.conftest import TOLERANCE, all_alone, assert_members_are, train

OWN = [Exponential, ByElements, ByDistribution]
SHIPPED = {
    "poisson": lambda **_: ba.likelihoods.Poisson(),
    "negative_binomial": lambda value=0.4, **k: ba.likelihoods.NegativeBinomial(value, **k).double(),
    "student_t": lambda value=0.8, **k: ba.likelihoods.StudentT(4.0, scale=value, **k).double(),
    "log_normal": lambda value=2.0, **k: ba.likelihoods.LogNormal(value, **k).double(),
    "gamma": lambda value=1.5, **k: ba.likelihoods.Gamma(value, **k).double(),
}
EVERY = {**{make.__name__: lambda make=make, **_: make() for make in OWN}, **SHIPPED}


def targets(name, y):
    """Waiting times; whole ones for counts."""
    return y.ceil() if name in ("poisson", "negative_binomial") else y


def problem(name="", count=40, seed=0):
    x, y = waiting_times(count, seed=seed)
    return x, targets(name, y)


def mlp(outputs=1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def posterior_of(model, std=0.3):
    mean = {name: p.detach().clone() for name, p in model.named_parameters()}
    return ba.DiagonalGaussian(mean, {name: torch.full_like(p, std**2) for name, p in mean.items()})


def close(a, b, **tolerances):
    torch.testing.assert_close(a, b, **(tolerances or {"rtol": 1e-10, "atol": 1e-10}))


class TestTraining:
    @pytest.mark.parametrize("name", EVERY)
    def test_a_population_is_single_training(self, name):
        """With Vadam, whose gradients are in closed form where the score is."""
        data = [problem(name, count, seed=count) for count in (13, 7, 20)]
        nets = [mlp(seed=seed) for seed in range(3)]
        for learned in (False, True):
            options = {"epochs": 3, "mc_samples": 2}
            likelihood = EVERY[name](learned=learned)
            fits = all_alone(nets, data, likelihood, lr=0.02, **options)
            assert_members_are(train(nets, data, likelihood, **options), fits, TOLERANCE[torch.float64])

    @pytest.mark.parametrize("name", [name for name in SHIPPED if name != "poisson"])
    def test_members_with_different_parameters(self, name):
        data = [problem(name, count, seed=count) for count in (13, 7, 20)]
        nets = [mlp(seed=seed) for seed in range(3)]
        likelihoods = [SHIPPED[name](value) for value in (0.5, 1.0, 2.0)]
        fits = all_alone(nets, data, likelihoods, epochs=3, lr=0.02)
        assert_members_are(train(nets, data, likelihoods, epochs=3), fits, TOLERANCE[torch.float64])

    def test_members_with_one_parameter_per_output(self):
        data = [(x, y.repeat(1, 2).ceil()) for x, y in (problem(count=13), problem(count=7))]
        nets = [mlp(2, seed=seed) for seed in range(2)]
        likelihoods = [ba.likelihoods.NegativeBinomial(values).double() for values in ([0.5, 2.0], [1.0, 0.1])]
        fits = all_alone(nets, data, likelihoods, epochs=3, lr=0.02)
        assert_members_are(train(nets, data, likelihoods, epochs=3), fits, TOLERANCE[torch.float64])

    def test_members_with_a_score_that_must_be_mapped(self):
        class Scaled(ba.likelihoods.Likelihood):
            def __init__(self, scale):
                super().__init__()
                self.register_buffer("scale", torch.tensor(scale, **F64))

            def log_density(self, output, target):
                return (output - target * output.exp()).sum(-1) * self.scale

            def score(self, output, target):
                return (1 - target * output.exp()) * self.scale

        data = [problem(count=count) for count in (13, 7)]
        nets, likelihoods = [mlp(seed=seed) for seed in range(2)], [Scaled(1.0), Scaled(0.3)]
        fits = all_alone(nets, data, likelihoods, epochs=2, lr=0.02)
        assert_members_are(train(nets, data, likelihoods, epochs=2), fits, TOLERANCE[torch.float64])

    @pytest.mark.parametrize("method", ["adam", *OPTIMIZERS])
    @pytest.mark.parametrize("name", ["Exponential", "poisson"])
    def test_every_optimiser(self, name, method):
        options = {"hessian": "exact"} if method in ("von", "van", "ngvi", "natural_von") else {}
        data, nets = [problem(name, 7)], [mlp()]
        fits = all_alone(nets, data, EVERY[name](), method=method, epochs=2, lr=0.01, **options)
        assert all(map(math.isfinite, fits[0].losses))
        together = train(nets, data, EVERY[name](), method=method, epochs=2, lr=0.01, **options)
        assert_members_are(together, fits, TOLERANCE[torch.float64])

    @pytest.mark.parametrize("make", OWN)
    def test_bayes_by_backprop(self, make):
        x, y = problem()
        net = ba.variational(mlp(), prior=1.0)
        optimizer = torch.optim.Adam(net.parameters(), lr=0.03)
        torch.manual_seed(0)
        losses = []
        for _ in range(150):
            optimizer.zero_grad()
            loss = net.loss(x, y, likelihood=make(), num_data=len(x))
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert np.mean(losses[-20:]) < np.mean(losses[:20]) - 0.1
        value = ba.elbo(mlp(), posterior_of(mlp()), x, y, likelihood=make(), prior=1.0)
        assert value.isfinite()

    @pytest.mark.parametrize("objective", ["ropd", "vi"])
    @pytest.mark.parametrize("name", EVERY)
    def test_fawn(self, name, objective):
        x, y = problem(name)
        net = ba.fawn(mlp())
        loss = net.loss(x, y, likelihood=EVERY[name](), num_data=40, objective=objective)
        loss.backward()
        assert all(p.grad.isfinite().all() and p.grad.any() for p in net.parameters())

    def test_fawn_of_poisson_is_the_expectation(self):
        x, y = problem("poisson")
        net = ba.fawn(mlp())
        with torch.no_grad():
            found = net(x)
            values = expected_log_likelihood(ba.likelihoods.Poisson(), found, y)
        generator = torch.Generator().manual_seed(0)
        z = found.mean + found.spread().sqrt() * torch.randn(20_000, 40, 1, generator=generator, **F64)
        draws = ba.likelihoods.Poisson().log_prob(z, y)
        assert ((values - draws.mean(0)) / (draws.std(0) / 20_000**0.5)).abs().max() < 4.5


def slow_curvature(model, x, y, likelihood):
    """Sum over the examples of ``J' H J``, the Hessian at the targets by autograd."""
    parameters = list(model.parameters())
    total = 0
    for n in range(len(x)):
        output = model(x[n : n + 1])
        hessian = torch.func.hessian(lambda o: -likelihood.log_density(o, y[n : n + 1])[0])(output.detach())  # noqa: B023
        hessian = hessian.view(output.numel(), output.numel())
        rows = [torch.autograd.grad(o, parameters, retain_graph=True) for o in output.flatten()]
        jacobian = torch.stack([torch.cat([g.flatten() for g in row]) for row in rows])
        total = total + jacobian.T @ hessian @ jacobian
    return total


class TestLaplace:
    @pytest.mark.parametrize("make", [*OWN, ba.likelihoods.Poisson, ba.likelihoods.LogNormal])
    @pytest.mark.parametrize("outputs", [1, 2])
    def test_is_the_slow_loop(self, make, outputs):
        """Of likelihoods whose second derivative at the targets is what it is expected to be, or has no other."""
        likelihood, model = make().double(), mlp(outputs)
        x, y = problem(count=9)
        y = targets(make.__name__.lower(), y).repeat(1, outputs)
        expected = slow_curvature(model, x, y, likelihood)
        whole = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="full")
        close(whole.curvature, expected)
        diagonal = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="diagonal").curvature
        close(torch.cat([value.flatten() for value in diagonal.values()]), expected.diagonal())
        last = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="last_layer").curvature
        close(last, expected[-len(last) :, -len(last) :])

    @pytest.mark.parametrize("curvature", ["ggn", "empirical_fisher"])
    @pytest.mark.parametrize("outputs", [1, 2])
    @pytest.mark.parametrize("make", [Exponential, ByElements, ba.likelihoods.Poisson])
    def test_sequences_of_data_points(self, make, outputs, curvature):
        """Every position is a data point, and the last layer's curvature is a block of the whole."""
        x, y = draw(6, 4, 3), draw(6, 4, outputs, seed=1).exp().ceil()
        model, options = mlp(outputs), {"likelihood": make(), "curvature": curvature}
        whole = LaplaceApproximation(model, (x, y), structure="full", **options)
        assert whole.num_data == 24
        flat = LaplaceApproximation(model, (x.flatten(0, 1), y.flatten(0, 1)), structure="full", **options)
        close(whole.curvature, flat.curvature)
        last = LaplaceApproximation(model, (x, y), structure="last_layer", **options)
        size = len(last.curvature)
        close(last.curvature, whole.curvature[-size:, -size:])

    @pytest.mark.parametrize("name", EVERY)
    def test_fisher_is_the_squares_of_the_scores(self, name):
        x, y = problem(name, 9)
        model, likelihood = mlp(), EVERY[name]()
        parameters = list(model.parameters())
        total = 0
        for n in range(9):
            density = likelihood.log_prob(model(x[n : n + 1]), y[n : n + 1]).sum()
            row = torch.cat([g.flatten() for g in torch.autograd.grad(density, parameters)])
            total = total + torch.outer(row, row)
        close(
            LaplaceApproximation(
                model, (x, y), likelihood=likelihood, structure="full", curvature="empirical_fisher"
            ).curvature,
            total,
        )

    @pytest.mark.parametrize("structure", ["full", "diagonal", "last_layer"])
    def test_a_density_of_straight_pieces(self, structure):
        """There is no second derivative, but there are scores."""
        x, y = problem()
        message = "^likelihood must define fisher_factor, as its log density has no second derivative, got Laplace$"
        with pytest.raises(ba.likelihoods.MissingCapabilityError, match=message):
            laplace(mlp(), (x, y), likelihood=models.Laplace(), structure=structure)
        options = {"likelihood": Exponential(), "structure": structure, "batch_size": 1}
        q = ba.posthoc.LaplaceApproximation(mlp(), (x, y), **options).posterior(1.0)
        y[5] = 0.0  # a batch without curvature among others
        other = ba.posthoc.LaplaceApproximation(mlp(), (x, y), **options).posterior(1.0)
        assert sum(value.sum() for value in other.variance.values()) > sum(value.sum() for value in q.variance.values())
        q = laplace(mlp(), (x, y), likelihood=models.Laplace(), structure=structure, curvature="empirical_fisher")
        assert all((value <= 1.0).all() for value in q.variance.values())

    def test_posterior_of_poisson_regression_is_that_of_iteratively_reweighted_least_squares(self):
        x, y = problem("poisson", 60)
        prior_precision = 0.7
        design, counts = np.column_stack([x.numpy(), np.ones(60)]), y.numpy()[:, 0]
        weights = np.zeros(4)
        for _ in range(50):
            rate = np.exp(design @ weights)
            hessian = design.T @ (design * rate[:, None]) + prior_precision * np.eye(4)
            working = rate * (design @ weights) + counts - rate
            weights = np.linalg.solve(hessian, design.T @ working)
        gradient = design.T @ (counts - np.exp(design @ weights)) - prior_precision * weights
        assert np.abs(gradient).max() < 1e-10

        model, likelihood = nn.Linear(3, 1).double(), ba.likelihoods.Poisson()
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=500, tolerance_grad=1e-13, tolerance_change=0)

        def closure():
            optimizer.zero_grad()
            penalty = sum(p.square().sum() for p in model.parameters())
            loss = likelihood.nll(model(x), y) + 0.5 * prior_precision * penalty / 60
            loss.backward()
            return loss

        optimizer.step(closure)
        q = laplace(model, (x, y), likelihood=likelihood, structure="full", prior_precision=prior_precision)
        found = torch.cat([q.mean["weight"].flatten(), q.mean["bias"]])
        close(found, torch.from_numpy(weights), rtol=1e-7, atol=1e-7)
        covariance = torch.from_numpy(np.linalg.inv(hessian))
        close(q.covariance, covariance, rtol=1e-6, atol=1e-9)

    def test_tuning(self):
        x, y = problem()
        fitted = LaplaceApproximation(mlp(), (x, y), likelihood=Exponential())
        found = tune_laplace(fitted.posterior, mlp(), (x, y), likelihood=Exponential(), prior_precision=[0.1, 10.0])
        assert math.isfinite(found.score)

    def test_badam(self):
        x, y = problem()
        model = mlp()
        adam = torch.optim.Adam(model.parameters())
        for _ in range(3):
            adam.zero_grad()
            Exponential()(model(x), y).backward()
            adam.step()
        assert ba.badam(adam, model, num_data=40).num_weights == 21


class TestPrediction:
    @pytest.mark.parametrize("name", EVERY)
    @pytest.mark.parametrize("method", ["monte_carlo", "mean", "linearized", "moments"])
    def test_every_method(self, name, method):
        x, y = problem(name)
        pred = ba.predict(mlp(), posterior_of(mlp()), x, likelihood=EVERY[name](), method=method, mc_samples=7)
        assert type(pred) is ba.predictive.MixturePredictive
        assert len(pred.outputs) == (1 if method == "mean" else 7)
        assert pred.log_prob(y).isfinite().all()
        if name in SHIPPED:
            assert pred.variance.isfinite().all()
            low, high = pred.quantile([0.05, 0.95])
            assert (low < high).all()
            assert pred.sample(3).shape == (3, 40, 1)

    def test_monte_carlo_is_a_mixture_over_samples(self):
        x, y = problem("poisson")
        model, q = mlp(), posterior_of(mlp())
        pred = ba.predict(model, q, x, likelihood=ba.likelihoods.Poisson(), mc_samples=5, seed=3)
        rates = []
        for number in range(5):
            with q.applied(model, sample=number, seed=3), torch.no_grad():
                rates.append(model(x).exp())
        rates = torch.stack(rates)
        close(pred.mean, rates.mean(0))
        close(pred.epistemic, rates.var(0))
        close(pred.aleatoric, rates.mean(0))
        densities = torch.distributions.Poisson(rates).log_prob(y).sum(-1)
        close(pred.log_prob(y), densities.logsumexp(0) - math.log(5))
        close(pred.joint_log_likelihood(y), densities.sum(1).logsumexp(0) - math.log(5))

    @pytest.mark.parametrize("method", ["linearized", "moments"])
    def test_gaussian_outputs_of_a_linear_model(self, method):
        """Both know their outputs' mean and variance exactly: rates are log-normal."""
        x, _ = problem("poisson", 6)
        model = nn.Linear(3, 1).double()
        q, draws = posterior_of(model, 0.2), 40_000
        likelihood = ba.likelihoods.Poisson()
        pred = ba.predict(model, q, x, likelihood=likelihood, method=method, mc_samples=draws, seed=1)
        with torch.no_grad():
            mean, variance = model(x), 0.04 * (x.square().sum(1, keepdim=True) + 1)
        expected = (mean + 0.5 * variance).exp()
        spread = expected.square() * torch.expm1(variance)
        assert ((pred.mean - expected) / (spread / draws).sqrt()).abs().max() < 4
        assert ((pred.epistemic / spread - 1) * (draws / 20) ** 0.5).abs().max() < 4
        with pytest.raises(ValueError, match="^method must be 'monte_carlo' for the joint log-likelihood"):
            pred.joint_log_likelihood(torch.ones(6, 1))

    def test_correlated_outputs_are_drawn_together(self):
        """A dense posterior of a linear model that makes the two outputs equal."""
        model = nn.Linear(1, 2, bias=False).double()
        covariance = torch.ones(2, 2, **F64) + 1e-9 * torch.eye(2, **F64)
        given = MultivariateNormal(torch.zeros(2, **F64), covariance)
        q = ba.DenseGaussian.from_precision({"weight": torch.zeros(2, 1, **F64)}, given.precision_matrix)
        pred = ba.predict(model, q, torch.ones(3, 1, **F64), likelihood=ByElements(), method="linearized")
        assert (pred.outputs[..., 0] - pred.outputs[..., 1]).abs().max() < 1e-3
        assert pred.outputs.std() > 0.5

    def test_a_population_predicts_as_its_members(self):
        data = [problem("poisson", count) for count in (13, 7)]
        nets = [mlp(seed=seed) for seed in range(2)]
        together = train(nets, data, ba.likelihoods.Poisson(), epochs=2)
        x, y = problem("poisson")
        for net, q, pred in zip(nets, together.posteriors, together.predict(x, mc_samples=4), strict=True):
            alone = ba.predict(net, q, x, likelihood=ba.likelihoods.Poisson(), mc_samples=4)
            close(pred.log_prob(y), alone.log_prob(y))
            close(pred.variance, alone.variance)

    def test_early_stopping_of_a_population(self):
        data = [problem(count=count) for count in (13, 7)]
        nets = [mlp(seed=seed) for seed in range(2)]
        found = train(nets, data, Exponential(), epochs=3, validation=data, patience=1)
        assert found.history["validation"].isfinite().any()

    @pytest.mark.parametrize("link", ["monte_carlo", "probit"])
    def test_links_are_for_classes(self, link):
        with pytest.raises(ValueError, match=r"^link must be given for a method in .* and classification only, got"):
            ba.predict(mlp(), posterior_of(mlp()), draw(4, 3), likelihood=Exponential(), method="linearized", link=link)


class TestPruning:
    def test_of_a_density_alone(self):
        x, y = problem()
        q = posterior_of(mlp())
        curve = ba.pruning_curve(mlp(), q, x, y, likelihood=Exponential(), fractions=[0.0, 0.5], progress=False)
        assert list(curve.scores) == ["nll"]
        pruned = ba.predict(mlp(), q.prune(0.5), x, likelihood=Exponential(), method="mean")
        assert curve.scores["nll"][1] == pytest.approx(-pruned.log_prob(y).mean().item())

    def test_of_counts(self):
        x, y = problem("poisson")
        likelihood = ba.likelihoods.Poisson()
        curve = ba.pruning_curve(mlp(), posterior_of(mlp()), x, y, likelihood=likelihood, fractions=[0], progress=False)
        with torch.no_grad():
            rate = mlp()(x).exp()
        assert curve.scores["rmse"] == [pytest.approx((rate - y).square().mean().sqrt().item())]
