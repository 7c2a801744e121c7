"""The Gaussian over some tensors while the others are fixed: against the dense one with zeros, and its file."""

import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.posterior.partial import PartialGaussian

F64 = {"dtype": torch.float64}
EXACT = {"rtol": 1e-11, "atol": 1e-11}
ORDER = ["z", "a.weight", "m/bias", "a.bias"]
SHAPES = {"a.weight": (2, 3), "a.bias": (2,)}
FIXED = {"m/bias": (4,), "z": ()}


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **F64)


def tensors(shapes, seed=0, dtype=torch.float64):
    return {name: draw(*shape, seed=seed + i).to(dtype) for i, (name, shape) in enumerate(shapes.items())}


def dense(seed=0, dtype=torch.float64):
    root = draw(8, 8, seed=seed)
    return ba.DenseGaussian(
        tensors(SHAPES, seed, dtype), root @ root.T + torch.eye(8, **F64), hyperparameters={"seed": seed}
    )


def diagonal(seed=0, dtype=torch.float64):
    variance = {name: value.exp() for name, value in tensors(SHAPES, seed + 9, dtype).items()}
    return ba.DiagonalGaussian(tensors(SHAPES, seed, dtype), variance, hyperparameters={"seed": seed})


def make(kind=dense, seed=0, fixed_seed=50, dtype=torch.float64, order=ORDER):
    return PartialGaussian(kind(seed, dtype), tensors(FIXED, fixed_seed, dtype), order=order)


def whole(q):
    """The same distribution as a dense one, with zeros, by hand."""
    index, start = {}, 0
    for name, mean in q.mean.items():
        index[name] = range(start, start + mean.numel())
        start += mean.numel()
    at = [i for name in q.random.mean for i in index[name]]
    covariance = torch.zeros(start, start, **F64)
    random = q.random
    own = random.covariance if isinstance(random, ba.DenseGaussian) else _flat(random.variance).diag()
    for a, i in enumerate(at):
        for b, j in enumerate(at):
            covariance[i, j] = own[a, b]
    return ba.DenseGaussian(q.mean, covariance)


def _flat(tensors):
    return torch.cat([t.flatten() for t in tensors.values()])


KINDS = pytest.mark.parametrize("kind", [dense, diagonal])


