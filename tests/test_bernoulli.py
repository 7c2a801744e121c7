"""The Bernoulli posterior: moments, sampling, scores, use in a network, its file; and divergences of logits."""

import math

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import bayesadam as ba
from bayesadam import noise
from bayesadam.functional import empirical, kl
from bayesadam.posterior import BernoulliPosterior

BOUND = 4.5
SHAPES = {"z.weight": (30, 4), "a": (), "m/bias": (5,)}  # not in alphabetic order


def make(shapes=SHAPES, seed=0, dtype=torch.float32, **hyperparameters):
    """Probabilities strictly between 0 and 1, and a scale for every row."""
    generator = torch.Generator().manual_seed(seed)
    p = {name: torch.rand(shape, generator=generator).mul(0.9).add(0.05).to(dtype) for name, shape in shapes.items()}
    scale = {
        name: torch.randn((*shape[:-1], 1) if shape else (), generator=generator).to(dtype)
        for name, shape in shapes.items()
    }
    return BernoulliPosterior(p, scale, hyperparameters=hyperparameters)


def weight(p, scale, dtype=torch.float64):
    """A posterior over one vector, from numbers."""
    return BernoulliPosterior({"w": torch.tensor(p, dtype=dtype)}, {"w": torch.tensor(scale, dtype=dtype)})


def assert_same(a, b):
    """Two dicts of tensors are equal in names, their order, dtypes and values."""
    assert list(a) == list(b)
    for name, value in a.items():
        assert value.dtype == b[name].dtype
        assert torch.equal(value, b[name])


def elements(q):
    """Probability and scale of every weight, as numbers."""
    for name, p in q.probability.items():
        yield from zip(p.flatten().tolist(), q.scale[name].expand(p.shape).flatten().tolist(), strict=True)


class TestConstruction:
    def test_keeps_the_tensors_but_not_the_dictionaries(self):
        p, scale, hyperparameters = {"w": torch.full((3,), 0.5)}, {"w": torch.ones(1)}, {"lr": 0.1}
        q = BernoulliPosterior(p, scale, hyperparameters=hyperparameters)
        assert q.probability["w"] is p["w"]
        assert q.scale["w"] is scale["w"]
        for dictionary in (p, scale, hyperparameters):
            dictionary.clear()
        assert (list(q.probability), list(q.scale), q.hyperparameters) == (["w"], ["w"], {"lr": 0.1})

    def test_repr_and_size(self):
        q = make({"a": (100, 20), "b": ()})
        assert q.num_weights == 2001
        assert repr(q) == "Bernoulli(2 tensors, 2,001 weights)"

    def test_moments_are_those_of_equations_16_and_17(self):
        q = make(dtype=torch.float64)
        for name, shape in SHAPES.items():
            assert q.mean[name].shape == q.variance[name].shape == shape
        mean = torch.cat([m.flatten() for m in q.mean.values()]).tolist()
        variance = torch.cat([v.flatten() for v in q.variance.values()]).tolist()
        for m, v, (p, scale) in zip(mean, variance, elements(q), strict=True):
            assert m == pytest.approx(scale * p, rel=1e-14)
            assert v == pytest.approx(p * (scale - scale * p) ** 2 + (1 - p) * (scale * p) ** 2, rel=1e-12)

    @pytest.mark.parametrize("scale", [0.3, -1e30, 3e38])
    def test_point_masses_have_their_value_and_exactly_no_variance(self, scale):
        q = weight([0.0, 1.0, 1.0], [scale, scale, 0.0], torch.float32)
        assert q.mean["w"].tolist() == [0.0, torch.tensor(scale).item(), 0.0]
        assert q.variance["w"].tolist() == [0.0] * 3

    def test_moments_have_no_gradient(self):
        q = BernoulliPosterior(
            {"w": torch.full((2,), 0.5, requires_grad=True)}, {"w": torch.ones(1, requires_grad=True)}
        )
        assert not q.mean["w"].requires_grad
        assert not q.variance["w"].requires_grad
        assert q.sample(1)["w"].shape == (1, 2)

    @pytest.mark.parametrize(
        ("p", "scale", "message"),
        [
            ({}, {}, "^probability must have at least one weight tensor, got none$"),
            ({"a": [0.5]}, {"b": [1.0]}, r"^scale must have the names of probability \['a'\], got \['b'\]$"),
            ({"a": [1]}, {"a": [1.0]}, "^probability of 'a' must be a floating-point tensor, got dtype torch.int64$"),
            ({"a": [0.5, 1.5]}, {"a": [1.0]}, r"^probability of 'a' must be in \[0, 1\], got 1.5$"),
            ({"a": [-0.5]}, {"a": [1.0]}, r"^probability of 'a' must be in \[0, 1\], got -0.5$"),
            ({"a": [math.nan]}, {"a": [1.0]}, r"^probability of 'a' must be in \[0, 1\], got nan$"),
            ({"a": [0.5]}, {"a": [1]}, "^scale of 'a' must be of the .* dtype torch.float32, got dtype torch.int64$"),
            ({"a": [0.5] * 3}, {"a": [1.0] * 2}, r"^scale of 'a' must broadcast to the shape \(3,\), got \(2,\)$"),
            ({"a": [0.5]}, {"a": [1.0] * 2}, r"^scale of 'a' must broadcast to the shape \(1,\), got \(2,\)$"),
            ({"a": [0.5]}, {"a": [[1.0]]}, r"^scale of 'a' must broadcast to the shape \(1,\), got \(1, 1\)$"),
            ({"a": [0.5]}, {"a": [math.inf]}, "^scale of 'a' must be finite, got inf or nan$"),
        ],
    )
    def test_errors(self, p, scale, message):
        p, scale = ({n: torch.tensor(v) for n, v in part.items()} for part in (p, scale))
        with pytest.raises(ValueError, match=message):
            BernoulliPosterior(p, scale)


