"""One-line posteriors do not make their network worse, and those of other settings say so where they do."""

import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam.calibration import safe
from bayesadam.predictive.pairs import Remembered, evenly
from modules import module_of


def nll(model, q, data, likelihood, **options):
    return ba.metrics.nll(ba.predict(model, q, data[0], likelihood=likelihood, **options), data[1])


def network(problem, data):
    point = ba.DiagonalGaussian.point_mass(problem.model)
    return nll(problem.model, point, data, problem.likelihood, method="mean")


def one_line(problem, kind, **options):
    if kind == "badam":
        return ba.badam(problem.adam, problem.model, num_data=len(problem.train[0]), **options)
    if kind == "badam, with data":
        options = {"data": problem.train, "likelihood": problem.likelihood, **options}
        return one_line(problem, "badam", **options)
    return ba.laplace(problem.model, problem.train, likelihood=problem.likelihood, structure=kind, **options)


KINDS = ["badam", "badam, with data", "diagonal", "kron", "full", "last_layer"]


@pytest.mark.filterwarnings("ignore:the noise of the likelihood must fit")
@pytest.mark.parametrize(
    ("problem", "kind"),
    [*(("classes", kind) for kind in KINDS), ("regression", "badam, with data"), ("regression", "kron")],
)
def test_defaults_do_no_harm(kind, problem, request):
    problem = request.getfixturevalue(problem)
    q = one_line(problem, kind)
    factor = q.hyperparameters.get("scaled", 1.0)
    assert 0.001 < factor <= 1.0
    assert q.hyperparameters["prior_precision"] == 1.0
    for data in (problem.train, problem.held_out, problem.test):
        found = nll(problem.model, q, data, problem.likelihood)
        assert found < network(problem, data) + (0.01 if data is problem.train else 0.0)