@KINDS
class TestDistribution:
    def test_mean_variance_and_order(self, kind):
        q = make(kind)
        assert list(q.mean) == list(q.variance) == ORDER
        assert list(q.fixed) == ["z", "m/bias"]
        reference = whole(q)
        for name in ORDER:
            torch.testing.assert_close(q.variance[name].double(), reference.variance[name], **EXACT)
        assert q.mean["z"] is q.fixed["z"]
        assert q.num_weights == 13
        assert repr(q) == f"PartialGaussian({q.random!r}, 5 weights fixed)"
        assert q.hyperparameters == {"seed": 0}
        assert list(PartialGaussian(kind(), tensors(FIXED)).mean) == [*SHAPES, *FIXED]

    def test_samples_are_those_of_the_random_part(self, kind):
        q = make(kind)
        draws, inner = q.sample(5, seed=3, first=2), q.random.sample(5, seed=3, first=2)
        assert list(draws) == ORDER
        for name in SHAPES:
            assert torch.equal(draws[name], inner[name])
        for name in FIXED:
            assert torch.equal(draws[name], q.fixed[name].expand(5, *FIXED[name]))
        write = q.writer(3)
        targets = {name: torch.full_like(value, 7.0) for name, value in q.mean.items()}
        write(targets, None)
        assert all(torch.equal(targets[name], q.mean[name]) for name in ORDER)
        write(targets, 4)
        assert all(torch.equal(targets[name], draws[name][2]) for name in ORDER)

    def test_log_prob_and_entropy(self, kind):
        q = make(kind)
        theta = q.sample(3, seed=1)
        torch.testing.assert_close(q.log_prob(theta), whole(q).log_prob(theta), **EXACT)
        torch.testing.assert_close(q.entropy(), whole(q).entropy(), **EXACT)
        theta["m/bias"][1, 2] += 1e-9
        density = q.log_prob(theta)
        assert density[1] == -math.inf
        assert density[[0, 2]].isfinite().all()
        theta["z"][2] += 1.0
        assert q.log_prob(theta)[2] == -math.inf
        with pytest.raises(ValueError, match="^theta must have the weights 'z', got none of that name$"):
            q.log_prob({name: value for name, value in theta.items() if name != "z"})

    def test_kl_divergence(self, kind):
        q = make(kind)
        torch.testing.assert_close(q.kl_divergence(0.3), whole(q).kl_divergence(0.3), **EXACT)
        priors = [make(dense, seed=4), make(diagonal, seed=5), whole(make(dense, seed=6))]
        wide = ba.DiagonalGaussian(q.mean, {name: value * 0 + 2.0 for name, value in q.mean.items()})
        root = draw(13, 13, seed=7)
        full = ba.DenseGaussian(q.mean, root @ root.T + torch.eye(13, **F64))
        for prior in [*priors, wide, full]:
            reference = whole(prior) if isinstance(prior, PartialGaussian) else prior
            expected = whole(q).kl_divergence(reference)
            assert expected.isfinite()
            torch.testing.assert_close(q.kl_divergence(prior), expected, **EXACT)
            torch.testing.assert_close(q.random.kl_divergence(q.random), torch.zeros((), **F64), **EXACT)
        assert q.kl_divergence(make(kind, fixed_seed=51)) == math.inf
        with pytest.raises(ValueError, match="^prior must be a positive, finite precision or a Gaussian .*, got 0$"):
            q.kl_divergence(0)

    def test_as_a_prior(self, kind):
        prior, q = make(kind), make(dense, seed=3)
        torch.testing.assert_close(whole(q).kl_divergence(prior), whole(q).kl_divergence(whole(prior)), **EXACT)
        free = ba.DiagonalGaussian(q.mean, {name: torch.ones_like(value) for name, value in q.mean.items()})
        assert free.kl_divergence(prior) == math.inf

    def test_scale_of_some_names_in_any_order(self, kind):
        q = make(kind)
        for names in (["a.bias", "z", "a.weight"], ["z", "m/bias"], ["a.weight"]):
            found, expected = q._scale(names), whole(q)._scale(names)
            found = found if found.ndim == 2 else found.diag()
            torch.testing.assert_close(found @ found.T, expected @ expected.T, **EXACT)

    def test_signal_to_noise(self, kind):
        q = make(kind)
        expected = whole(q).signal_to_noise()
        for name, value in q.signal_to_noise().items():
            torch.testing.assert_close(value.double(), expected[name], **EXACT)

    def test_marginal(self, kind):
        q = make(kind)
        marginal = q.marginal()
        assert isinstance(marginal, ba.DiagonalGaussian)
        assert list(marginal.mean) == ORDER
        for name in ORDER:
            assert torch.equal(marginal.variance[name], q.variance[name])

    def test_file(self, kind, tmp_path):
        q = make(kind, dtype=torch.float32)
        q.hyperparameters["how"] = "by hand"
        q.save(tmp_path / "q")
        r = ba.load_posterior(tmp_path / "q")
        assert type(r) is PartialGaussian
        assert type(r.random) is type(q.random)
        assert (list(r.mean), list(r.fixed)) == (list(q.mean), list(q.fixed))
        assert r.hyperparameters == {"seed": 0, "how": "by hand"}
        for name in ORDER:
            assert r.mean[name].dtype == torch.float32
            assert torch.equal(r.mean[name], q.mean[name])
            assert torch.equal(r.variance[name], q.variance[name])
        a, b = q.sample(2, seed=1), r.sample(2, seed=1)
        assert all(torch.equal(a[name], b[name]) for name in ORDER)

    def test_to(self, kind):
        q = make(kind)
        r = q.to(dtype=torch.float32)
        assert list(r.mean) == ORDER
        assert {value.dtype for value in r.mean.values()} == {torch.float32}
        for name in ORDER:
            assert torch.equal(r.mean[name], q.mean[name].float())
        assert r.hyperparameters == q.hyperparameters
        assert {t.device.type for t in q.to("cpu").mean.values()} == {"cpu"}