@pytest.fixture(scope="module")
def standardised():
    """``(sample - mean) / sigma``, ``(8, 250_000)``, of a posterior over a large and smaller tensors."""
    q = make({"a": (400, 500), "b": (4, 11_000), "c": (6000,)})
    return standardise(q, q.sample(8, seed=1))


def standardise(q, samples):
    """In float64, and by the moments' definition."""
    parts = []
    for name, p in q.probability.items():
        p, scale = p.double(), q.scale[name].double()
        parts.append(((samples[name].double() - scale * p) / (scale * (p * (1 - p)).sqrt())).flatten(1))
    return torch.cat(parts, 1)


def mean_z(x):
    return x.mean().item() * math.sqrt(x.numel())


def variance_z(x):
    """By the spread of the squares themselves, which is not that of normals."""
    squares = x.square()
    return (squares.mean().item() - 1) / squares.std().item() * math.sqrt(x.numel())


def unrelated(a, b):
    return abs(mean_z(a * b)) < BOUND


class TestSampling:
    def test_mean_and_variance(self, standardised):
        assert abs(mean_z(standardised)) < BOUND
        assert abs(variance_z(standardised)) < BOUND

    def test_an_error_of_one_percent_would_be_found(self, standardised):
        assert variance_z(standardised * math.sqrt(1.01)) > BOUND
        assert variance_z(standardised * math.sqrt(0.99)) < -BOUND
        assert mean_z(standardised + 0.01) > BOUND

    def test_how_often_a_weight_is_there(self):
        wanted = torch.tensor([1e-3, 0.02, 0.2, 0.5, 0.9, 0.999], dtype=torch.float64)
        p = wanted[:, None].expand(6, 100_000)
        there = BernoulliPosterior({"w": p}, {"w": torch.ones(()).double()}).sample(10, seed=2)["w"].mean((0, 2))
        z = (there - wanted) / (wanted * (1 - wanted) / 1e6).sqrt()
        assert (z.abs() < BOUND).all(), z

    def test_samples_tensors_and_weights_are_independent(self, standardised):
        x = standardised
        assert unrelated(x[:-1], x[1:])
        assert unrelated(x[:, :-1], x[:, 1:])
        assert unrelated(x[:, :44_000], x[:, 200_000:244_000])
        q = make({"a": (400, 500), "b": (4, 11_000), "c": (6000,)})
        assert unrelated(x, standardise(q, q.sample(8, seed=2)))

    @pytest.mark.parametrize("shapes", [SHAPES, {"a": (4, 8192), "b": (3, 2), "c": (2,)}])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_is_the_noise_of_seed_and_number_below_a_quantile(self, shapes, dtype):
        q = make(shapes, dtype=dtype)
        samples = q.sample(3, seed=5, first=7)
        assert list(samples) == list(q.mean)
        for index, (name, p) in enumerate(q.probability.items()):
            assert samples[name].dtype == dtype
            for i in range(3):
                eps = noise.normal(5, 0, 7 + i, index, p.shape, stream=noise.POSTERIOR).double()
                below = 0.5 * (1 + torch.erf(eps / math.sqrt(2)))
                sure = (below - p.double()).abs() > 1e-6
                expected = torch.where(below < p.double(), q.scale[name], 0.0)
                assert torch.equal(samples[name][i][sure], expected[sure])
                assert sure.float().mean() > 0.999

    @settings(deadline=None)
    @given(st.integers(0, 2**64 - 1), st.lists(st.integers(1, 4), min_size=1, max_size=4))
    def test_chunks_are_all_at_once(self, seed, counts):
        q = make()
        chunks = [q.sample(n, seed=seed, first=sum(counts[:i])) for i, n in enumerate(counts)]
        assert_same({n: torch.cat([chunk[n] for chunk in chunks]) for n in q.mean}, q.sample(sum(counts), seed=seed))

    def test_global_generators_are_neither_read_nor_moved(self):
        found = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            before = torch.get_rng_state()
            found.append(make().sample(2, seed=4))
            assert torch.equal(torch.get_rng_state(), before)
        assert_same(*found)

    def test_point_masses_do_not_move_and_have_no_draw(self, monkeypatch):
        q = weight([1.0, 0.0, 0.5], [3.0, 4.0, 5.0])
        samples = q.sample(50)["w"]
        assert samples[:, :2].unique(dim=0).tolist() == [[3.0, 0.0]]
        assert samples[:, 2].unique().tolist() == [0.0, 5.0]
        monkeypatch.setattr(noise, "normal", None)
        monkeypatch.setattr(noise, "normal_many", None)
        certain = weight([1.0, 0.0, 0.5], [3.0, 4.0, 0.0])
        assert certain.sample(2)["w"].tolist() == [[3.0, 0.0, 0.0]] * 2

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"count": 0}, "^count must be at least 1, got 0$"),
            ({"count": 1, "seed": -1}, r"^seed must be an integer in \[0, 2\*\*64\), got -1$"),
            ({"count": 1, "first": -1}, r"^sample must be an integer in \[0, 2\*\*28\), got -1$"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            make().sample(**arguments)


def surprise(p):
    return -math.log(p) if p else math.inf


class TestScores:
    @pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
    def test_log_prob(self, leading):
        q = make()
        count = math.prod(leading)
        samples = q.sample(count, seed=1)
        theta = {name: value.reshape((*leading, *q.mean[name].shape)) for name, value in samples.items()}
        expected = []
        for number in range(count):
            values = torch.cat([value[number].flatten() for value in samples.values()]).tolist()
            expected.append(
                -sum(surprise(1 - p if v == 0 else p) for v, (p, _) in zip(values, elements(q), strict=True))
            )
        found = q.log_prob(dict(reversed(theta.items())))
        assert found.dtype == torch.float64
        torch.testing.assert_close(found, torch.tensor(expected).double().reshape(leading), rtol=1e-6, atol=0.0)

    @pytest.mark.parametrize(
        ("value", "expected"),
        [
            ([2.0, 3.0, 0.0, 0.0], math.log(0.3)),
            ([0.0, 3.0, 0.0, 0.0], math.log(0.7)),
            ([2.0 + 1e-15, 3.0, 0.0, 0.0], -math.inf),
            ([1.0, 3.0, 0.0, 0.0], -math.inf),
            ([2.0, 0.0, 0.0, 0.0], -math.inf),
            ([2.0, 3.0, 4.0, 0.0], -math.inf),
            ([2.0, 3.0, 0.0, 1.0], -math.inf),
        ],
    )
    def test_log_prob_of_what_can_and_cannot_occur(self, value, expected):
        q = weight([0.3, 1.0, 0.0, 0.5], [2.0, 3.0, 4.0, 0.0])
        if value[0] > 2:
            value[0] = math.nextafter(2.0, 3.0)
        found = q.log_prob({"w": torch.tensor(value, dtype=torch.float64)}).item()
        assert found == pytest.approx(expected, rel=1e-14)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_log_prob_of_weights_in_another_dtype(self, dtype):
        q = weight([0.25, 0.5], [0.1, 0.7])
        theta = torch.tensor([0.1, 0.0], dtype=torch.float64).to(dtype)
        assert q.log_prob({"w": theta}).item() == pytest.approx(math.log(0.125), rel=1e-14)

    @pytest.mark.parametrize(
        ("theta", "message"),
        [
            ({"a": torch.zeros(2)}, "^theta must have the weights 'b', got none of that name$"),
            (
                {"a": torch.zeros(2), "b": torch.zeros(()), "c": torch.zeros(1)},
                "^theta must only have weights that the posterior has, got 'c'$",
            ),
            ({"a": torch.zeros(3), "b": torch.zeros(())}, r"^theta\['a'\] must end in the shape \(2,\), got \(3,\)$"),
        ],
    )
    def test_log_prob_errors(self, theta, message):
        with pytest.raises(ValueError, match=message):
            make({"a": (2,), "b": ()}).log_prob(theta)

    def test_entropy(self):
        q = make(dtype=torch.float64)
        expected = sum(p * surprise(p) + (1 - p) * surprise(1 - p) for p, _ in elements(q))
        assert q.entropy().item() == pytest.approx(expected, rel=1e-13)
        assert q.entropy().dtype == torch.float64
        certain = weight([0.5, 0.0, 1.0, 0.5], [1.0, 1.0, 2.0, 0.0])
        assert certain.entropy().item() == pytest.approx(math.log(2), rel=1e-15)

    @pytest.mark.parametrize("prior", [0.2, 0.5])
    def test_kl_divergence_from_a_probability(self, prior):
        q = make(dtype=torch.float64)
        expected = sum(p * math.log(p / prior) + (1 - p) * math.log((1 - p) / (1 - prior)) for p, _ in elements(q))
        assert q.kl_divergence(prior).item() == pytest.approx(expected, rel=1e-12)
        assert q.kl_divergence(prior).dtype == torch.float64

    def test_kl_divergence_from_a_posterior(self):
        q, other = make(dtype=torch.float64), make(seed=1, dtype=torch.float64)
        prior = BernoulliPosterior(dict(reversed(other.probability.items())), dict(reversed(q.scale.items())))
        same = BernoulliPosterior(other.probability, q.scale)
        pairs = zip(elements(q), elements(other), strict=True)
        expected = sum(p * math.log(p / p0) + (1 - p) * math.log((1 - p) / (1 - p0)) for (p, _), (p0, _) in pairs)
        assert q.kl_divergence(prior).item() == pytest.approx(expected, rel=1e-12)
        assert q.kl_divergence(same).item() == pytest.approx(expected, rel=1e-12)
        assert q.kl_divergence(q) == 0.0
        assert q.kl_divergence(other) == math.inf

    @pytest.mark.parametrize(
        ("ours", "prior", "expected"),
        [
            ((0.5, 1.0), (0.25, 1.0), 0.5 * math.log(2) + 0.5 * math.log(2 / 3)),
            ((0.5, 1.0), (0.25, 1.5), math.inf),
            ((0.5, 1.0), (1.0, 1.0), math.inf),
            ((0.5, 1.0), (0.0, 1.0), math.inf),
            ((0.5, 1.0), (0.5, 0.0), math.inf),
            ((1.0, 2.0), (0.25, 2.0), 0.0),  # a point mass that can occur
            ((0.0, 2.0), (0.25, 3.0), 0.0),
            ((0.5, 0.0), (0.25, 3.0), 0.0),
            ((1.0, 2.0), (0.25, 3.0), math.inf),
            ((1.0, 2.0), (1.0, 2.0), 0.0),
            ((1.0, 2.0), (1.0, 2.5), math.inf),
            ((1.0, 2.0), (0.0, 2.0), math.inf),
            ((0.0, 2.0), (1.0, 2.0), math.inf),
            ((0.0, 2.0), (0.0, 5.0), 0.0),
            ((0.0, 2.0), (1.0, 0.0), 0.0),
            ((1.0, 0.0), (0.0, 2.0), 0.0),
        ],
    )
    def test_kl_divergence_where_a_weight_is_certain(self, ours, prior, expected):
        q, p = (weight([pair[0], 0.4], [pair[1], 1.0]) for pair in (ours, prior))
        assert q.kl_divergence(p).item() == pytest.approx(expected, rel=1e-14, abs=1e-15)

    def test_kl_divergence_counts_random_weights_only(self):
        q = weight([1.0, 0.0, 0.5, 0.5], [2.0, 2.0, 0.0, 1.0])
        assert q.kl_divergence(0.25).item() == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3), rel=1e-14)

    def test_kl_divergence_is_the_mean_log_ratio_of_samples(self):
        shapes = {"a": (300,), "b": (5,)}
        q = make(shapes)
        prior = BernoulliPosterior(make(shapes, seed=1).probability, q.scale)
        samples = q.sample(500, seed=2)
        ratio = q.log_prob(samples) - prior.log_prob(samples)
        standard_error = ratio.std() / math.sqrt(500)
        assert abs(ratio.mean() - q.kl_divergence(prior)) < BOUND * standard_error
        assert standard_error < 0.01 * ratio.mean()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    def test_sums_are_in_float64(self, dtype):
        q = make(dtype=dtype)
        wide = q.to(dtype=torch.float64)
        theta = q.sample(2)
        assert torch.equal(q.log_prob(theta), wide.log_prob({n: t.double() for n, t in theta.items()}))
        assert torch.equal(q.entropy(), wide.entropy())
        assert torch.equal(q.kl_divergence(0.3), wide.kl_divergence(0.3))

    @pytest.mark.parametrize(
        "prior", [0, 0.0, 1.0, -0.5, math.nan, True, "half", ba.DiagonalGaussian.point_mass({"w": torch.ones(1)})]
    )
    def test_kl_divergence_needs_a_probability(self, prior):
        with pytest.raises(
            ValueError, match=r"^prior must be a probability in \(0, 1\) or a Bernoulli posterior, got "
        ):
            make().kl_divergence(prior)

    @pytest.mark.parametrize(
        ("shapes", "message"),
        [
            ({"a": (2,)}, "^prior must have the weights 'b', got none of that name$"),
            ({"a": (2,), "b": (), "c": ()}, "^prior must only have weights that the posterior has, got 'c'$"),
            ({"a": (2,), "b": (1,)}, r"^prior of 'b' must be of shape \(\), got \(1,\)$"),
        ],
    )
    def test_kl_divergence_needs_the_same_weights(self, shapes, message):
        with pytest.raises(ValueError, match=message):
            make({"a": (2,), "b": ()}).kl_divergence(make(shapes))


