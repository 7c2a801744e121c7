"""Posteriors of every kind with other widths: means, deviations, samples, what is kept, and files."""

import gc
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bayesadam as ba
from bayesadam.posterior import BernoulliPosterior
from bayesadam.posterior.base import posterior_kinds

F64 = {"dtype": torch.float64}
EXACT = {"rtol": 1e-12, "atol": 1e-12}
SHAPES = {"b.weight": (4, 3), "a": (), "c": (2,)}
SIZE = 15


def tensors(seed, shapes=SHAPES, **options):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, **{**F64, **options}) for name, shape in shapes.items()}


def diagonal(seed=0):
    variance = {name: value.square() for name, value in tensors(seed + 1).items()}
    variance["c"][1] = 0.0  # a point mass
    return ba.DiagonalGaussian(tensors(seed), variance, hyperparameters={"lr": 0.1})


def dense(seed=0):
    root = torch.randn(SIZE, SIZE + 2, generator=torch.Generator().manual_seed(seed), **F64)
    return ba.DenseGaussian(tensors(seed), root @ root.T, hyperparameters={"lr": 0.1})


def low_rank():
    factors = tensors(3, {name: (2, *shape) for name, shape in SHAPES.items()})
    return ba.LowRankGaussian(
        tensors(0), {n: v.square() for n, v in tensors(2).items()}, factors, hyperparameters={"lr": 0.1}
    )


def kronecker():
    left = {name: torch.linalg.qr(torch.randn(n, n, **F64)).Q for name, n in (("b.weight", 4), ("c", 2))}
    right = {"b.weight": torch.linalg.qr(torch.randn(3, 3, **F64)).Q}
    eigenvalues = {name: value.square() for name, value in tensors(6).items()}
    return ba.KroneckerGaussian(tensors(0), eigenvalues, left, right, hyperparameters={"lr": 0.1})


def partial(kind):
    random = kind()
    return ba.posterior.PartialGaussian(random, {"before": torch.randn(3, **F64)}, order=["before", *random.mean])


def bernoulli():
    p = {name: value.sigmoid() for name, value in tensors(4).items()}
    p["c"][0], p["b.weight"][0, :2] = 1.0, torch.tensor([0.0, 1.0])
    return BernoulliPosterior(
        p, {"b.weight": torch.randn(4, 1, **F64), "a": torch.tensor(2.0, **F64), "c": tensors(5)["c"]}
    )


GAUSSIAN = {
    "diagonal": diagonal,
    "dense": dense,
    "kronecker": kronecker,
    "low rank": low_rank,
    "partial, dense": lambda: partial(dense),
    "partial, diagonal": lambda: partial(diagonal),
    "partial, kronecker": lambda: partial(kronecker),
}
MIXTURES = {
    "mixture": lambda: ba.Mixture([diagonal(), dense(7)], hyperparameters={"lr": 0.1}),
    "mixture of mixtures": lambda: ba.Mixture(
        [ba.Mixture([diagonal(), diagonal(5)]), low_rank()], hyperparameters={"lr": 0.1}
    ),
}
KINDS = {**GAUSSIAN, **MIXTURES, "bernoulli": bernoulli}


def test_every_kind_is_here():
    assert {type(make()).__name__ for make in KINDS.values()} == set(posterior_kinds())


@pytest.mark.parametrize("factor", [0.0, 0.03, 1.0, 2.5])
@pytest.mark.parametrize("kind", GAUSSIAN)
def test_samples_of_gaussians_are_as_much_nearer_to_the_mean(kind, factor):
    q = GAUSSIAN[kind]()
    before, after = q.sample(5, seed=2), q.scaled(factor).sample(5, seed=2)
    for name, mean in q.mean.items():
        torch.testing.assert_close(after[name] - mean, factor * (before[name] - mean), **EXACT)
        torch.testing.assert_close(q.scaled(factor).variance[name], factor**2 * q.variance[name], **EXACT)


@pytest.mark.parametrize("kind", ["dense", "partial, dense"])
def test_correlations_stay(kind):
    q = GAUSSIAN[kind]()
    before, after = (getattr(p, "random", p) for p in (q, q.scaled(0.2)))
    torch.testing.assert_close(after.covariance, 0.04 * before.covariance, **EXACT)
    torch.testing.assert_close(after.correlation(), before.correlation(), **EXACT)


@pytest.mark.parametrize("kind", MIXTURES)
def test_components_of_mixtures_stay_as_far_apart(kind):
    q = MIXTURES[kind]()
    wide, narrow = q.scaled(2.0), q.scaled(0.0)
    for name in q.mean:
        for other in (wide, narrow):
            torch.testing.assert_close(other.mean[name], q.mean[name], **EXACT)
        within = q.variance[name] - narrow.variance[name]
        torch.testing.assert_close(wide.variance[name], narrow.variance[name] + 4.0 * within, **EXACT)
    assert narrow.variance["b.weight"].min() > 0


