"""The diagonal Gaussian posterior: sampling, scores, pruning, use in a network, and its file."""

import copy
import itertools
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import safetensors
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributions import Independent, Normal
from torch.distributions import kl_divergence as torch_kl

import bayesadam as ba
from bayesadam import files, noise
from bayesadam.files import DamagedFile
from bayesadam.posterior import BernoulliPosterior, Mixture
from bayesadam.posterior.low_rank import LowRankGaussian
from bayesadam.posterior.partial import PartialGaussian

BOUND = 4.5
SHAPES = {"z.weight": (30, 4), "a": (), "m/bias": (5,)}  # not in alphabetic order


def make(shapes=SHAPES, seed=0, dtype=torch.float32, **hyperparameters):
    generator = torch.Generator().manual_seed(seed)
    mean = {name: torch.randn(shape, generator=generator).to(dtype) for name, shape in shapes.items()}
    variance = {name: torch.randn(shape, generator=generator).exp().to(dtype) for name, shape in shapes.items()}
    return ba.DiagonalGaussian(mean, variance, hyperparameters=hyperparameters)


def assert_same(a, b):
    """Two dicts of tensors are equal in names, their order, dtypes and every bit."""
    assert list(a) == list(b)
    for name, value in a.items():
        assert (value.dtype, value.shape) == (b[name].dtype, b[name].shape)
        assert value.contiguous().view(-1).view(torch.uint8).equal(b[name].contiguous().view(-1).view(torch.uint8))


def flat(tensors):
    return torch.cat([t.flatten() for t in tensors.values()])


class TestConstruction:
    def test_keeps_the_tensors(self):
        mean, variance = {"w": torch.zeros(3)}, {"w": torch.tensor([1.0, 0.0, 2.0])}
        q = ba.DiagonalGaussian(mean, variance)
        assert q.mean["w"] is mean["w"]
        assert q.variance["w"] is variance["w"]
        assert q.hyperparameters == {}

    def test_does_not_keep_the_dictionaries(self):
        mean, variance, hyperparameters = {"w": torch.zeros(3)}, {"w": torch.ones(3)}, {"lr": 0.1}
        q = ba.DiagonalGaussian(mean, variance, hyperparameters=hyperparameters)
        for dictionary in (mean, variance, hyperparameters):
            dictionary.clear()
        assert (list(q.mean), list(q.variance), q.hyperparameters) == (["w"], ["w"], {"lr": 0.1})

    def test_repr_and_size(self):
        q = make({"a": (100, 20), "b": ()})
        assert q.num_weights == 2001
        assert repr(q) == "DiagonalGaussian(2 tensors, 2,001 weights)"

    @pytest.mark.parametrize(
        ("mean", "variance", "message"),
        [
            ({}, {}, "^mean must have at least one weight tensor, got none$"),
            ({"a": [1.0]}, {"b": [1.0]}, r"^variance must have the names of mean \['a'\], got \['b'\]$"),
            ({"a": [1.0], "b": [1.0]}, {"b": [1.0], "a": [1.0]}, r"names of mean \['a', 'b'\], got \['b', 'a'\]$"),
            ({"a": [1.0]}, {"a": [1.0, 1.0]}, r"^variance of 'a' must be of shape \(1,\), got \(2,\)$"),
            ({"a": [1.0, math.inf]}, {"a": [1.0, 1.0]}, "^mean of 'a' must be finite, got inf or nan$"),
            ({"a": [math.nan]}, {"a": [1.0]}, "^mean of 'a' must be finite, got inf or nan$"),
            ({"a": [1.0, 1.0]}, {"a": [1.0, -2.0]}, "^variance of 'a' must be finite and not negative, got -2.0$"),
            ({"a": [1.0, 1.0]}, {"a": [1.0, math.inf]}, "^variance of 'a' must be finite and not negative, got inf$"),
            ({"a": [1.0, 1.0]}, {"a": [math.nan, 1.0]}, "^variance of 'a' must be finite and not negative, got nan$"),
        ],
    )
    def test_errors(self, mean, variance, message):
        mean, variance = ({n: torch.tensor(v) for n, v in part.items()} for part in (mean, variance))
        with pytest.raises(ValueError, match=message):
            ba.DiagonalGaussian(mean, variance)


@pytest.fixture(scope="module")
def standardised():
    """``(sample - mean) / sigma``, ``(8, 250_000)``, of a posterior over two tensors with variances of all sizes."""
    q = make({"a": (400, 500), "b": (50_000,)})
    return standardise(q, q.sample(8, seed=1))


def standardise(q, samples):
    return torch.cat(
        [((samples[n] - q.mean[n]).double() / q.variance[n].double().sqrt()).flatten(1) for n in q.mean], 1
    )


