"""Products of Gaussians: against normalised densities, and at the extremes."""

import pytest
import torch

import bayesadam as ba
from posterior.kinds import diagonal, means


@pytest.mark.parametrize("weights", [None, [0.5, 2.0, 1.0]])
def test_its_density_is_the_normalised_product(weights):
    posteriors = [diagonal(seed=seed) for seed in (0, 20, 40)]
    q = ba.merge(posteriors, weights=weights)
    first, second = q.sample(2, seed=1), q.sample(2, seed=2)
    exponents = weights or [1.0] * 3
    expected = sum(w * (p.log_prob(first) - p.log_prob(second)) for w, p in zip(exponents, posteriors, strict=True))
    torch.testing.assert_close(q.log_prob(first) - q.log_prob(second), expected, rtol=1e-10, atol=1e-10)
    assert q.hyperparameters == {"merged": 3, "weights": exponents}
    one = ba.merge([diagonal(means(dtype=torch.float32))])
    torch.testing.assert_close(one.tensors(), diagonal(means(dtype=torch.float32)).tensors())


def test_point_masses_and_extreme_widths():
    def one(mean, variance):
        return ba.DiagonalGaussian({"w": torch.tensor([mean])}, {"w": torch.tensor([variance])})

    q = ba.merge([one(1.0, 0.0), one(5.0, 1.0)])
    assert (q.mean["w"].item(), q.variance["w"].item()) == (1.0, 0.0)
    q = ba.merge([one(1.0, 0.0), one(5.0, 0.0)], weights=[3.0, 1.0])
    assert (q.mean["w"].item(), q.variance["w"].item()) == (2.0, 0.0)
    q = ba.merge([one(1.0, 1e-38), one(5.0, 1e38)])
    assert q.mean["w"].item() == 1.0
    assert q.variance["w"].item() == pytest.approx(1e-38)
    q = ba.merge([one(1.0, 1e-38), one(3.0, 1e-38)])
    assert q.mean["w"].item() == 2.0
    assert q.variance["w"].item() == pytest.approx(5e-39, rel=1e-3)


def test_the_method_is_kept_if_it_is_that_of_all():
    first, second = (
        ba.DiagonalGaussian(means(), {n: v.square() for n, v in means().items()}, hyperparameters={"method": m})
        for m in ("laplace", "badam")
    )
    assert ba.merge([first, first]).hyperparameters["method"] == "laplace"
    assert "method" not in ba.merge([first, second]).hyperparameters


def test_half_precision_keeps_its_variances():
    half = ba.DiagonalGaussian({"w": torch.ones(2).half()}, {"w": torch.full((2,), 1e-9)})
    merged = ba.merge([half, half])
    assert (merged.mean["w"].dtype, merged.variance["w"].tolist()) == (torch.float16, pytest.approx([5e-10] * 2))


def test_parts_of_a_data_set_make_the_whole():
    """Conjugate: the posterior of a mean, from parts with the prior divided among them, or with a base in each."""
    y = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def posterior(y, prior, center=0.0, temperature=1.0):
        precision = prior + len(y)
        mean, variance = (prior * center + y.sum()) / precision, temperature / precision
        settings = {"temperature": temperature}
        return ba.DiagonalGaussian(
            {"mu": mean.view(1)}, {"mu": torch.full((1,), variance).double()}, hyperparameters=settings
        )

    whole, merged = posterior(y, 1.0), ba.merge([posterior(y[:5], 0.5), posterior(y[5:], 0.5)])
    torch.testing.assert_close(merged.tensors(), whole.tensors())
    first = posterior(y[:4], 1.0)
    parts = [posterior(rows, 5.0, first.mean["mu"].item()) for rows in (y[4:6], y[6:9], y[9:])]
    merged = ba.merge(parts, base=posterior(y[:4], 1.0, temperature=0.1))
    torch.testing.assert_close(merged.tensors(), whole.tensors())


def test_what_the_base_lacks_and_what_it_is_narrower_in():
    def of(**gaussians):
        return ba.DiagonalGaussian(*({n: torch.tensor([g[i]]) for n, g in gaussians.items()} for i in (0, 1)))

    parts = [of(w=(3.0, 0.5), head=(1.0, 1.0)), of(w=(1.0, 1.0), head=(4.0, 0.5))]
    merged = ba.merge(parts, base=of(w=(1.0, 1.0), other=(0.0, 1.0)))
    assert [merged.mean[n].item() for n in ("w", "head")] == [3.0, 3.0]
    assert [merged.variance[n].item() for n in ("w", "head")] == [0.5, pytest.approx(1 / 3)]
    weights = [0.25, 0.5]
    for variance in (0.0, 0.1):  # task arithmetic
        merged = ba.merge(parts, weights=weights, base=of(w=(2.0, variance)))
        assert (merged.mean["w"].item(), merged.variance["w"].item()) == pytest.approx((1.75, variance))