def test_to():
    q = make(lr=0.1)
    wide = q.to(dtype=torch.float64)
    assert_same(wide.tensors(), {name: tensor.double() for name, tensor in q.tensors().items()})
    assert wide.hyperparameters == {"lr": 0.1}
    assert_same(wide.to("cpu", torch.float32).tensors(), q.tensors())


class TestNetwork:
    @pytest.fixture
    def model(self):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))

    @pytest.fixture
    def q(self, model):
        """Random weights with a scale for every output unit, and biases trained without noise."""
        generator = torch.Generator().manual_seed(1)
        p, scale = {}, {}
        for name, value in model.named_parameters():
            random = name.endswith("weight")
            p[name] = torch.rand(value.shape, generator=generator) if random else torch.ones(value.shape)
            scale[name] = torch.randn(len(value), 1, generator=generator) if random else value.detach().clone()
        return BernoulliPosterior(p, scale)

    def test_inside_the_weights_are_the_sample(self, model, q):
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        samples = q.sample(4, seed=1)
        for number in (0, 3):
            with q.applied(model, number, seed=1):
                assert_same(dict(model.named_parameters()), {name: s[number] for name, s in samples.items()})
        with q.applied(model):
            assert_same(dict(model.named_parameters()), q.mean)
        assert_same(dict(model.named_parameters()), before)

    def test_predictions_are_those_of_the_samples_and_of_the_mean(self, model, q):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(2))
        samples = q.sample(20, seed=3)
        outputs = torch.stack(
            [torch.func.functional_call(model, {n: s[i] for n, s in samples.items()}, x) for i in range(20)]
        ).detach()
        likelihood = ba.Gaussian(noise_precision=4.0)
        found = ba.predict(model, q, x, likelihood=likelihood, mc_samples=20, seed=3)
        torch.testing.assert_close(found.mean, outputs.mean(0))
        torch.testing.assert_close(found.epistemic, outputs.var(0))
        found = ba.predict(model, q, x, likelihood=likelihood, method="mean")
        torch.testing.assert_close(found.mean, torch.func.functional_call(model, q.mean, x).detach())

    def test_the_linearized_predictive_is_refused(self, model, q):
        with pytest.raises(ValueError, match=r"^posterior must be a Gaussian over the weights for method='linearized'"):
            ba.predict(model, q, torch.ones(1, 3), likelihood=ba.Gaussian(1.0), method="linearized")