def mean_z(x):
    return x.mean().item() * math.sqrt(x.numel())


def variance_z(x):
    return (x.square().mean().item() - 1) * math.sqrt(x.numel() / 2)


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

    def test_samples_tensors_and_weights_are_independent(self, standardised):
        x = standardised
        assert unrelated(x[:-1], x[1:])
        assert unrelated(x[:, :-1], x[:, 1:])
        assert unrelated(x[:, :50_000], x[:, 200_000:])
        q = make({"a": (400, 500), "b": (50_000,)})
        for seed in (0, 2, 2**32 + 1):
            assert unrelated(x, standardise(q, q.sample(8, seed=seed)))

    def test_training_noise_is_another_stream(self, standardised):
        q = make({"a": (250_000,)})
        sample = standardise(q, q.sample(1, seed=3))[0]
        training = noise.normal(3, 0, 0, 0, (250_000,))
        assert unrelated(sample, training)
        assert not torch.isin(training, sample.float()).all()

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_is_the_mean_and_the_noise_of_seed_and_number(self, dtype):
        q = make(dtype=dtype)
        samples = q.sample(3, seed=5, first=7)
        assert list(samples) == list(q.mean)
        for index, (name, mean) in enumerate(q.mean.items()):
            assert samples[name].dtype == dtype
            for i in range(3):
                eps = noise.normal(5, 0, 7 + i, index, mean.shape, stream=noise.POSTERIOR).to(dtype)
                torch.testing.assert_close(samples[name][i], mean + q.variance[name].sqrt() * eps)

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

    def test_seeds_differ_and_the_default_is_zero(self):
        q = make()
        assert_same(q.sample(2), q.sample(2, seed=0))
        assert not torch.equal(q.sample(2)["z.weight"], q.sample(2, seed=1)["z.weight"])

    def test_point_masses_do_not_move(self):
        q = ba.DiagonalGaussian({"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([0.0, 1.0])})
        samples = q.sample(5)["w"]
        assert samples[:, 0].tolist() == [3.0] * 5
        assert samples[:, 1].unique().numel() == 5

    def test_is_independent_of_later_changes(self):
        q = make()
        samples, before = q.sample(2), copy.deepcopy(q)
        for sample in samples.values():
            sample.zero_()
        assert_same(q.tensors(), before.tensors())

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"count": 0}, "^count must be at least 1, got 0$"),
            ({"count": -2}, "^count must be at least 1, got -2$"),
            ({"count": 1, "seed": -1}, r"^seed must be an integer in \[0, 2\*\*64\), got -1$"),
            ({"count": 1, "seed": 2**64}, r"^seed must be an integer in \[0, 2\*\*64\), got 18446744073709551616$"),
            ({"count": 1, "first": -1}, r"^sample must be an integer in \[0, 2\*\*28\), got -1$"),
            ({"count": 2, "first": 2**28 - 1}, r"^sample must be an integer in \[0, 2\*\*28\), got 268435456$"),
        ],
    )
    def test_errors(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            make().sample(**arguments)


def torch_normal(q, name):
    mean, variance = q.mean[name].double(), q.variance[name].double()
    return Independent(Normal(mean, variance.sqrt()), mean.ndim)


class TestScores:
    @pytest.mark.parametrize("leading", [(), (3,), (2, 3)])
    def test_log_prob(self, leading):
        q = make()
        generator = torch.Generator().manual_seed(1)
        theta = {name: torch.randn((*leading, *mean.shape), generator=generator) for name, mean in q.mean.items()}
        expected = sum(torch_normal(q, name).log_prob(theta[name].double()) for name in q.mean)
        found = q.log_prob(dict(reversed(theta.items())))
        assert found.shape == leading
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=0.0)

    def test_log_prob_of_point_masses(self):
        q = make()
        pruned = q.prune(0.5)
        theta = {n: torch.where(pruned.variance[n] == 0, 0.0, m + 1.0) for n, m in q.mean.items()}
        random = flat(pruned.variance) > 0
        expected = Normal(flat(q.mean).double(), flat(q.variance).double().sqrt()).log_prob(flat(theta).double())
        assert pruned.log_prob(theta).item() == pytest.approx(expected[random].sum().item(), rel=1e-12)
        assert pruned.log_prob({n: t + 1.0 for n, t in theta.items()}) == -math.inf

    @pytest.mark.parametrize(
        ("theta", "message"),
        [
            ({"a": torch.zeros(2)}, "^theta must have the weights 'b', got none of that name$"),
            (
                {"a": torch.zeros(2), "b": torch.zeros(()), "c": torch.zeros(1)},
                "^theta must only have weights that the posterior has, got 'c'$",
            ),
            (
                {"a": torch.zeros(3), "b": torch.zeros(())},
                r"^theta\['a'\] must end in the shape \(2,\), got \(3,\)$",
            ),
            ({"a": torch.zeros(()), "b": torch.zeros(())}, r"^theta\['a'\] must end in the shape \(2,\), got \(\)$"),
        ],
    )
    def test_log_prob_errors(self, theta, message):
        with pytest.raises(ValueError, match=message):
            make({"a": (2,), "b": ()}).log_prob(theta)

    def test_entropy(self):
        q = make()
        expected = sum(torch_normal(q, name).entropy() for name in q.mean).item()
        assert q.entropy().item() == pytest.approx(expected, rel=1e-12)
        pruned = q.prune(0.5)
        left = flat(pruned.variance)
        expected = 0.5 * (2 * math.pi * math.e * left[left > 0].double()).log().sum().item()
        assert pruned.entropy().item() == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("precision", [0.3, 2])
    def test_kl_divergence_from_a_prior_precision(self, precision):
        q = make()
        scale = torch.tensor(precision, dtype=torch.float64).rsqrt()
        expected = sum(
            torch_kl(torch_normal(q, n), Independent(Normal(torch.zeros(m.shape).double(), scale), m.ndim))
            for n, m in q.mean.items()
        )
        assert q.kl_divergence(precision).item() == pytest.approx(expected.item(), rel=1e-12)

    def test_kl_divergence_from_a_posterior(self):
        q, prior = make(), make(seed=1)
        expected = sum(torch_kl(torch_normal(q, n), torch_normal(prior, n)) for n in q.mean).item()
        shuffled = ba.DiagonalGaussian(dict(reversed(prior.mean.items())), dict(reversed(prior.variance.items())))
        for p in (prior, shuffled):
            assert q.kl_divergence(p).item() == pytest.approx(expected, rel=1e-12)
        assert q.kl_divergence(q) == 0.0

    def test_kl_divergence_counts_random_weights_only(self):
        q = make()
        pruned = q.prune(0.25)
        one = ba.DiagonalGaussian({"w": flat(q.mean)}, {"w": flat(q.variance)})
        kept = flat(pruned.variance) > 0
        left = ba.DiagonalGaussian({"w": one.mean["w"][kept]}, {"w": one.variance["w"][kept]})
        assert pruned.kl_divergence(3.0).item() == pytest.approx(left.kl_divergence(3.0).item(), rel=1e-12)
        assert q.kl_divergence(pruned) == math.inf
        assert pruned.kl_divergence(pruned) == 0.0

    def test_kl_divergence_is_the_mean_log_ratio_of_samples(self):
        shapes = {"a": (300,), "b": (5,)}
        q, prior = make(shapes), make(shapes, seed=1)
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
        for found, expected in (
            (q.log_prob(theta), wide.log_prob(theta)),
            (q.entropy(), wide.entropy()),
            (q.kl_divergence(2.0), wide.kl_divergence(2.0)),
        ):
            assert found.dtype == torch.float64
            assert torch.equal(found, expected)

    @pytest.mark.parametrize("precision", [0, -1.0, math.inf, math.nan])
    def test_kl_divergence_needs_a_positive_precision(self, precision):
        with pytest.raises(
            ValueError, match=rf"^prior must be a positive, finite precision or a Gaussian posterior, got {precision}$"
        ):
            make().kl_divergence(precision)

    @pytest.mark.parametrize(
        "prior",
        [
            {"a": 1.0},
            None,
            "wide",
            torch.ones(2),
            ba.Mixture([ba.DiagonalGaussian.point_mass({"a": torch.ones(1)})]),
        ],
    )
    def test_kl_divergence_needs_a_number_or_a_gaussian(self, prior):
        with pytest.raises(ValueError, match="^prior must be a positive, finite precision or a Gaussian posterior, "):
            make().kl_divergence(prior)

    @pytest.mark.parametrize("two", [2, np.float32(2.0), torch.tensor(2.0)])
    def test_a_precision_is_any_number(self, two):
        assert make().kl_divergence(two) == make().kl_divergence(2.0)

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

    def test_signal_to_noise(self):
        q = ba.DiagonalGaussian(
            {"a": torch.tensor([3.0, -3.0, 0.0]), "b": torch.tensor([0.0, -2.0])},
            {"a": torch.tensor([4.0, 9.0, 1.0]), "b": torch.tensor([0.0, 0.0])},
        )
        found = q.signal_to_noise()
        assert {name: ratio.tolist() for name, ratio in found.items()} == {"a": [1.5, 1.0, 0.0], "b": [0.0, math.inf]}


