"""Every method takes every likelihood: a user's own that defines a density alone, and those that the library ships."""

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import bayesadam as ba
from bayesadam.posthoc import LaplaceApproximation, laplace
from likelihoods import models
from likelihoods.models import F64, ByDistribution, ByElements, Exponential, close, draw, waiting_times
from population.conftest import compare
from posterior.kinds import around
from posthoc.models import gradient, slow_matrix

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


class TestTraining:
    @pytest.mark.parametrize("name", EVERY)
    def test_a_population_is_single_training(self, name):
        """With Vadam, whose gradients are in closed form where the score is."""
        data = [problem(name, count, seed=count) for count in (13, 7, 20)]
        nets = [mlp(seed=seed) for seed in range(3)]
        likelihood = EVERY[name](learned=True)
        compare(nets, data, likelihood, epochs=3, mc_samples=2)

    @pytest.mark.parametrize("name", ["negative_binomial", "student_t"])
    def test_members_with_different_parameters(self, name):
        data = [problem(name, count, seed=count) for count in (13, 7, 20)]
        nets = [mlp(seed=seed) for seed in range(3)]
        likelihoods = [SHIPPED[name](value) for value in (0.5, 1.0, 2.0)]
        compare(nets, data, likelihoods, epochs=3)

    @pytest.mark.parametrize("method", ["adam", "bbb", "vogn", "von"])
    def test_other_optimisers(self, method):
        """By samples, by the squares of the examples and by second derivatives of a density alone."""
        options = {"hessian": "exact"} if method == "von" else {}
        together = compare([mlp()], [problem(count=7)], Exponential(), method=method, lr=0.01, **options)
        assert together.history["loss"].isfinite().all()


def slow_curvature(model, x, y, likelihood):
    """Sum over the examples of ``J' H J``, the Hessian at the targets by autograd."""
    parameters = list(model.parameters())
    total = 0
    for n in range(len(x)):
        output = model(x[n : n + 1])
        hessian = torch.func.hessian(lambda o: -likelihood.log_density(o, y[n : n + 1])[0])(output.detach())  # noqa: B023
        hessian = hessian.view(output.numel(), output.numel())
        jacobian = torch.stack([gradient(o, parameters) for o in output.flatten()])
        total = total + jacobian.T @ hessian @ jacobian
    return total


class TestLaplace:
    @pytest.mark.parametrize("make", [*OWN, ba.likelihoods.Poisson, ba.likelihoods.LogNormal])
    def test_is_the_slow_loop(self, make):
        """Of likelihoods whose second derivative at the targets is what it is expected to be, or has no other."""
        likelihood, model = make().double(), mlp(2)
        x, y = problem(count=9)
        y = targets(make.__name__.lower(), y).repeat(1, 2)
        expected = slow_curvature(model, x, y, likelihood)
        whole = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="full")
        close(whole.curvature, expected)
        diagonal = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="diagonal").curvature
        close(torch.cat([value.flatten() for value in diagonal.values()]), expected.diagonal())
        last = LaplaceApproximation(model, (x, y), likelihood=likelihood, structure="last_layer").curvature
        close(last, expected[-len(last) :, -len(last) :])

    @pytest.mark.parametrize(
        ("make", "outputs", "curvature"),
        [(Exponential, 2, "ggn"), (ByElements, 1, "empirical_fisher"), (ba.likelihoods.Poisson, 2, "ggn")],
    )
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
        options = {"likelihood": likelihood, "structure": "full", "curvature": "empirical_fisher"}
        expected = slow_matrix(model, x, y, likelihood, "empirical_fisher")
        close(LaplaceApproximation(model, (x, y), **options).curvature, expected)

    @pytest.mark.parametrize("structure", ["full", "diagonal"])
    def test_a_density_of_straight_pieces(self, structure):
        """There is no second derivative, but there are scores."""
        x, y = problem()
        message = "^likelihood must define fisher_factor for a Laplace approximation, as its log density has no second"
        with pytest.raises(ba.likelihoods.MissingCapabilityError, match=message):
            laplace(mlp(), (x, y), likelihood=models.Laplace(), structure=structure)
        q = laplace(mlp(), (x, y), likelihood=models.Laplace(), structure=structure, curvature="empirical_fisher")
        assert all((value <= 1.0).all() for value in q.variance.values())


class TestPrediction:
    @pytest.mark.parametrize(
        ("name", "method"),
        [(name, "monte_carlo") for name in EVERY]
        + [("gamma", method) for method in ("mean", "linearized", "moments")]
        + [("ByElements", "linearized")],
    )
    def test_every_method(self, name, method):
        x, y = problem(name)
        pred = ba.predict(mlp(), around(mlp(), 0.09), x, likelihood=EVERY[name](), method=method, mc_samples=7)
        assert type(pred) is ba.predictive.MixturePredictive
        assert len(pred.outputs) == (1 if method == "mean" else 7)
        assert pred.log_prob(y).isfinite().all()
        if name in SHIPPED:
            assert pred.variance.isfinite().all()
            low, high = pred.quantile([0.05, 0.95])
            assert (low < high).all()
            assert pred.sample(3).shape == (3, 40, 1)

    @pytest.mark.parametrize("method", ["linearized", "moments"])
    def test_gaussian_outputs_of_a_linear_model(self, method):
        """Both know their outputs' mean and variance exactly: rates are log-normal."""
        x, _ = problem("poisson", 6)
        model = nn.Linear(3, 1).double()
        q, draws = around(model, 0.04), 40_000
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


class TestIgnoredClasses:
    def test_the_loss_is_that_of_torch(self):
        for shape in ((6, 3), (6, 4, 3)):
            output = draw(*shape)
            target = torch.arange(output[..., 0].numel()).view(shape[:-1]) % 3
            target[::2] = -100
            for likelihood, divisor in ((ba.Categorical(), 1.0), (ba.Categorical().tempered(2.0), 2.0)):
                expected = nn.functional.cross_entropy(output.flatten(0, -2) / divisor, target.flatten())
                torch.testing.assert_close(likelihood.nll(output, target), expected)
                with pytest.raises(ValueError, match="target must have all axes of the output"):
                    likelihood.nll(output.expand(2, *shape), target)
        assert likelihood.nll(output, target.fill_(-100)).isnan()

    def test_held_out_rows_are_left_out(self):
        model, x = nn.Linear(2, 3).double(), draw(8, 2)
        target = model(x).argmax(-1).roll(1)
        target[::3] = model(x).argmax(-1)[::3]
        kept = torch.arange(8) % 4 > 0
        expected = ba.calibrate(model, (x[kept], target[kept]), likelihood=ba.Categorical())
        found = ba.calibrate(model, (x, target.masked_fill(~kept, -100)), likelihood=ba.Categorical())
        assert found.temperature == pytest.approx(expected.temperature)

    def test_elsewhere_they_are_refused(self):
        with pytest.raises(ValueError, match=r"^target must be in \[0, 3\), got -100 to -100$"):
            ba.Categorical().log_prob(draw(5, 3), torch.full((5,), -100))


def test_classes_that_may_be_along_another_axis():
    output, target = draw(2, 3, 3, 3), torch.zeros(2, 3, 3, dtype=torch.long)
    with pytest.warns(UserWarning, match=r"classes of logits of shape \(2, 3, 3, 3\) are taken along the last axis"):
        ba.Categorical().nll(output, target)
    ba.Categorical().nll(draw(2, 3, 3, 4), target)
    ba.Categorical().nll(draw(2, 2, 3, 3), target[:, :2])