class TestFile:
    @settings(deadline=None, max_examples=25)
    @given(
        shape=st.lists(st.integers(0, 4), max_size=3),
        shared=st.integers(0, 7),
        dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    )
    def test_round_trip(self, tmp_path_factory, shape, shared, dtype):
        generator = torch.Generator().manual_seed(sum(shape))
        p = torch.rand(shape, generator=generator).to(dtype)
        scale = torch.randn([1 if shared >> i & 1 else n for i, n in enumerate(shape)], generator=generator).to(dtype)
        q = BernoulliPosterior(
            {"z": p, "a": p.T if p.ndim == 2 else p},
            {"z": scale, "a": scale.flatten()[:1].sum()},
            hyperparameters={"lr": 0.1},
        )
        path = tmp_path_factory.mktemp("any") / "q"
        q.save(path)
        loaded = ba.load_posterior(path)
        assert type(loaded) is BernoulliPosterior
        assert_same(loaded.tensors(), q.tensors())
        assert list(q.tensors()) == ["probability/z", "probability/a", "scale/z", "scale/a"]
        assert_same(loaded.sample(2, seed=1), q.sample(2, seed=1))
        assert loaded.hyperparameters == {"lr": 0.1}

    def test_of_other_tensors(self):
        with pytest.raises(KeyError, match="mean"):
            BernoulliPosterior.from_tensors({"mean/w": torch.zeros(1)}, {})