class TestPruning:
    @settings(deadline=None)
    @given(st.floats(0, 1), st.integers(0, 5))
    def test_the_weakest_of_all_weights_are_zero(self, fraction, seed):
        q = make(seed=seed)
        pruned, before = q.prune(fraction), copy.deepcopy(q)
        gone = flat(pruned.variance) == 0
        assert gone.sum() == round(fraction * q.num_weights)
        assert torch.equal(flat(pruned.mean) == 0, gone)
        ratio = flat(q.signal_to_noise())
        assert not gone.any() or gone.all() or ratio[gone].max() <= ratio[~gone].min()
        assert torch.equal(flat(pruned.mean)[~gone], flat(q.mean)[~gone])
        assert torch.equal(flat(pruned.variance)[~gone], flat(q.variance)[~gone])
        assert_same(pruned.prune(fraction).tensors(), pruned.tensors())
        assert_same(q.tensors(), before.tensors())

    def test_the_threshold_is_global(self):
        ones = {"a": torch.ones(3), "b": torch.ones(4)}
        pruned = ba.DiagonalGaussian({"a": torch.full((3,), 0.1), "b": -torch.ones(4)}, ones).prune(3 / 7)
        assert {name: mean.tolist() for name, mean in pruned.mean.items()} == {"a": [0.0] * 3, "b": [-1.0] * 4}

    @pytest.mark.parametrize("fraction", [0.0, 0.3, 0.5, 1.0])
    def test_of_equal_weights_exactly_the_fraction_goes(self, fraction):
        shapes = {"a": (4,), "b": (2, 3)}
        ones = {name: torch.ones(shape) for name, shape in shapes.items()}
        pruned = ba.DiagonalGaussian(ones, ones).prune(fraction)
        assert (flat(pruned.mean) == 0).tolist() == [i < 10 * fraction for i in range(10)]
        assert_same(pruned.prune(fraction).tensors(), pruned.tensors())

    def test_pruned_weights_go_before_random_ones_and_other_point_masses_last(self):
        q = ba.DiagonalGaussian({"w": torch.tensor([5.0, 1.0, 0.0])}, {"w": torch.tensor([0.0, 1.0, 0.0])})
        assert q.prune(1 / 3).mean["w"].tolist() == [5.0, 1.0, 0.0]
        assert q.prune(2 / 3).mean["w"].tolist() == [5.0, 0.0, 0.0]

    def test_keeps_dtypes_and_hyperparameters(self):
        q = make(lr=0.1)
        q.mean["a"], q.variance["a"] = q.mean["a"].double(), q.variance["a"].double()
        pruned = q.prune(0.5)
        assert {n: m.dtype for n, m in pruned.mean.items()} == {n: m.dtype for n, m in q.mean.items()}
        assert pruned.hyperparameters == {"lr": 0.1, "pruned_fraction": 0.5}
        assert q.hyperparameters == {"lr": 0.1}

    @pytest.mark.parametrize("fraction", [-0.1, 1.1, math.nan])
    def test_errors(self, fraction):
        with pytest.raises(ValueError, match=rf"^fraction must be in \[0, 1\], got {fraction}$"):
            make().prune(fraction)


