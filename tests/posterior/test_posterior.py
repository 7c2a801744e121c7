"""The diagonal Gaussian posterior: sampling, pruning, use in a network, and files."""

import json
import math
import os

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import nn

import bayesadam as ba
from bayesadam import noise
from posterior.kinds import BOUND, SHAPES, assert_same, diagonal, flat, means, weights


def make(shapes=SHAPES, seed=0, **hyperparameters):
    return diagonal(means(shapes, seed, torch.float32), seed, **hyperparameters)


class TestSampling:
    def test_moments_and_independence(self):
        """Two million standardised draws: an error of one percent of the variance would be found."""
        q = make({"a": (400, 500), "b": (50_000,)})

        def standardised(seed):
            samples, std = q.sample(8, seed=seed), {n: v.double().sqrt() for n, v in q.variance.items()}
            return torch.cat([((samples[n] - m).double() / std[n]).flatten(1) for n, m in q.mean.items()], 1)

        x, other = standardised(1), standardised(2**32 + 1)
        assert abs(x.mean()) * math.sqrt(x.numel()) < BOUND
        assert abs(x.square().mean() - 1) < BOUND * math.sqrt(2 / x.numel()) < 0.01
        training = torch.stack([noise.normal(1, 0, number, 0, (200_000,)) for number in range(8)])
        for a, b in (
            (x[:-1], x[1:]),  # samples
            (x[:, :-1], x[:, 1:]),  # weights
            (x[:, :50_000], x[:, 200_000:]),  # tensors
            (x, other),  # seeds
            (x[:, :200_000], training),
        ):
            assert abs((a * b).mean()) * math.sqrt(a.numel()) < BOUND

    def test_follows_changes_in_place(self):
        q = ba.DiagonalGaussian.point_mass({"weight": torch.ones(1, 2), "bias": torch.ones(1)})
        q.variance.update({name: value.clone() for name, value in q.variance.items()})
        model, x, likelihood = nn.Linear(2, 1), torch.ones(3, 2), ba.Gaussian(1.0)
        assert not ba.predict(model, q, x, likelihood=likelihood).epistemic.any()
        q.variance["weight"].fill_(1.0)
        assert (ba.predict(model, q, x, likelihood=likelihood).epistemic > 0).all()
        assert q.sample(2)["weight"].std() > 0

    def test_is_the_mean_and_the_noise_of_seed_and_number(self):
        q = make()
        samples = q.sample(3, seed=5, first=7)
        for index, (name, mean) in enumerate(q.mean.items()):
            for i in range(3):
                eps = noise.normal(5, 0, 7 + i, index, mean.shape, stream=noise.POSTERIOR)
                torch.testing.assert_close(samples[name][i], mean + q.variance[name].sqrt() * eps)

    def test_numbers_end_where_those_of_the_noise_do(self):
        with pytest.raises(ValueError, match=r"^sample must be an integer in \[0, 2\*\*28\), got 268435456$"):
            make().sample(2, first=2**28 - 1)


@pytest.mark.parametrize("two", [2, np.float32(2.0), torch.tensor(2.0)])
def test_a_precision_is_any_number(two):
    assert make().kl_divergence(two) == make().kl_divergence(2.0)


def test_signal_to_noise():
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
        pruned, before = q.prune(fraction), {name: value.clone() for name, value in q.tensors().items()}
        gone = flat(pruned.variance) == 0
        assert gone.sum() == round(fraction * q.num_weights)
        assert torch.equal(flat(pruned.mean) == 0, gone)
        ratio = flat(q.signal_to_noise())
        assert not gone.any() or gone.all() or ratio[gone].max() <= ratio[~gone].min()
        assert torch.equal(flat(pruned.mean)[~gone], flat(q.mean)[~gone])
        assert torch.equal(flat(pruned.variance)[~gone], flat(q.variance)[~gone])
        assert_same(pruned.prune(fraction).tensors(), pruned.tensors())
        assert_same(q.tensors(), before)

    @pytest.mark.parametrize("fraction", [0.3, 1.0])
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