class TestPruning:
    @pytest.mark.parametrize("kind", [dense, diagonal])
    @pytest.mark.parametrize("fraction", [0.0, 0.25, 0.8, 1.0])
    @pytest.mark.parametrize("by", ["signal_to_noise", "magnitude"])
    def test_is_that_of_the_whole(self, kind, fraction, by):
        q = make(kind)
        pruned, expected = q.prune(fraction, by=by), whole(q).prune(fraction, by=by)
        assert isinstance(pruned, PartialGaussian)
        assert list(pruned.mean) == ORDER
        for name in ORDER:
            assert torch.equal(pruned.mean[name], expected.mean[name])
            torch.testing.assert_close(pruned.variance[name], expected.variance[name], **EXACT)
        torch.testing.assert_close(whole(pruned).covariance, expected.covariance, **EXACT)
        assert pruned.hyperparameters == {**q.hyperparameters, "pruned_fraction": fraction}

    def test_what_is_random_goes_first(self):
        q = make()
        random = q.random.num_weights
        fixed = q.prune(random / q.num_weights).fixed
        assert all(torch.equal(fixed[name], value) for name, value in q.fixed.items())
        assert not q.prune(1.0).fixed["m/bias"].any()

    def test_errors(self):
        with pytest.raises(ValueError, match=r"^fraction must be in \[0, 1\], got 2$"):
            make().prune(2)


def test_in_a_network():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    head = {name: before[name] for name in ("2.weight", "2.bias")}
    q = PartialGaussian(
        ba.DenseGaussian(head, 0.1 * torch.eye(5)),
        {name: before[name] for name in ("0.weight", "0.bias")},
        order=list(before),
    )
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
    with q.applied(model, sample=2, seed=1):
        inside = {name: p.detach().clone() for name, p in model.named_parameters()}
    draws = q.sample(3, seed=1)
    assert all(torch.equal(inside[name], draws[name][2]) for name in before)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    pred = ba.predict(model, q, x, likelihood=ba.Gaussian(), mc_samples=2000)
    features = torch.cat([model[:2](x), torch.ones(6, 1)], 1).detach()
    exact = 0.1 * features.square().sum(1, keepdim=True)
    torch.testing.assert_close(pred.epistemic, exact, rtol=0.15, atol=0.0)


def test_fixed_weights_take_no_memory_but_their_values():
    q = PartialGaussian(dense(), {"big": torch.zeros(1000, 1000)})
    assert q.variance["big"].untyped_storage().nbytes() == 4
    assert q.kl_divergence(2.0).isfinite()
    with pytest.raises(ValueError, match="^names must have at most 10,000 weights for a matrix, got 1,000,008$"):
        q._scale(q.mean)
    assert PartialGaussian(diagonal(), {"big": torch.zeros(1000, 1000)})._scale(["big"]).shape == (1_000_000,)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"random": "other"},
            r"^random must be one of \['DenseGaussian', 'DiagonalGaussian', 'KroneckerGaussian'\], got str$",
        ),
        ({"fixed": {"a.bias": torch.zeros(2)}}, "^fixed must only have weights that are not random, got 'a.bias'$"),
        ({"fixed": {"f": torch.tensor([math.nan])}}, "^mean of 'f' must be finite, got inf or nan$"),
        (
            {"fixed": {"f": torch.zeros(2, dtype=torch.int64)}},
            "^mean of 'f' must be a floating-point tensor, got dtype",
        ),
        ({"order": ["z"]}, r"^order must have the names \['a.bias', 'a.weight', 'm/bias', 'z'\], got \['z'\]$"),
        ({"order": [*ORDER, "z"]}, "^order must have the names "),
        (
            {"order": ["a.bias", "a.weight", "z", "m/bias"]},
            r"^order must keep the order of the random weights \['a.weight', 'a.bias'\], got \['a.bias', 'a.weight', ",
        ),
    ],
)
def test_refusals(change, message):
    given = {"random": dense(), "fixed": tensors(FIXED), "order": None, **change}
    with pytest.raises(ValueError, match=message):
        PartialGaussian(**given)


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
    q = make()
    stored = spoil(q.tensors())
    monkeypatch.setattr(PartialGaussian, "tensors", lambda self: stored)
    q.save(tmp_path / "q")
    with pytest.raises(ValueError, match="^the posterior file must hold a valid PartialGaussian, got "):
        ba.load_posterior(tmp_path / "q")