def test_to():
    q = make(lr=0.1)
    wide = q.to(dtype=torch.float64)
    assert_same(wide.tensors(), {name: tensor.double() for name, tensor in q.tensors().items()})
    assert wide.hyperparameters == {"lr": 0.1}
    assert {tensor.dtype for tensor in q.tensors().values()} == {torch.float32}
    assert_same(wide.to("cpu", torch.float32).tensors(), q.tensors())


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture
def q(model):
    return make({name: p.shape for name, p in model.named_parameters()}, seed=3)


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def ones_like(mean):
    return {name: torch.ones_like(value) for name, value in mean.items()}


def first(mean):
    return dict(itertools.islice(mean.items(), 1))


SHARING = {
    "diagonal": lambda mean: ba.DiagonalGaussian(mean, ones_like(mean)),
    "dense": lambda mean: ba.DenseGaussian(mean, torch.eye(sum(value.numel() for value in mean.values()))),
    "kronecker": lambda mean: ba.KroneckerGaussian(
        mean, ones_like(mean), {name: torch.eye(len(value)) for name, value in mean.items()}, {}
    ),
    "low rank": lambda mean: LowRankGaussian(
        mean, ones_like(mean), {name: torch.stack([value, -value]) for name, value in mean.items()}
    ),
    "partial": lambda mean: PartialGaussian(
        ba.DiagonalGaussian(first(mean), ones_like(first(mean))),
        {name: value for name, value in mean.items() if name not in first(mean)},
    ),
    "mixture": lambda mean: Mixture([ba.DiagonalGaussian(mean, ones_like(mean)) for _ in range(2)]),
    "Bernoulli": lambda mean: BernoulliPosterior(
        {name: torch.full_like(value, 0.5) for name, value in mean.items()}, mean
    ),
}