@settings(max_examples=100, deadline=None)
@given(st.floats(0, 1), st.floats(-5, 5), st.sampled_from([0.0, 1e-6, 0.5, 1.0, 3.0, 1e6]))
def test_weights_that_are_there_or_not(p, scale, factor):
    q = BernoulliPosterior({"w": torch.tensor([p], **F64)}, {"w": torch.tensor(scale, **F64)})
    r = q.scaled(factor)
    assert r.scale["w"].shape == (1,)
    torch.testing.assert_close(r.mean["w"], q.mean["w"], **EXACT)
    expected = factor**2 * q.variance["w"]
    torch.testing.assert_close(r.variance["w"], expected, rtol=1e-9, atol=1e-12 * max(1.0, factor**2))


def test_samples_of_weights_that_are_there_or_not():
    q = BernoulliPosterior({"w": torch.full((200_000,), 0.3)}, {"w": torch.tensor(2.0)}).scaled(0.5)
    draws = q.sample(1)["w"][0]
    assert draws.unique().numel() == 2
    assert draws.mean().item() == pytest.approx(0.6, abs=0.005)
    assert draws.var().item() == pytest.approx(0.25 * 4 * 0.3 * 0.7, rel=0.01)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept(kind, tmp_path):
    q = KINDS[kind]()
    kept = {name: value.clone() for name, value in q.tensors().items()}
    told = dict(q.hyperparameters)
    r = q.scaled(4.0).scaled(0.5)
    assert type(r) is type(q)
    assert list(r.mean) == list(q.mean)
    assert all(torch.equal(value, kept[name]) for name, value in q.tensors().items())
    assert q.hyperparameters == told
    assert r.hyperparameters["scaled"] == 2.0
    assert r.hyperparameters.get("lr") == told.get("lr")
    r.save(tmp_path / "q")
    loaded = ba.load_posterior(tmp_path / "q")
    assert loaded.hyperparameters == r.hyperparameters
    for name, value in loaded.sample(3).items():
        assert torch.equal(value, r.sample(3)[name])


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes_stay(kind):
    q = KINDS[kind]().to(dtype=torch.float32)
    for (name, before), after in zip(q.tensors().items(), q.scaled(0.3).tensors().values(), strict=True):
        assert before.dtype == after.dtype, name


def test_no_width_is_a_point_mass():
    q = dense().scaled(0.0)
    assert q.entropy() == 0
    assert q.log_prob(q.mean) == 0
    assert all(torch.equal(value[0], q.mean[name]) for name, value in q.sample(1).items())


def test_point_masses_take_no_memory():
    q = ba.ensemble([torch.nn.Linear(300, 300) for _ in range(2)]).scaled(0.5)
    for component in q.components:
        assert component.variance["weight"].untyped_storage().nbytes() == 4


@pytest.mark.parametrize("factor", [-0.1, math.inf, math.nan, "2", None])
def test_refusals(factor):
    with pytest.raises(ValueError, match=f"^factor must be a finite number of at least 0, got {factor!r}$"):
        diagonal().scaled(factor)


def test_a_posterior_of_your_own_that_does_not_say_how():
    class Own(ba.Posterior):
        mean, hyperparameters = {}, {}

        def writer(self, seed=0):
            raise NotImplementedError

        def tensors(self):
            return {}

        @classmethod
        def from_tensors(cls, tensors, hyperparameters):
            return cls()

    with pytest.raises(TypeError, match="^posterior must be of a class that can be scaled, got Own$"):
        Own().scaled(2.0)
    del Own
    gc.collect()  # or it stays a kind that can be loaded
    assert "Own" not in posterior_kinds()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kind", [diagonal, dense, low_rank, kronecker, lambda: partial(diagonal)])
def test_half_precision_keeps_the_uncertainty(kind, dtype):
    """Variances of 1e-12 are 0 in float16; only the means are rounded."""
    q = kind().scaled(1e-6)
    half = q.to(dtype=dtype)
    for name, mean in half.mean.items():
        assert torch.equal(mean, q.mean[name].to(dtype))
        torch.testing.assert_close(half.variance[name].double(), q.variance[name].double(), rtol=1e-5, atol=1e-17)
        assert all(draw.dtype == dtype for draw in half.sample(2).values())
    assert float(half.entropy()) == pytest.approx(float(q.entropy()), rel=1e-5)