@pytest.fixture
def model():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


@pytest.fixture
def q(model):
    return make({name: p.shape for name, p in model.named_parameters()}, seed=3)


class TestApplied:
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
            ({"2.scale": (1,), "3.scale": (1,)}, "^the model must have a parameter '2.scale' as the posterior does"),
            (
                {"0.bias": (5,), "2.bias": (6,)},
                r"^the model's parameter '0.bias' must be of the posterior's shape \(5,",
            ),
            ({"1.bias": None, "2.bias": None}, "^the posterior must cover the model's trainable parameter '1.bias'"),
        ],
    )
    def test_another_model_is_refused_by_its_first_difference(self, model, change, message):
        shapes, before = {**{name: p.shape for name, p in model.named_parameters()}, **change}, weights(model)
        q = make({name: shape for name, shape in shapes.items() if shape is not None})
        with pytest.raises(ValueError, match=message), q.applied(model, 0):
            pass
        assert_same(weights(model), before)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "q.safetensors"


class TestFile:
    def test_tensors_of_any_name_that_share_memory_or_are_not_contiguous(self, path):
        buffer, shared = torch.arange(12.0), torch.ones(4)
        mean = {"a": buffer[:4], "b/é": buffer[2:6], " ": buffer[::3], "\n": shared[:1].expand(4)}
        q = ba.DiagonalGaussian(mean, dict.fromkeys(mean, shared))
        q.save(path)
        assert_same(ba.load_posterior(path).tensors(), q.tensors())

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

    @pytest.mark.parametrize("value", [torch.tensor(1j), {(1, 2): 3}, [{1}]])
    def test_what_json_cannot_say_is_refused(self, path, value):
        with pytest.raises(TypeError):
            make(lr=0.1, found=value).save(path)
        assert not path.exists()
        make().save(path)
        with pytest.raises(TypeError):
            make(seed=1, found=value).save(path)
        assert_same(ba.load_posterior(path).tensors(), make().tensors())


def header(**changes):
    tensors = ["mean/w", "variance/w"]
    fields = {"format_version": 1, "kind": "DiagonalGaussian", "tensors": tensors, "hyperparameters": {}}
    return json.dumps({**fields, **changes})


class TestBadFiles:
    """Whatever is wrong with a file, one line says so and names it."""

    def refuse(self, path, reason=""):
        with pytest.raises(ValueError, match=f"^the posterior file must .*{reason}") as caught:
            ba.load_posterior(path)
        assert repr(str(path)) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_missing_or_a_folder(self, tmp_path):
        for missing in (tmp_path / "missing", tmp_path):
            with pytest.raises(OSError, match=str(missing)):
                ba.load_posterior(missing)

    def test_other_files(self, path):
        for content in (b"hello world, " * 100, b"\x00" * 1000, b"\x80\x02}q\x00."):
            path.write_bytes(content)
            self.refuse(path)
        torch.save({"w": torch.zeros(3)}, path)
        self.refuse(path)
        save_file({"w": torch.zeros(3)}, path)
        self.refuse(path, "another program wrote it")

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", header(kind="Dense"), header(tensors=3), header(tensors=["mean/w"])]
    )
    def test_damaged_headers(self, path, text):
        tensors = {"mean/w": torch.zeros(3), "variance/w": torch.ones(3)}
        save_file(tensors, path, {"bayesadam.posterior": text})
        self.refuse(path)

    def test_tensors_that_are_no_posterior(self, path, monkeypatch):
        tensors = {"mean/w": torch.zeros(1), "variance/w": -torch.ones(1)}
        monkeypatch.setattr(ba.DiagonalGaussian, "tensors", lambda q: tensors)
        make().save(path)
        self.refuse(path)

    def test_a_folder_that_cannot_be_written_to(self, path):
        path.write_text("text")
        for name in (path / "q", path.parent / "missing" / "q"):
            with pytest.raises(OSError, match=str(name)):
                make().save(name)
        assert os.listdir(path.parent) == [path.name]