class TestApplied:
    def test_inside_the_weights_are_the_sample(self, model, q):
        before, pointers = weights(model), [p.data_ptr() for p in model.parameters()]
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        for seed in (0, 1):
            samples = q.sample(4, seed=seed)
            for number in (0, 3):
                with q.applied(model, number, seed=seed):
                    assert_same(weights(model), {name: s[number] for name, s in samples.items()})
                    assert [p.data_ptr() for p in model.parameters()] == pointers
                assert_same(weights(model), before)
        assert [p.data_ptr() for p in model.parameters()] == pointers
        assert_same(dict(model.named_buffers()), buffers)
        assert all(p.requires_grad and p.grad is None for p in model.parameters())

    def test_inside_the_weights_are_the_mean_without_a_number(self, model, q):
        with q.applied(model):
            assert_same(weights(model), q.mean)

    def test_the_posterior_is_not_written_to(self, model, q):
        before = copy.deepcopy(q)
        with q.applied(model), torch.no_grad():
            for p in model.parameters():
                p.zero_()
        assert_same(q.tensors(), before.tensors())

    @pytest.mark.parametrize("kind", SHARING)
    def test_a_posterior_made_of_the_weights_themselves(self, model, kind):
        q = SHARING[kind]({name: p.detach() for name, p in model.named_parameters()})
        apart = copy.deepcopy(q)
        before = weights(model)
        found = []
        for posterior in (q, apart):
            with posterior.draws(model) as put:
                for number in (0, 1, 1, None)[: 3 if kind == "mixture" else 4]:
                    put(number)
                    found.append(weights(model))
            assert_same(weights(model), before)
        assert_same(q.tensors(), apart.tensors())
        for one, other in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
            assert_same(one, other)
        assert q._apart_from(copy.deepcopy(model).parameters()) is q

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
    def test_the_weights_are_restored_whatever_happens_inside(self, model, q, error):
        before = weights(model)

        def interrupted():
            with q.applied(model, 0), torch.no_grad():
                model[0].weight.fill_(math.nan)
                raise error

        with pytest.raises(error):
            interrupted()
        assert_same(weights(model), before)

    def test_nested(self, model, q):
        with q.applied(model, 0):
            outer = weights(model)
            with q.applied(model, 1):
                assert_same(weights(model), {name: s[1] for name, s in q.sample(2).items()})
            assert_same(weights(model), outer)

    def test_gradients_are_those_at_the_sample(self, model, q):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
        expected = torch.func.grad(lambda w: torch.func.functional_call(model.eval(), w, x).square().sum())(
            {name: s[2] for name, s in q.sample(3).items()}
        )
        with q.applied(model, 2):
            model(x).square().sum().backward()
        torch.testing.assert_close({name: p.grad for name, p in model.named_parameters()}, expected)

    def test_autocast_does_not_reuse_the_weights_of_before(self, model, q):
        model, x = model.eval(), torch.ones(1, 3)

        def outputs():
            yield model(x)
            for number in (0, 1):
                with q.applied(model, number):
                    yield model(x)
            yield model(x)

        with torch.autocast("cpu", torch.bfloat16):
            found = torch.cat([*outputs()])
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
            expected = torch.cat([*outputs()])
        assert torch.equal(found, expected)
        assert len(found.unique(dim=0)) == 3

    def test_of_another_dtype(self, model, q):
        wide = q.to(dtype=torch.float64)
        model.to(torch.bfloat16)
        before = weights(model)
        with wide.applied(model, 1):
            assert_same(weights(model), {n: s[1].to(torch.bfloat16) for n, s in wide.sample(2).items()})
        assert_same(weights(model), before)

    @pytest.mark.parametrize("number", [None, 1])
    def test_on_another_device(self, model, q, number):
        with q.applied(model.to("meta"), number):  # which any machine has; only copies reach it from the CPU
            assert all(p.is_meta for p in model.parameters())

    def test_of_other_strides(self, model, q):
        model[0].weight = nn.Parameter(torch.zeros(3, 4).T)
        with q.applied(model, 1):
            assert_same(weights(model), {name: s[1] for name, s in q.sample(2).items()})
            assert model[0].weight.stride() == (1, 4)

    def test_large_tensors_of_several_blocks(self):
        model = nn.Linear(noise.BLOCK // 100, 230)
        q = make({name: p.shape for name, p in model.named_parameters()})
        with q.applied(model, 3, seed=2):
            for index, (name, value) in enumerate(weights(model).items()):
                eps = noise.normal(2, 0, 3, index, value.shape, stream=noise.POSTERIOR)
                torch.testing.assert_close(value, q.mean[name] + q.variance[name].sqrt() * eps)

    def test_tied_weights_are_written_once(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        q = make({name: p.shape for name, p in model.named_parameters()})
        assert list(q.mean) == ["0.weight", "0.bias", "1.bias"]
        with q.applied(model, 0):
            assert torch.equal(model[1].weight, q.sample(1)["0.weight"][0])

    def test_frozen_parameters_may_be_left_out_or_covered(self, model, q):
        model[1].requires_grad_(False)
        before = weights(model)
        del q.mean["1.weight"], q.variance["1.weight"]
        with q.applied(model, 0):
            assert torch.equal(model[1].weight, before["1.weight"])
            assert torch.equal(model[1].bias, q.sample(1)["1.bias"][0])

    def test_match_gives_the_parameters_in_the_order_of_the_posterior(self, model, q):
        reverse = ba.DiagonalGaussian(dict(reversed(q.mean.items())), dict(reversed(q.variance.items())))
        found = reverse.match(model)
        assert list(found) == list(reversed(q.mean))
        assert all(p is found[name] for name, p in model.named_parameters())

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                lambda shapes: shapes.update({"2.scale": (1,), "3.scale": (1,)}),
                "^the model must have a parameter '2.scale' as the posterior does, got none of that name$",
            ),
            (
                lambda shapes: shapes.update({"0.bias": (5,), "2.bias": (6,)}),
                r"^the model's parameter '0.bias' must be of the posterior's shape \(5,\), got \(4,\)$",
            ),
            (
                lambda shapes: (shapes.pop("1.bias"), shapes.pop("2.bias")),
                "^the posterior must cover the model's trainable parameter '1.bias', got no such name$",
            ),
        ],
    )
    def test_another_model_is_refused_by_its_first_difference(self, model, change, message):
        shapes, before = {name: p.shape for name, p in model.named_parameters()}, weights(model)
        change(shapes)
        with pytest.raises(ValueError, match=message), make(shapes).applied(model, 0):
            pass
        assert_same(weights(model), before)

    def test_a_bad_number_changes_nothing(self, model, q):
        before = weights(model)
        with pytest.raises(ValueError, match="^sample must be an integer in .*, got -1$"), q.applied(model, -1):
            pass
        assert_same(weights(model), before)