def exact(logit):
    """``p``, ``1 - p`` and their logarithms in high precision."""
    x = mpmath.mpf(logit)
    with mpmath.workdps(60):
        return (
            1 / (1 + mpmath.exp(-x)),
            1 / (1 + mpmath.exp(x)),
            -mpmath.log1p(mpmath.exp(-x)),
            -mpmath.log1p(mpmath.exp(x)),
        )


def exact_divergence(logit, prior):
    """``p log(p / p0) + (1 - p) log((1 - p) / (1 - p0))`` in high precision."""
    (p, q, log_p, log_q), (_, _, log_p0, log_q0) = exact(logit), exact(prior)
    with mpmath.workdps(60):
        return p * (log_p - log_p0) + q * (log_q - log_q0)


class TestDivergenceOfLogits:
    @pytest.mark.parametrize("prior", [0.0, -0.7, 3.0, -30.0, 200.0, -1e4])
    @pytest.mark.parametrize("logit", [0.0, -0.0, 0.5, -0.7, 3.0, -29.0, 30.0, 150.0, -300.0, 1e4, -1e4])
    def test_against_high_precision(self, logit, prior):
        for dtype, tolerance in ((torch.float64, 1e-14), (torch.float32, 1e-6)):
            logits = torch.tensor([[logit, logit]], dtype=dtype, requires_grad=True)
            prior_logit = torch.tensor(prior, dtype=dtype, requires_grad=True)
            a, b = logits[0, 0].item(), prior_logit.item()
            found = kl.bernoulli(logits, prior_logit)
            assert found.dtype == torch.float64
            assert found.shape == ()
            # Digits that the terms lose where they cancel, the largest being at most log 2 and as small as 1 - p.
            lost = tolerance * math.exp(-abs(a)) * (1 + abs(a - b)) + torch.finfo(dtype).tiny
            assert found.item() == pytest.approx(float(2 * exact_divergence(a, b)), rel=tolerance, abs=lost)
            assert kl.bernoulli(logits, prior).item() == found.item()
            found.backward()
            (p, q, _, _), (p0, q0, _, _) = exact(a), exact(b)
            slope, away = float(p * q * (a - b)), float(2 * (p0 * q - q0 * p))
            least = 1e4 * torch.finfo(dtype).tiny
            assert logits.grad.tolist() == [[pytest.approx(slope, rel=10 * tolerance, abs=least)] * 2]
            assert prior_logit.grad.item() == pytest.approx(away, rel=20 * tolerance, abs=least)

    @pytest.mark.parametrize("shape", [(), (4,), (3, 1), (3, 4)])
    def test_gradients(self, shape):
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
        b = torch.randn(shape, dtype=torch.float64, generator=generator, requires_grad=True)
        assert torch.autograd.gradcheck(kl.bernoulli, (a, b))
        assert torch.autograd.gradgradcheck(kl.bernoulli, (a, b))
        assert torch.autograd.gradcheck(lambda a: kl.bernoulli(a, 0.3), a)

    def test_mapped(self):
        generator = torch.Generator().manual_seed(0)
        a = torch.randn(5, 3, 4, generator=generator, requires_grad=True)
        b = torch.randn(5, generator=generator, requires_grad=True)
        weights = torch.arange(1.0, 6.0).double()
        mapped = torch.func.vmap(kl.bernoulli)(a, b)
        looped = torch.stack([kl.bernoulli(x, y) for x, y in zip(a, b, strict=True)])
        torch.testing.assert_close(mapped, looped, rtol=1e-6, atol=0.0)
        for found, expected in zip(
            torch.autograd.grad(mapped @ weights, (a, b)), torch.autograd.grad(looped @ weights, (a, b)), strict=True
        ):
            torch.testing.assert_close(found, expected)

    def test_is_that_of_the_posteriors(self):
        q = make(dtype=torch.float64)
        found = sum(kl.bernoulli(p.logit(), math.log(0.2 / 0.8)).item() for p in q.probability.values())
        assert found == pytest.approx(q.kl_divergence(0.2).item(), rel=1e-12)