@pytest.mark.parametrize("kind", ["badam, with data", "kron", "last_layer"])
def test_the_width_is_the_largest_that_does_no_harm(kind, classes):
    q = one_line(classes, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is too wide
        wide = one_line(classes, kind, prior_precision=1.0)
    factor = q.hyperparameters["scaled"]
    own, found, wider = (
        nll(classes.model, wide.scaled(f), classes.train, classes.likelihood, mc_samples=safe.SAMPLES)
        for f in (0.0, factor, 1.42 * factor)
    )
    assert found <= own + safe.RISE < wider
    assert (2 * torch.tensor(factor).log2() % 1).item() == pytest.approx(0.0, abs=1e-5)
    for name, variance in wide.variance.items():
        torch.testing.assert_close(q.variance[name], factor**2 * variance, rtol=1e-6, atol=0.0)


def test_a_posterior_that_is_right_stays_as_it_is():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200, 3, generator=generator).double()
    y = x.sum(1, keepdim=True) + 0.5 * torch.randn(200, 1, generator=generator)
    model, likelihood = nn.Linear(3, 1, bias=False).double(), ba.Gaussian(4.0).double()
    precision = 4.0 * x.T @ x + torch.eye(3)
    with torch.no_grad():
        model.weight.copy_(torch.linalg.solve(precision, 4.0 * x.T @ y).T)
    q = ba.laplace(model, (x, y), likelihood=likelihood, structure="full")
    assert "scaled" not in q.hyperparameters
    torch.testing.assert_close(q.covariance, precision.inverse(), rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("kind", ["badam", "badam, with data", "diagonal", "last_layer"])
def test_what_is_given_means_what_it_did(kind, classes):
    """And of a posterior that is narrow enough nothing is said: warnings are errors here."""
    q = one_line(classes, kind, prior_precision=1e5)
    assert "scaled" not in q.hyperparameters
    assert q.hyperparameters["prior_precision"] == 1e5
    if kind.startswith("badam"):
        v = classes.adam.state[classes.model[0].weight]["exp_avg_sq"] / (1 - 0.999**150)
        torch.testing.assert_close(1 / q.variance["0.weight"], 80 * v.sqrt() + 1e5)


class TestNoise:
    """Noise of another size than that of the residuals, of which nothing is said if held-out rows have chosen it."""

    @pytest.mark.parametrize("precision", [100.0, "safe"])
    @pytest.mark.parametrize("kind", ["last_layer", "badam, with data"])
    @pytest.mark.parametrize(("factor", "said"), [(0.45, "2.2 times too small"), (2.2, "2.2 times too large")])
    def test_a_warning(self, regression, factor, said, kind, precision):
        residual = regression.train[1] - regression.model(regression.train[0]).detach()
        right = ba.Gaussian(1.0 / residual.square().mean())
        wrong = regression._replace(likelihood=right.tempered(factor**2))
        with pytest.warns(UserWarning, match=rf"^the noise of the likelihood must fit .* that is {said} on the data"):
            one_line(wrong, kind, prior_precision=precision)

    @pytest.mark.parametrize("factor", [0.55, 1.8])
    def test_none_within_a_factor_of_two(self, regression, factor):
        residual = regression.train[1] - regression.model(regression.train[0]).detach()
        near = ba.Gaussian(1.0 / (factor**2 * residual.square().mean()))
        one_line(regression._replace(likelihood=near), "last_layer")

    def test_none_after_calibrating(self, regression):
        found = ba.calibrate(regression.model, regression.held_out, likelihood=ba.Gaussian(1e4))
        fitted = (regression.train[0], regression.model(regression.train[0]).detach() + 1e-3)
        one_line(regression._replace(likelihood=found, train=fitted), "last_layer")


class TestLoaders:
    @pytest.mark.parametrize("kind", ["badam, with data", "last_layer"])
    def test_a_loader_and_an_iterator(self, classes, kind):
        q = one_line(classes, kind)
        loader = DataLoader(TensorDataset(*classes.train), batch_size=7)
        for data in (loader, iter(list(loader))):
            if kind == "last_layer":
                r = ba.laplace(classes.model, data, likelihood=classes.likelihood, structure=kind)
            else:
                r = one_line(classes, kind, data=data)
            assert r.hyperparameters == q.hyperparameters

    def test_rows_are_remembered_up_to_a_number(self):
        x = torch.arange(20.0).view(-1, 1)
        data = [((x[i : i + 4], x[:3]), x[i : i + 4, 0]) for i in range(0, 20, 4)]
        remembered = Remembered(data, 10)
        for found, given in zip(remembered, data, strict=True):
            assert found is given
        first = remembered.first()
        assert torch.cat([target for _, target in first]).tolist() == list(range(10))
        assert [inputs[0].tolist() for inputs, _ in first] == [x[a:b].tolist() for a, b in ((0, 4), (4, 8), (8, 10))]
        assert all(torch.equal(inputs[1], x[:3]) for inputs, _ in first)
        assert remembered.__length_hint__() == 5

    def test_a_loader_that_nobody_has_gone_through_gives_no_more_batches_than_needed(self):
        asked = []
        data = (asked.append(i) or (torch.full((4, 1), i), torch.full((4,), i)) for i in range(5))
        assert [len(target) for _, target in Remembered(data, 6).first()] == [4, 2]
        assert asked == [0, 1]


@pytest.mark.parametrize(("rows", "count"), [(20, 100), (21, 20), (512, 1)])
def test_rows_of_a_pair_are_taken_evenly(rows, count):
    x, shared = torch.arange(float(rows)).view(-1, 1), torch.zeros(rows + 1)
    (inputs, same), target = evenly(([x, shared], x[:, 0]), count)
    assert target.tolist() == [k * rows // min(rows, count) for k in range(min(rows, count))]
    assert torch.equal(inputs[:, 0], target)
    assert same is shared


def share(mean, variance):
    q = ba.DiagonalGaussian(
        {n: torch.tensor(v) for n, v in mean.items()}, {n: torch.tensor(v) for n, v in variance.items()}
    )
    return safe.harmless_share(q).hyperparameters.get("scaled", 1.0)


def test_without_data_the_noise_is_a_twentieth_of_the_weights():
    mean = {"a": [[3.0, 4.0]], "b": [[1.0, 0.0]], "bias": [0.0, 1e-9]}
    assert share(mean, {"a": [[1.0, 7.0]], "b": [[0.0, 1e-4]], "bias": [1.0, 1.0]}) == pytest.approx(
        0.05 * (12.5 / 4) ** 0.5
    )
    assert share(mean, {"a": [[1.0, 7.0]], "b": [[8.0, 0.0]], "bias": [1.0, 1.0]}) == pytest.approx(0.05 * 0.125**0.5)
    assert share(mean, {"a": [[0.0, 0.0]], "b": [[1e-4, 0.0]], "bias": [1.0, 1.0]}) == 1.0
    assert share({"bias": [0.0, 2.0]}, {"bias": [1.0, 1.0]}) == pytest.approx(0.05 * 2**0.5)


def test_a_posterior_that_cannot_be_harmless_is_a_point(classes):
    """A network whose outputs are infinite for any noise."""
    weight = nn.Parameter(torch.ones(3, 3))
    model = module_of(lambda self, x: x @ self.weight / (self.weight == 1.0).all(), weight=weight)
    q = ba.DiagonalGaussian({"weight": torch.ones(3, 3)}, {"weight": torch.ones(3, 3)})
    watched = safe.Watched(model, classes.train, classes.likelihood, None, None)
    assert watched.harmless(q).hyperparameters["scaled"] == 0.0
    with pytest.warns(UserWarning, match="^the posterior is too wide: the loss on the data given is inf nats"):
        watched.warn_of_harm(q)


def test_refusals(classes):
    adam, model, data = classes.adam, classes.model, classes.train
    with pytest.raises(ValueError, match="^likelihood must be a bayesadam.likelihoods.Likelihood, got None$"):
        ba.badam(adam, model, num_data=80, data=data)
    with pytest.raises(ValueError, match="^data must have at least one batch, got none$"):
        ba.badam(adam, model, num_data=80, data=(data[0][:0], data[1][:0]), likelihood=classes.likelihood)