HYPERPARAMETERS = {"method": "vadam", "lr": 1e-3, "betas": [0.9, 0.999], "nested": {"é": None, "flag": True}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "q.safetensors"


class TestFile:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
    def test_round_trip(self, path, dtype):
        q = make({**SHAPES, "empty": (0, 3)}, dtype=dtype, **HYPERPARAMETERS)
        q.save(path)
        loaded = ba.load_posterior(str(path))
        assert type(loaded) is ba.DiagonalGaussian
        assert_same(loaded.mean, q.mean)
        assert_same(loaded.variance, q.variance)
        assert_same(loaded.sample(3, seed=1), q.sample(3, seed=1))
        assert loaded.hyperparameters == HYPERPARAMETERS

    @settings(deadline=None)
    @given(
        names=st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=6, unique=True),
        values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=4, max_size=4),
    )
    def test_round_trip_of_any_names_and_values(self, tmp_path_factory, names, values):
        assume(all(names))
        value = torch.tensor(values).view(2, 2)
        q = ba.DiagonalGaussian({n: value.clone() for n in names}, {n: value.abs() for n in names})
        path = tmp_path_factory.mktemp("any") / "q"
        q.save(path)
        assert_same(ba.load_posterior(path).tensors(), q.tensors())

    def test_tensors_that_share_memory_or_are_not_contiguous(self, path):
        buffer, shared = torch.arange(12.0), torch.ones(4)
        mean = {"a": buffer[:4], "b": buffer[2:6], "c": buffer[::3], "d": shared[:1].expand(4)}
        q = ba.DiagonalGaussian(mean, dict.fromkeys(mean, shared))
        q.save(path)
        assert_same(ba.load_posterior(path).tensors(), q.tensors())

    def test_parameters_that_require_gradients(self, path):
        q = ba.DiagonalGaussian({"w": nn.Parameter(torch.ones(2))}, {"w": torch.ones(2)})
        q.save(path)
        assert not ba.load_posterior(path).mean["w"].requires_grad

    def test_is_plain_safetensors(self, path):
        q = make(**HYPERPARAMETERS)
        q.save(path)
        stored = load_file(path)
        assert_same({name: stored[name] for name in q.tensors()}, q.tensors())
        assert set(stored) == {f"{kind}/{name}" for kind in ("mean", "variance") for name in SHAPES}
        with safetensors.safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["bayesadam"])
        assert len(header.pop("digest")) == 64
        assert header == {
            "version": 1,
            "kind": "DiagonalGaussian",
            "tensors": list(q.tensors()),
            "hyperparameters": HYPERPARAMETERS,
        }

    def test_numbers_and_arrays_of_other_libraries_are_hyperparameters(self, path):
        """Constructors take them, so that a training run must not be lost to them at the end."""
        given = {
            "num_data": np.int64(6),
            "prior_precision": np.float32(0.5),
            "scale": torch.tensor(2.0),
            "flag": np.bool_(True),
            "nested": {"betas": [torch.tensor(0.5), np.float64(0.25)], "each": torch.tensor([1.0, 2.0])},
        }
        make(**given).save(path)
        assert ba.load_posterior(path).hyperparameters == {
            "num_data": 6,
            "prior_precision": 0.5,
            "scale": 2.0,
            "flag": True,
            "nested": {"betas": [0.5, 0.25], "each": [1.0, 2.0]},
        }

    @pytest.mark.parametrize(
        "find",
        [
            lambda m, opt: opt.posterior(),
            lambda m, opt: opt.posterior().prune(np.float32(0.5)),
            lambda m, opt: ba.ensemble([m], hyperparameters={"epochs": np.int64(3)}),
        ],
    )
    def test_whatever_found_it_with_numbers_of_numpy(self, path, find):
        model = torch.nn.Linear(2, 1)
        opt = ba.Vadam(model.named_parameters(), num_data=np.int64(6), prior_precision=np.float32(0.5))
        with opt.sampled_params():
            model(torch.ones(6, 2)).mean().backward()
        opt.step()
        q = find(model, opt)
        q.save(path)
        assert ba.load_posterior(path).hyperparameters == q.hyperparameters

    @pytest.mark.parametrize("value", [torch.tensor(1j), {(1, 2): 3}, [{1}]])
    def test_what_json_cannot_say_is_named(self, path, value):
        with pytest.raises(TypeError, match="^hyperparameters must be JSON values, got |^keys must be str"):
            make(lr=0.1, found=value).save(path)
        assert not path.exists()

    def test_a_new_process_loads_it_without_pickle(self, path):
        q = make()
        q.save(path)
        program = (
            "import pickle, sys, torch, bayesadam as ba\n"
            "pickle.load = pickle.loads = pickle.Unpickler = torch.load = None\n"
            "samples = ba.load_posterior(sys.argv[1]).sample(2, seed=6)\n"
            "print({name: sample.tolist() for name, sample in samples.items()})"
        )
        found = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == str({name: sample.tolist() for name, sample in q.sample(2, seed=6).items()})

    def test_saving_again_replaces(self, path):
        make().save(path)
        make(seed=1).save(path)
        assert_same(ba.load_posterior(path).tensors(), make(seed=1).tensors())
        assert os.listdir(path.parent) == [path.name]


