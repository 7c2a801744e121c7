"""What holds for posteriors of every kind: samples, scores, use in a network, conversions and files."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal
from torch.distributions import kl_divergence as torch_kl

import bayesadam as ba
from bayesadam.posterior.base import posterior_kinds
from posterior.kinds import (
    F64,
    GAUSSIANS,
    KINDS,
    POINTS,
    SIZE,
    assert_same,
    close,
    covariance,
    draw,
    flat,
    means,
    weights,
)

EVERY = pytest.mark.parametrize("kind", KINDS)
GAUSSIAN = pytest.mark.parametrize("kind", GAUSSIANS)
HYPERPARAMETERS = {"method": "von", "lr": 1e-3, "betas": [0.9, 0.999], "nested": {"é": None, "flag": True}}


def test_every_kind_is_here():
    assert {type(make()).__name__ for make in KINDS.values()} == set(posterior_kinds())


@EVERY
def test_autocast_changes_nothing(kind, tmp_path):
    """Neither samples nor the checks of a file."""
    q = KINDS[kind](means(dtype=torch.float32))
    q.save(tmp_path / "q.safetensors")
    samples = q.sample(2, seed=4)
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(q.sample(2, seed=4), samples)
        assert_same(ba.load_posterior(tmp_path / "q.safetensors").sample(2, seed=4), samples)


@EVERY
@pytest.mark.parametrize("points", [(), POINTS])
def test_samples_are_functions_of_seed_and_number(kind, points):
    """In chunks, in any order, beside other generators; point masses do not move."""
    q = KINDS[kind](points=points)
    whole, before = q.sample(7, seed=4), torch.get_rng_state()
    assert {n: (s.dtype, s.shape) for n, s in whole.items()} == {n: (m.dtype, (7, *m.shape)) for n, m in q.mean.items()}
    chunks = [q.sample(count, seed=4, first=first) for first, count in ((0, 1), (1, 4), (5, 2))]
    assert_same({n: torch.cat([chunk[n] for chunk in chunks]) for n in q.mean}, whole)
    write = q.writer(4)
    for number in (3, 6, 0, 3) if kind == "mixture" else (3, 6, None, 0, 3):
        targets = {name: torch.empty_like(mean) for name, mean in q.mean.items()}
        write(targets, number)
        assert_same(targets, q.mean if number is None else {name: s[number] for name, s in whole.items()})
    torch.manual_seed(9)
    assert_same(KINDS[kind](points=points).sample(7, seed=4), whole)
    assert torch.equal(before, torch.manual_seed(0).get_state())
    assert_same(q.sample(2), q.sample(2, seed=0))
    assert not torch.equal(whole["z.weight"], q.sample(7)["z.weight"])
    if kind in GAUSSIANS:
        moved = (flat(whole, 7) != flat(q.mean)).any(0)
        assert torch.equal(moved, flat(q.variance) > 0)


@EVERY
def test_is_independent_of_what_is_done_to_dictionaries_and_samples(kind):
    mean = means()
    q = KINDS[kind](mean, lr=0.1)
    before = copy.deepcopy(q.tensors())
    mean.clear()
    for sample in q.sample(2).values():
        sample.zero_()
    assert_same(q.tensors(), before)
    assert sum(m.numel() for m in q.mean.values()) == SIZE
    assert repr(q).startswith(type(q).__name__)


def normal(q, keep):
    return MultivariateNormal(flat(q.mean)[keep], covariance(q)[keep][:, keep])


@GAUSSIAN
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("points", [(), POINTS])
def test_densities_and_entropies_are_those_of_the_dense_gaussian(kind, points, dtype):
    q = GAUSSIANS[kind](means(dtype=dtype), points=points)
    rounding = {"rtol": 1e-6, "atol": 1e-7} if dtype == torch.float32 else {}
    close(flat(q.variance), covariance(q).diagonal(), **rounding)
    if kind != "diagonal":
        close(flat(q.marginal().variance), covariance(q).diagonal(), **rounding)
        assert_same(q.marginal().mean, q.mean)
    keep = covariance(q).diagonal() > 0
    theta = {n: torch.where(q.variance[n] == 0, m, m + draw(2, 3, *m.shape, seed=9)) for n, m in q.mean.items()}
    found = q.log_prob(dict(reversed(theta.items())))
    assert found.dtype == q.entropy().dtype == torch.float64
    exact = rounding if "kronecker" in kind else {}  # whose bases are orthogonal up to rounding
    close(found, normal(q, keep).log_prob(flat(theta, 2, 3)[..., keep]), **exact)
    close(q.entropy(), normal(q, keep).entropy(), **exact)
    theta["z.weight"][0, 1, 0, 1] = math.inf  # a random weight
    if not keep.all():
        name = next(n for n, v in q.variance.items() if (v == 0).any())
        theta[name][1, 2][q.variance[name] == 0] += 1e-9
    density = q.log_prob(theta)
    assert density[0, 1] == -math.inf
    assert (density[1, 2] == -math.inf) == (not keep.all())
    assert density[0, [0, 2]].isfinite().all()


def divergence(q, prior):
    """By the dense matrices; of what is not random in ``q``, only whether it is another constant counts."""
    keep = covariance(q).diagonal() > 0
    if isinstance(prior, float):
        return torch_kl(
            normal(q, keep), MultivariateNormal(torch.zeros(keep.sum(), **F64), torch.eye(keep.sum(), **F64) / prior)
        )
    fixed = covariance(prior).diagonal() == 0
    if (fixed & keep).any() or (flat(q.mean) != flat(prior.mean))[fixed].any():
        return torch.tensor(math.inf, **F64)
    return torch_kl(normal(q, keep), normal(prior, keep))


@GAUSSIAN
@pytest.mark.parametrize("prior", [0.3, 2.0, *GAUSSIANS])
def test_divergences_are_those_of_the_dense_gaussians(kind, prior):
    for points in ((), POINTS):
        q = GAUSSIANS[kind](points=points)
        if isinstance(prior, float):
            close(q.kl_divergence(prior), divergence(q, prior))
            continue
        other = means(seed=1)
        mean = {n: torch.where(v == 0, q.mean[n], other[n]) for n, v in q.variance.items()}
        for prior_points in ((), POINTS):
            p = GAUSSIANS[prior](mean, seed=50, points=prior_points)
            close(q.kl_divergence(p), divergence(q, p))
            if prior == "diagonal":
                reverse = ba.DiagonalGaussian(*(dict(reversed(part.items())) for part in (p.mean, p.variance)))
                close(q.kl_divergence(reverse), divergence(q, p))
        p = GAUSSIANS[prior](other, seed=50, points=POINTS)
        assert q.kl_divergence(p) == divergence(q, p) == math.inf
        if prior == kind:
            assert 0 <= q.kl_divergence(GAUSSIANS[kind](points=points)) < 1e-12


@pytest.mark.parametrize("kind", [*GAUSSIANS, "mixture"])
def test_other_weights_are_refused(kind):
    q = KINDS[kind]()
    missing, theta = {n: m for n, m in q.mean.items() if n != "a"}, q.mean
    with pytest.raises(ValueError, match="^theta must have the weights 'a', got none of that name$"):
        q.log_prob(missing)
    with pytest.raises(ValueError, match="^theta must only have weights that the posterior has, got 'c'$"):
        q.log_prob({**theta, "c": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"^theta\['m/bias'\] must end in the shape \(3,\), got \(2,\)$"):
        q.log_prob({**theta, "m/bias": torch.zeros(2)})


@EVERY
def test_numbers_of_samples_are_checked(kind):
    q = KINDS[kind]()
    for arguments, message in (
        ({"count": 0}, "^count must be at least 1, got 0$"),
        ({"count": 1, "seed": -1}, r"^seed must be an integer in \[0, 2\*\*64\), got -1$"),
        ({"count": 1, "first": -1}, "^sample must be an integer .*, got -1$"),
        ({"count": 1, "seed": 2**64}, r"^seed must be an integer in \[0, 2\*\*64\), got 18446744073709551616$"),
    ):
        with pytest.raises(ValueError, match=message):
            q.sample(**arguments)


@GAUSSIAN
@pytest.mark.parametrize("prior", [0, -1.0, math.inf, math.nan, None, "wide", {"a": 1.0}, torch.ones(2)])
def test_priors_are_numbers_or_gaussians(kind, prior):
    with pytest.raises(ValueError, match="^prior must be a positive, finite precision or a Gaussian posterior, got "):
        GAUSSIANS[kind]().kl_divergence(prior)


@GAUSSIAN
def test_priors_have_the_same_weights(kind):
    q = GAUSSIANS[kind]()
    for change, message in (
        ({"a": None}, "^prior must have the weights 'a', got none of that name$"),
        ({"m/bias": torch.zeros(2, **F64)}, r"^prior of 'm/bias' must be of shape \(3,\), got \(2,\)$"),
        ({"c": torch.zeros(1, **F64)}, "^prior must only have weights that the posterior has, got 'c'$"),
    ):
        mean = {n: m for n, m in {**means(), **change}.items() if m is not None}
        for prior in (GAUSSIANS["diagonal"], GAUSSIANS["dense"]):
            with pytest.raises(ValueError, match=message):
                q.kl_divergence(prior(mean))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def posterior_of(kind, model):
    return KINDS[kind](means({n: p.shape for n, p in model.named_parameters()}, seed=3, dtype=torch.float32))


@EVERY
class TestApplied:
    def test_inside_the_weights_are_the_sample(self, kind):
        model = network()
        q, before, pointers = posterior_of(kind, model), weights(model), [p.data_ptr() for p in model.parameters()]
        buffers, samples = {name: b.clone() for name, b in model.named_buffers()}, q.sample(4, seed=1)
        for number in (0, 3) if kind == "mixture" else (0, 3, None):
            with q.applied(model, number, seed=1):
                assert_same(weights(model), q.mean if number is None else {n: s[number] for n, s in samples.items()})
                assert [p.data_ptr() for p in model.parameters()] == pointers
            assert_same(weights(model), before)
        assert_same(dict(model.named_buffers()), buffers)
        assert all(p.requires_grad and p.grad is None for p in model.parameters())

    @pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, GeneratorExit])
    def test_the_weights_are_restored_whatever_happens_inside(self, kind, error):
        model = network()
        q, before = posterior_of(kind, model), weights(model)

        def interrupted():
            with q.applied(model, 0), torch.no_grad():
                model[0].weight.fill_(math.nan)
                raise error

        with pytest.raises(error):
            interrupted()
        assert_same(weights(model), before)
        with pytest.raises(ValueError, match="^sample must be an integer .*, got -1$"), q.applied(model, -1):
            pass
        assert_same(weights(model), before)

    def test_of_another_dtype_device_and_strides(self, kind):
        model = network()
        q = posterior_of(kind, model)
        model[0].weight = nn.Parameter(torch.zeros(3, 4).T)
        with q.applied(model.to(torch.bfloat16), 1):
            assert_same(weights(model), {n: s[1].to(torch.bfloat16) for n, s in q.sample(2).items()})
        with q.applied(model.to("meta"), 1):  # which any machine has
            assert all(p.is_meta for p in model.parameters())

    def test_a_posterior_made_of_the_weights_themselves(self, kind):
        model = network()
        q = KINDS[kind]({name: p.detach() for name, p in model.named_parameters()})
        apart, before, found = copy.deepcopy(q), weights(model), []
        for posterior in (q, apart):
            with posterior.draws(model) as put:
                for number in (0, 1, 1) if kind == "mixture" else (0, 1, 1, None):
                    put(number)
                    found.append(weights(model))
            assert_same(weights(model), before)
        assert_same(q.tensors(), apart.tensors())
        for one, other in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
            assert_same(one, other)

    def test_predictions_are_those_of_the_samples(self, kind):
        model = network().eval()
        q, x, before = posterior_of(kind, model), draw(5, 3, dtype=torch.float32), weights(model)
        count = 2 * q.strata
        found = ba.predict(model, q, x, likelihood=ba.Categorical(), mc_samples=count, seed=7)
        theta = q.sample(count, seed=7)
        outputs = [torch.func.functional_call(model, {n: s[i] for n, s in theta.items()}, (x,)) for i in range(count)]
        close(found.log_probs, torch.stack(outputs).log_softmax(-1), rtol=1e-5, atol=1e-5)
        assert_same(weights(model), before)


@EVERY
class TestConversions:
    @pytest.mark.parametrize("points", [(), POINTS])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_round_trip_of_a_file(self, kind, points, dtype, tmp_path):
        q = KINDS[kind](means(dtype=dtype), points=points, **HYPERPARAMETERS)
        q.save(tmp_path / "q")
        loaded = ba.load_posterior(str(tmp_path / "q"))
        assert type(loaded) is type(q)
        assert_same(loaded.tensors(), q.tensors())
        assert_same(loaded.mean, q.mean)
        assert_same(loaded.sample(4, seed=1), q.sample(4, seed=1))
        assert loaded.hyperparameters == q.hyperparameters
        assert HYPERPARAMETERS.items() <= loaded.hyperparameters.items()

    def test_to(self, kind):
        q = KINDS[kind](lr=0.1)
        narrow = q.to("cpu", torch.float32)
        assert type(narrow) is type(q)
        assert {t.dtype for t in (*narrow.mean.values(), *narrow.sample(1).values())} == {torch.float32}
        assert narrow.hyperparameters == q.hyperparameters
        close(flat(narrow.mean), flat(q.mean), rtol=1e-6, atol=1e-7)
        close(flat(narrow.variance), flat(q.variance), rtol=1e-5, atol=1e-7)
        assert {m.dtype for m in q.mean.values()} == {torch.float64}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu():
    for kind in GAUSSIANS:
        check_on_a_gpu(kind)


def check_on_a_gpu(kind):
    q, prior = (GAUSSIANS[kind](means(dtype=torch.float32), seed=seed) for seed in (0, 1))
    on, theta = q.to("cuda"), q.sample(3)
    for name, sample in on.sample(3).items():
        assert sample.is_cuda
        close(sample.cpu(), theta[name], rtol=1e-4, atol=1e-5)
    close(on.log_prob({n: t.cuda() for n, t in theta.items()}).cpu(), q.log_prob(theta), rtol=1e-6, atol=1e-6)
    for other in (prior, 3.0):
        expected = q.kl_divergence(other)
        close(on.kl_divergence(other if other == 3.0 else other.to("cuda")).cpu(), expected, rtol=1e-6, atol=1e-6)
