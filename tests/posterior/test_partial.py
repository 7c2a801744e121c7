"""The Gaussian over some tensors while the others are fixed: against the dense one with zeros, and its file."""

import pytest
import torch

import bayesadam as ba
from bayesadam.posterior.partial import PartialGaussian
from bayesadam.predictive.batches import draws_in_eval_mode
from posterior.kinds import SHAPES, assert_same, close, covariance, dense, diagonal, draw, partial

RANDOM = ["z.weight", "empty"]
KINDS = pytest.mark.parametrize("kind", [dense, diagonal])


def whole(q):
    """The same distribution as a dense one, with zeros."""
    return ba.DenseGaussian(q.mean, covariance(q))


@KINDS
class TestDistribution:
    def test_is_the_random_part_in_the_order_of_the_model(self, kind):
        q = partial(kind)(lr=0.1)
        assert list(q.mean) == list(q.variance) == list(SHAPES)
        assert list(q.fixed) == ["a", "m/bias"]
        assert q.mean["a"] is q.fixed["a"]
        assert repr(q) == f"PartialGaussian({q.random!r}, 4 weights fixed)"
        assert q.hyperparameters == {"lr": 0.1}
        assert list(PartialGaussian(kind(), {"first": draw(2)}).mean) == [*SHAPES, "first"]
        draws, inner = q.sample(5, seed=3, first=2), q.random.sample(5, seed=3, first=2)
        assert_same({name: draws[name] for name in RANDOM}, inner)
        for name, value in q.fixed.items():
            assert torch.equal(draws[name], value.expand(5, *value.shape))

    def test_scale_of_some_names_in_any_order(self, kind):
        q = partial(kind)()
        for names in (["m/bias", "z.weight", "a"], ["a", "m/bias"], ["z.weight"]):
            found, expected = q._scale(names), whole(q)._scale(names)
            found = found if found.ndim == 2 else found.diag()
            close(found @ found.T, expected @ expected.T)

    def test_signal_to_noise(self, kind):
        q = partial(kind)()
        expected = whole(q).signal_to_noise()
        for name, value in q.signal_to_noise().items():
            close(value, expected[name])

    @pytest.mark.parametrize("fraction", [0.0, 0.25, 0.9, 1.0])
    @pytest.mark.parametrize("by", ["signal_to_noise", "magnitude"])
    def test_pruning_is_that_of_the_whole(self, kind, fraction, by):
        q = partial(kind)(lr=0.1)
        pruned, expected = q.prune(fraction, by=by), whole(q).prune(fraction, by=by)
        assert isinstance(pruned, PartialGaussian)
        assert_same(pruned.mean, expected.mean)
        close(covariance(pruned), expected.covariance)
        assert pruned.hyperparameters == {"lr": 0.1, "pruned_fraction": fraction}


def test_what_is_random_is_pruned_first():
    q = partial(dense)()
    assert_same(q.prune(q.random.num_weights / q.num_weights).fixed, q.fixed)
    assert not q.prune(1.0).fixed["m/bias"].any()


def test_fixed_weights_take_no_memory_but_their_values():
    q = PartialGaussian(dense(), {"big": torch.zeros(1000, 1000)})
    assert q.variance["big"].untyped_storage().nbytes() == 4
    assert q.kl_divergence(2.0).isfinite()
    with pytest.raises(ValueError, match="^names must have at most 10,000 weights for a matrix, got 1,000,024$"):
        q._scale(q.mean)
    assert PartialGaussian(diagonal(), {"big": torch.zeros(1000, 1000)})._scale(["big"]).shape == (1_000_000,)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: {**t, "other/x": torch.zeros(1)},
        lambda t: {k: v for k, v in t.items() if not k.endswith("scale_tril")},
        lambda t: {**t, "random/DiagonalGaussian/mean/q": torch.zeros(1)},
        lambda t: {k: v for k, v in t.items() if k.startswith("fixed/")},
        lambda t: {k.replace("DenseGaussian", "Cauchy"): v for k, v in t.items()},
    ],
)
def test_damaged_files(spoil, tmp_path, monkeypatch):
    q = partial(dense)()
    stored = spoil(q.tensors())
    monkeypatch.setattr(PartialGaussian, "tensors", lambda self: stored)
    q.save(tmp_path / "q")
    with pytest.raises(ValueError, match="^the posterior file must "):
        ba.load_posterior(tmp_path / "q")


class Tripled(torch.nn.Linear):
    """Computes with three times its weight in evaluation mode, and restores the weight up to rounding."""

    def train(self, mode=True):
        with torch.no_grad():
            if mode != self.training:
                self.weight.copy_(self.weight / 3.0 if mode else self.weight * 3.0)
        return super().train(mode)


@pytest.mark.parametrize("merges", [False, True])
def test_fixed_weights_are_written_once_unless_modules_merge_them(merges):
    """They have their values in every sample, whatever the network has before, to which it returns."""
    first = Tripled(3, 40) if merges else torch.nn.Linear(3, 40)
    network = torch.nn.Sequential(first, torch.nn.Linear(40, 2))
    before = {name: value.detach().clone() for name, value in network.named_parameters()}
    means = {name: draw(*value.shape, seed=5).float() for name, value in before.items()}
    names = ["1.weight", "1.bias"]
    random = ba.DiagonalGaussian({n: means[n] for n in names}, {n: torch.ones_like(means[n]) for n in names})
    q = PartialGaussian(random, {n: value for n, value in means.items() if n not in names}, order=list(means))
    expected = q.mean["0.weight"] * 3.0 if merges else q.mean["0.weight"]
    samples, writes = q.sample(20, seed=3), []
    with draws_in_eval_mode(network, q, 3) as put:
        for number in range(20):
            put(number)
            writes.append(network[0].bias._version)
            assert torch.equal(network[0].weight, expected)
            assert torch.equal(network[1].bias, samples["1.bias"][number])
        put(None)
        assert_same(dict(network[1].named_parameters(prefix="1")), random.mean)
    assert (len(set(writes)) == 1) == (not merges)
    assert_same(dict(network.named_parameters()), before)