class TestFailingWrites:
    MESSAGE = "^hyperparameters must be JSON values, got <object .*>$"

    @pytest.mark.parametrize("exists", [False, True])
    def test_a_hyperparameter_that_is_no_json(self, path, exists):
        self.check(path, exists, make(thing=object()), TypeError, self.MESSAGE)

    @pytest.mark.parametrize("exists", [False, True])
    @pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt("stop")])
    @pytest.mark.parametrize("call", [(os, "fsync"), (Path, "replace")], ids=["fsync", "replace"])
    def test_an_interruption_before_the_file_is_complete(self, path, exists, error, call):
        self.check(path, exists, make(), type(error), "No space left on device|stop", (call, error))

    def check(self, path, exists, q, error, message, failing=None):
        old = make(seed=9)
        if exists:
            old.save(path)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=message):
            if failing:
                patch.setattr(*failing[0], Mock(side_effect=failing[1]))
            q.save(path)
        assert os.listdir(path.parent) == [path.name] * exists
        if exists:
            assert_same(ba.load_posterior(path).tensors(), old.tensors())

    @pytest.mark.parametrize("folder", ["missing", "a file"])
    def test_a_folder_that_cannot_be_written_to(self, tmp_path, folder):
        (tmp_path / "a file").write_text("text")
        path = tmp_path / folder / "q.safetensors"
        with pytest.raises(OSError, match="No such file or directory|Not a directory") as error:
            make().save(path)
        assert repr(str(path)) in str(error.value)
        assert os.listdir(tmp_path) == ["a file"]

    def test_a_folder_of_that_name(self, path):
        path.mkdir()
        with pytest.raises(OSError, match=path.name):
            make().save(path)
        assert os.listdir(path.parent) == [path.name]


FOREIGN = "^the posterior file must be what this version of bayesadam wrote, got "
INVALID = "^the posterior file must hold a valid DiagonalGaussian, got "


