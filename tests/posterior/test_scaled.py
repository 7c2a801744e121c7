"""Posteriors of every kind with other widths: means, deviations, samples, what is kept, and files."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesadam as ba
from bayesadam.posterior import BernoulliPosterior
from posterior.kinds import F64, GAUSSIANS, KINDS, POINTS, dense

EXACT = {"rtol": 1e-12, "atol": 1e-12}


@pytest.mark.parametrize("factor", [0.0, 2.5])
@pytest.mark.parametrize("kind", GAUSSIANS)
def test_samples_of_gaussians_are_as_much_nearer_to_the_mean(kind, factor):
    q = GAUSSIANS[kind](points=POINTS)
    before, after = q.sample(5, seed=2), q.scaled(factor).sample(5, seed=2)
    for name, mean in q.mean.items():
        torch.testing.assert_close(after[name] - mean, factor * (before[name] - mean), **EXACT)
        torch.testing.assert_close(q.scaled(factor).variance[name], factor**2 * q.variance[name], **EXACT)


def test_components_of_mixtures_stay_as_far_apart():
    q = KINDS["mixture"]()
    wide, narrow = q.scaled(2.0), q.scaled(0.0)
    for name in q.mean:
        for other in (wide, narrow):
            torch.testing.assert_close(other.mean[name], q.mean[name], **EXACT)
        within = q.variance[name] - narrow.variance[name]
        torch.testing.assert_close(wide.variance[name], narrow.variance[name] + 4.0 * within, **EXACT)
    assert narrow.variance["z.weight"].min() > 0


@settings(max_examples=30, deadline=None)
@given(st.floats(0, 1), st.floats(-5, 5), st.sampled_from([0.0, 1e-6, 0.5, 1.0, 3.0, 1e6]))
def test_weights_that_are_there_or_not(p, scale, factor):
    q = BernoulliPosterior({"w": torch.tensor([p], **F64)}, {"w": torch.tensor(scale, **F64)})
    r = q.scaled(factor)
    assert r.scale["w"].shape == (1,)
    torch.testing.assert_close(r.mean["w"], q.mean["w"], **EXACT)
    expected = factor**2 * q.variance["w"]
    torch.testing.assert_close(r.variance["w"], expected, rtol=1e-9, atol=1e-12 * max(1.0, factor**2))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept(kind, tmp_path):
    q = KINDS[kind](lr=0.1)
    before = {name: value.clone() for name, value in q.tensors().items()}
    r = q.scaled(4.0).scaled(0.5)
    assert type(r) is type(q)
    assert list(r.mean) == list(q.mean)
    assert all(torch.equal(value, before[name]) for name, value in q.tensors().items())
    assert "scaled" not in q.hyperparameters
    assert (r.hyperparameters["scaled"], r.hyperparameters["lr"]) == (2.0, 0.1)
    r.save(tmp_path / "q")
    assert ba.load_posterior(tmp_path / "q").hyperparameters == r.hyperparameters


def test_no_width_is_a_point_mass():
    q = dense().scaled(0.0)
    assert q.entropy() == 0
    assert q.log_prob(q.mean) == 0
    assert all(torch.equal(value[0], q.mean[name]) for name, value in q.sample(1).items())


def test_point_masses_take_no_memory():
    q = ba.ensemble([torch.nn.Linear(300, 300) for _ in range(2)]).scaled(0.5)
    for component in q.components:
        assert component.variance["weight"].untyped_storage().nbytes() == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank", "kronecker", "partial, diagonal"])
def test_half_precision_keeps_the_uncertainty(kind, dtype):
    """Variances of 1e-12 are 0 in float16; only the means are rounded."""
    q = KINDS[kind]().scaled(1e-6)
    half = q.to(dtype=dtype)
    for name, mean in half.mean.items():
        assert torch.equal(mean, q.mean[name].to(dtype))
        torch.testing.assert_close(half.variance[name].double(), q.variance[name].double(), rtol=1e-5, atol=1e-17)
        assert all(draw.dtype == dtype for draw in half.sample(2).values())
    assert float(half.entropy()) == pytest.approx(float(q.entropy()), rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_subclass_stays_one(kind):
    q = KINDS[kind]()
    q.__class__ = type("Own", (type(q),), {})
    assert type(q.scaled(0.5)) is type(q.to(dtype=torch.float64)) is type(q)


@pytest.mark.parametrize(("kind", "spread"), [(ba.DiagonalGaussian, None), (ba.DenseGaussian, torch.eye(2))])
def test_samples_of_a_subclass_are_its_own(kind, spread):
    class Shifted(kind):
        def writer(self, seed=0):
            write_gaussian = super().writer(seed)

            def write(targets, number):
                write_gaussian(targets, number)
                for target in targets.values():
                    target.add_(3.0)

            return write

    model = torch.nn.Linear(1, 1)
    shapes = {"weight": (1, 1), "bias": (1,)}
    zeros, ones = ({name: make(shape) for name, shape in shapes.items()} for make in (torch.zeros, torch.ones))
    q = Shifted(zeros, ones if spread is None else spread)
    assert q.scaled(0.0).sample(2)["bias"].tolist() == [[3.0], [3.0]]
    pred = ba.predict(model, q.scaled(1e-6), torch.ones(4, 1), likelihood=ba.Gaussian(1.0), mc_samples=5)
    torch.testing.assert_close(pred.mean, torch.full((4, 1), 6.0), rtol=0.0, atol=1e-3)


def test_samples_are_defined_in_one_place():
    with pytest.raises(TypeError, match="^Own must define writer, by which predictions and mixtures draw samples, got"):

        class Own(ba.DiagonalGaussian):
            def sample(self, count, *, seed=0, first=0):
                return {name: mean.expand(count, *mean.shape) + 3.0 for name, mean in self.mean.items()}


def test_a_factor_of_the_widths_is_named_and_what_the_data_determine_is_that_of_before():
    q = ba.DiagonalGaussian(
        {"w": torch.ones(4)}, {"w": torch.full((4,), 0.5)}, hyperparameters={"prior_precision": 1.0}
    )
    before, after = q.report(), q.scaled(0.1).report()
    assert [before.total.determined, after.total.determined] == pytest.approx([2.0, 2.0], rel=1e-5)
    assert (before.scaled, after.scaled) == (1.0, 0.1)
    assert "The standard deviations are 0.1 times those that were computed first." in str(after)
    assert "times those" not in str(before)
