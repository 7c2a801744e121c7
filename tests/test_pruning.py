"""Pruning by magnitude, and pruning curves: against networks pruned by hand."""

import numpy as np
import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import metrics, plots
from bayesadam.pruning import PruningCurve, pruning_curve
from posterior.kinds import GAUSSIANS, flat

LEVELS = [0.0, 0.3, 0.9, 1.0]


def draw(shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3))


@pytest.fixture
def q(model):
    mean = {n: draw(p.shape, i) for i, (n, p) in enumerate(model.named_parameters())}
    return ba.DiagonalGaussian(mean, {n: draw(m.shape, 9).exp() for n, m in mean.items()})


@pytest.fixture
def data():
    return draw((40, 5), 3), torch.arange(40) % 3


class TestMagnitude:
    @pytest.mark.parametrize("fraction", [0.123, 1.0])
    def test_the_smallest_means_are_zero(self, q, fraction):
        pruned = q.prune(fraction, by="magnitude")
        gone = flat(pruned.variance) == 0
        assert gone.sum() == round(fraction * q.num_weights)
        assert torch.equal(flat(pruned.mean), torch.where(gone, 0.0, flat(q.mean)))
        magnitudes = flat(q.mean).abs()
        assert not gone.any() or gone.all() or magnitudes[gone].max() <= magnitudes[~gone].min()

    def test_of_equal_weights_the_first_go(self):
        q = ba.DiagonalGaussian.point_mass({"a": torch.ones(2, 2), "b": -torch.ones(6)})
        assert flat(q.prune(0.3, by="magnitude").mean).tolist() == [0.0] * 3 + [1.0] + [-1.0] * 6


@pytest.mark.parametrize("method", ["mean", "monte_carlo", "linearized", "moments"])
@pytest.mark.parametrize("by", ["signal_to_noise", "magnitude"])
class TestAgainstPrunedPosteriors:
    @pytest.mark.parametrize("task", ["classification", "regression"])
    def test_scores(self, model, q, data, by, method, task):
        x, y = data
        options = {"method": method, "mc_samples": 3, "seed": 5}
        y = y if task == "classification" else draw((40, 3), 4)
        likelihood, score = (
            (ba.Categorical(), lambda found: metrics.accuracy(found.probs, y))
            if task == "classification"
            else (ba.Gaussian(), lambda found: metrics.rmse(found.mean, y))
        )
        before = {n: v.clone() for n, v in model.state_dict().items()}
        curve = pruning_curve(model, q, (x, y), likelihood=likelihood, fractions=LEVELS, by=by, **options)
        assert all(torch.equal(v, before[n]) for n, v in model.state_dict().items())
        assert (curve.fractions, curve.remaining) == (LEVELS, [147, 103, 15, 0])
        assert list(curve.scores) == ["accuracy" if task == "classification" else "rmse", "nll"]
        for level, first, nll in zip(LEVELS, *curve.scores.values(), strict=True):
            found = ba.predict(model, q.prune(level, by=by), x, likelihood=likelihood, **options)
            assert (first, nll) == (score(found), metrics.nll(found, y))