def header(**changes):
    tensors = {"mean/w": torch.zeros(3), "variance/w": torch.ones(3)}
    fields = {"version": 1, "kind": "DiagonalGaussian", "tensors": list(tensors), "hyperparameters": {}}
    return tensors, json.dumps({**fields, **changes})


def without(field):
    tensors, text = header()
    return tensors, json.dumps({name: value for name, value in json.loads(text).items() if name != field})


def raw(text):
    return header()[0], text


def save_with_digest(tensors, text, path):
    """A file whose digest is right, if its header says something, whatever that is."""
    try:
        fields = json.loads(text)
        fields["digest"] = files._digest(fields, {name: tensors[name] for name in fields["tensors"]})
        text = json.dumps(fields)
    except (ValueError, TypeError, KeyError):
        pass
    save_file(tensors, path, {"bayesadam": text})


class TestBadFiles:
    def refuse(self, path, message, error=ValueError):
        with pytest.raises(error, match=message) as caught:
            ba.load_posterior(path)
        assert repr(str(path)) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_the_helper_makes_a_good_file(self, path):
        tensors, text = header()
        save_with_digest(tensors, text, path)
        assert_same(ba.load_posterior(path).tensors(), tensors)

    def test_missing(self, path):
        with pytest.raises(FileNotFoundError, match=str(path)):
            ba.load_posterior(path)

    def test_a_folder(self, tmp_path):
        with pytest.raises((OSError, DamagedFile)):
            ba.load_posterior(tmp_path)

    def test_truncated_anywhere(self, path):
        make().save(path)
        content = path.read_bytes()
        for length in [*range(0, len(content), 37), len(content) - 1]:
            path.write_bytes(content[:length])
            self.refuse(path, FOREIGN)

    @pytest.mark.parametrize("content", [b"hello world, " * 100, b"\x00" * 1000, b"\x80\x02}q\x00."])
    def test_not_safetensors(self, path, content):
        path.write_bytes(content)
        self.refuse(path, FOREIGN)

    def test_a_torch_checkpoint(self, path):
        torch.save({"w": torch.zeros(3)}, path)
        self.refuse(path, FOREIGN)

    @pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
    def test_other_safetensors(self, path, metadata):
        save_file({"w": torch.zeros(3)}, path, metadata)
        self.refuse(path, FOREIGN)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (raw(""), FOREIGN),
            (raw("{"), FOREIGN),
            (raw("[]"), FOREIGN),
            (raw("3"), FOREIGN),
            (without("version"), FOREIGN + r".* \('version'\)$"),
            (without("kind"), FOREIGN),
            (without("tensors"), FOREIGN),
            (without("hyperparameters"), FOREIGN),
            (header(version="1"), FOREIGN + r".* \(its version is '1', not 1\)$"),
            (header(version=2), FOREIGN + r".* \(its version is 2, not 1\)$"),
            (header(tensors=3), FOREIGN),
            (header(tensors=["mean/w", "variance/x"]), FOREIGN),
            (header(hyperparameters=3), FOREIGN),
            (header(hyperparameters=[1]), FOREIGN),
            (
                header(kind="Dense"),
                r"^the posterior file must be of a kind in \['BernoulliPosterior', 'Dense.*\], got 'Dense' in ",
            ),
            (
                header(kind=["x"]),
                r"^the posterior file must be of a kind in \['BernoulliPosterior', 'Dense.*\], got .*x.* in ",
            ),
            (header(tensors=["mean/w"]), INVALID + r".*variance must have the names of mean \['w'\], got \[\]\)$"),
            (header(tensors=[]), INVALID + r".*mean must have at least one weight tensor, got none\)$"),
        ],
    )
    def test_damaged_headers(self, path, content, message):
        tensors, text = content
        save_with_digest(tensors, text, path)
        self.refuse(path, message)

    @pytest.mark.parametrize(
        ("tensors", "message"),
        [
            ({"mean/w": [0.0], "variance/w": [-1.0]}, r"variance of 'w' must be finite and not negative, got -1.0\)$"),
            ({"mean/w": [math.nan], "variance/w": [1.0]}, r"mean of 'w' must be finite, got inf or nan\)$"),
            ({"mean/w": [0.0], "variance/w": [1.0, 1.0]}, r"variance of 'w' must be of shape \(1,\), got \(2,\)\)$"),
            ({"mean/w": [0.0], "variance/w": [1.0], "scale/w": [1.0]}, r"'scale'\)$"),
        ],
    )
    def test_damaged_tensors(self, path, tensors, message):
        tensors = {name: torch.tensor(value) for name, value in tensors.items()}
        save_with_digest(tensors, header(tensors=list(tensors))[1], path)
        self.refuse(path, INVALID + ".*" + message)