def logits(seed=0, shapes=((3, 4), (5,), ()), dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=torch.float64).mul(2).sub(0.5).to(dtype) for s in shapes]


def share(tensors):
    flat = torch.cat([t.flatten() for t in tensors]).double()
    return flat.sigmoid().mean()


class TestEmpiricalBernoulli:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_the_divergence_from_the_mean_probability(self, dtype):
        values = logits(dtype=dtype)
        center = share(values).logit().item()
        expected = sum(float(exact_divergence(a, center)) for t in values for a in t.flatten().tolist())
        found = empirical.bernoulli(values)
        assert found.dtype == torch.float64
        assert found.shape == ()
        assert found.item() == pytest.approx(expected, rel=1e-12 if dtype == torch.float64 else 1e-6)

    def test_is_the_least_of_all_priors(self):
        values = logits(1)
        center = share(values).logit().item()
        least = empirical.bernoulli(values).item()
        around = [sum(kl.bernoulli(a, center + d).item() for a in values) for d in (-0.1, -1e-3, 0.0, 1e-3, 0.1)]
        assert around[2] == pytest.approx(least, rel=1e-12)
        assert min(around[1], around[3]) > least + 1e-7
        assert min(around[0], around[4]) > least + 1e-3

    def test_gradients(self):
        values = [a.requires_grad_() for a in logits(2)]
        assert torch.autograd.gradcheck(lambda *a: empirical.bernoulli(a), values)
        assert torch.autograd.gradgradcheck(lambda *a: empirical.bernoulli(a), values)
        found = torch.autograd.grad(empirical.bernoulli(values), values)
        center = share([a.detach() for a in values]).logit()
        for slope, a in zip(found, values, strict=True):
            torch.testing.assert_close(slope, torch.special.expit(a) * torch.special.expit(-a) * (a - center))

    @pytest.mark.parametrize("value", [-1e4, -100.0, -20.0, 0.0, 20.0, 100.0, 1e4])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_of_equal_logits_is_nothing(self, value, dtype):
        values = [torch.full((7, 3), value, dtype=dtype, requires_grad=True), torch.full((), value, dtype=dtype)]
        found = empirical.bernoulli(values)
        found.backward()
        # To rounding of what it is a difference of.
        size = 22 * (abs(value) + 1) * math.exp(-abs(value))
        assert abs(found.item()) <= 4 * torch.finfo(dtype).eps * size + 1e-40
        assert (
            values[0].grad.abs() <= 4 * torch.finfo(dtype).eps * math.exp(-abs(value)) * (abs(value) + 1) + 1e-40
        ).all()

    def test_of_certain_weights_that_differ(self):
        values = torch.tensor([1e4, 1e4, 1e4, -1e4], requires_grad=True)
        found = empirical.bernoulli([values])
        found.backward()
        assert found.item() == pytest.approx(4 * (0.75 * math.log(4 / 3) + 0.25 * math.log(4)), rel=1e-6)
        assert values.grad.tolist() == [0.0] * 4

    @settings(deadline=None, max_examples=25)
    @given(
        st.lists(st.lists(st.integers(1, 3), max_size=3), min_size=1, max_size=3),
        st.integers(1, 4),
        st.sampled_from([torch.float32, torch.float64]),
    )
    def test_mapped(self, shapes, count, dtype):
        stacked = [a.requires_grad_() for a in logits(3, [(count, *shape) for shape in shapes], dtype)]
        weights = torch.arange(1.0, count + 1).double()
        mapped = torch.func.vmap(lambda *a: empirical.bernoulli(a))(*stacked)
        looped = torch.stack([empirical.bernoulli([a[i] for a in stacked]) for i in range(count)])
        torch.testing.assert_close(mapped, looped, rtol=1e-5, atol=1e-5)
        pairs = zip(
            torch.autograd.grad(mapped @ weights, stacked), torch.autograd.grad(looped @ weights, stacked), strict=True
        )
        for found, expected in pairs:
            torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("values", [[], [torch.zeros(0, 3)]])
    def test_without_weights(self, values):
        with pytest.raises(ValueError, match="^logits must have at least one weight, got none$"):
            empirical.bernoulli(values)