class TestCurve:
    @pytest.mark.parametrize("kind", ["dense", "low rank", "partial, dense"])
    def test_other_posteriors_linearised(self, model, q, data, kind):
        posterior, (x, y) = GAUSSIANS[kind](q.mean), data
        options = {"likelihood": ba.Categorical(), "method": "linearized", "mc_samples": 4}
        curve = pruning_curve(model, posterior, (x, y), fractions=LEVELS, **options)
        for level, nll in zip(LEVELS, curve.scores["nll"], strict=True):
            expected = ba.predict(model, posterior.prune(level), x, **options)
            assert nll == pytest.approx(metrics.nll(expected, y), rel=1e-4)

    @pytest.mark.parametrize("method", ["mean", "linearized"])
    def test_labels_of_any_shape(self, model, q, data, method):
        """One label in an axis of its own, and classes at several positions."""
        x, y = data
        options = {"method": method, "mc_samples": 3, "fractions": [0.5]}
        two = nn.Sequential(*model[:2], nn.Linear(16, 1))
        head = {"2.weight": (1, 16), "2.bias": (1,)}
        mean = {**q.mean, **{n: draw(shape, 3) for n, shape in head.items()}}
        q_two = ba.DiagonalGaussian(mean, {n: torch.full_like(m, 0.1) for n, m in mean.items()})
        labels = (y == 0).long().unsqueeze(1)
        curve = pruning_curve(two, q_two, (x, labels), likelihood=ba.Bernoulli(), **options)
        found = ba.predict(two, q_two.prune(0.5), x, likelihood=ba.Bernoulli(), method=method, mc_samples=3)
        assert curve.scores["accuracy"] == [((found.probs > 0.5) == labels).double().mean().item()]
        curve = pruning_curve(model, q, (x.view(8, 5, 5), y.view(8, 5)), likelihood=ba.Categorical(), **options)
        found = ba.predict(
            model, q.prune(0.5), x.view(8, 5, 5), likelihood=ba.Categorical(), method=method, mc_samples=3
        )
        assert curve.scores["accuracy"] == [(found.probs.argmax(-1) == y.view(8, 5)).double().mean().item()]
        assert curve.scores["nll"] == [pytest.approx(metrics.nll(found, y.view(8, 5)))]

    def test_evaluate(self, model, q, data):
        x, _ = data

        def evaluate(pruned):
            found = ba.predict(model, pruned, x, likelihood=ba.Categorical(), method="mean")
            with pruned.applied(model, 1):
                left = sum(int((p != 0).sum()) for p in model.parameters())
            return {"entropy": found.entropy.mean(), "left": left}

        curve = pruning_curve(model, q, evaluate=evaluate, fractions=LEVELS)
        assert list(curve.scores) == ["entropy", "left"]
        assert curve.scores["left"] == curve.remaining
        assert all(type(value) is float for values in curve.scores.values() for value in values)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"likelihood": None}, r"^data and likelihood must both be given without evaluate, got \['data'\]$"),
            ({"evaluate": lambda pruned: {}}, "^data and likelihood must not be given with evaluate, got"),
            ({"fractions": []}, "^fractions must have at least one level, got none$"),
            ({"fractions": [0.5, 1.5]}, r"^every fraction must be in \[0, 1\], got 1.5$"),
            ({"by": "size"}, "^by must be one of .*, got 'size'$"),
            ({"method": "median"}, "^method must be one of .*, got 'median'$"),
        ],
    )
    def test_errors(self, model, q, data, changes, message):
        arguments = {"data": data, "likelihood": ba.Categorical(), **changes}
        with pytest.raises(ValueError, match=message):
            pruning_curve(model, q, **arguments)

    def test_a_mixture_is_refused(self, model, q):
        message = r"^posterior must be a DiagonalGaussian, LowRankGaussian or .*, got a Mixture$"
        with pytest.raises(TypeError, match=message):
            pruning_curve(model, ba.Mixture([q, q]), evaluate=lambda pruned: pytest.fail("nothing must run"))


class TestPlot:
    @pytest.fixture
    def axes(self):
        return pytest.importorskip("matplotlib.figure").Figure().subplots()

    def test_points_and_ticks(self, axes):
        curves = {
            "one": PruningCurve([0.9, 0.0, 0.99, 1.0], [10, 100, 1, 0], {"accuracy": [0.8, 0.9, 0.5, 0.1]}),
            "two": PruningCurve([0.0, 0.999], [100, 0], {"accuracy": [0.7, 0.6]}),
        }
        assert plots.pruning(axes, curves) is axes
        np.testing.assert_allclose(axes.lines[0].get_xydata(), [[1.0, 0.9], [0.1, 0.8], [0.01, 0.5]])
        np.testing.assert_allclose(axes.lines[1].get_xydata(), [[1.0, 0.7], [0.001, 0.6]])
        assert axes.get_xscale() == "log"
        assert axes.xaxis_inverted()
        texts = dict(zip(axes.get_xticks(), [t.get_text() for t in axes.get_xticklabels()], strict=True))
        assert [*texts.values()] == ["0%", "50%", "80%", "90%", "95%", "98%", "99%", "99.5%", "99.9%"]
        np.testing.assert_allclose([*texts], [1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.001])
        assert axes.get_legend_handles_labels()[1] == ["one", "two"]
        assert axes.get_ylabel() == "accuracy"


def test_a_point_mass_has_no_signal_to_noise_ratios():
    q = ba.DiagonalGaussian.point_mass({"w": torch.tensor([1.0, -2.0])})
    with pytest.raises(ValueError, match="^by must be 'magnitude' for a posterior in which no weight has a variance, "):
        q.prune(0.5)
    assert q.prune(0.5, by="magnitude").mean["w"].tolist() == [0.0, -2.0]
