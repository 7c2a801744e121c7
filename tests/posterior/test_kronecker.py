"""The Gaussian with Kronecker-factored covariances: rotations, samples, and how bases are stored."""

import math

import pytest
import torch

import bayesadam as ba
from bayesadam.functional.kronecker import between, rotate
from posterior.kinds import EXACT, F64, SHAPES, close, draw, kronecker, orthogonal


class TestRotation:
    @pytest.mark.parametrize("back", [False, True])
    @pytest.mark.parametrize("sides", ["left", "right", "both", "none"])
    def test_is_that_of_the_kronecker_product(self, sides, back):
        left = orthogonal(3) if sides in ("left", "both") else None
        right = orthogonal(4, 1) if sides in ("right", "both") else None
        eye = torch.eye(3, **F64), torch.eye(4, **F64)
        product = torch.kron(eye[0] if left is None else left, eye[1] if right is None else right)
        x = draw(5, 3, 4)
        expected = x.flatten(1) @ (product.T if back else product)
        torch.testing.assert_close(rotate(x, left, right, back=back).flatten(1), expected, **EXACT)

    def test_from_one_basis_to_another(self):
        a, b = orthogonal(3), orthogonal(3, 1)
        torch.testing.assert_close(between(a, b), a.T @ b, **EXACT)
        assert between(None, b) is b
        torch.testing.assert_close(between(a, None), a.T, **EXACT)
        assert between(None, None) is None


def test_samples_are_rotated_noise():
    q = kronecker()
    unit = ba.DiagonalGaussian({n: m * 0 for n, m in q.mean.items()}, {n: m * 0 + 1 for n, m in q.mean.items()})
    noise, found = unit.sample(3, seed=4, first=2), q.sample(3, seed=4, first=2)
    for name, mean in q.mean.items():
        rows = mean.shape[0] if mean.ndim else 1
        eye = torch.eye(rows, **F64), torch.eye(mean.numel() // max(1, rows), **F64)
        basis = torch.kron(q.left.get(name, eye[0]), q.right.get(name, eye[1]))
        for i in range(3):
            expected = mean.flatten() + basis @ (q.eigenvalues[name].sqrt() * noise[name][i]).flatten()
            torch.testing.assert_close(found[name][i].flatten(), expected, **EXACT)


def test_without_bases_it_is_the_diagonal_one():
    values = kronecker().eigenvalues
    q, other = ba.KroneckerGaussian(kronecker().mean, values, {}, {}), ba.DiagonalGaussian(kronecker().mean, values)
    a, b = q.sample(2, seed=1), other.sample(2, seed=1)
    for name in SHAPES:
        close(a[name], b[name])
    close(q._scale(q.mean), other._scale(q.mean))


def test_large_ones_need_no_matrix():
    shape = {"w": (200, 100)}
    mean, values = ({"w": draw(*shape["w"], seed=s)} for s in (0, 1))
    bases = {"w": orthogonal(200)}, {"w": orthogonal(100)}
    q = ba.KroneckerGaussian(mean, {"w": values["w"].exp()}, *bases)
    close(q.kl_divergence(q.scaled(2.0)), 20_000 * (math.log(2.0) + 0.5 * (0.25 - 1.0)))
    other = ba.KroneckerGaussian(mean, {"w": values["w"].exp()}, {"w": orthogonal(200, 1)}, {})
    assert q.kl_divergence(other).isfinite()
    assert q.kl_divergence(2.0).isfinite()
    assert q.kl_divergence(q.marginal()).isfinite()
    message = "^a KroneckerGaussian must have at most 10,000 weights for the divergence from or to a .*, got 20,000$"
    with pytest.raises(ValueError, match=message):
        q.marginal().kl_divergence(q)


def test_large_ones_without_bases_need_no_matrix():
    mean, values = {"w": draw(200, 200)}, {"w": draw(200, 200, seed=1).exp()}
    q, diagonal = ba.KroneckerGaussian(mean, values, {}, {}), ba.DiagonalGaussian(mean, values)
    expected = diagonal.kl_divergence(diagonal.scaled(2.0))
    close(q.kl_divergence(q.scaled(2.0)), expected)
    close(diagonal.kl_divergence(q.scaled(2.0)), expected)


def test_bases_that_were_computed_in_float32_are_orthogonal_in_float64(tmp_path):
    basis = torch.linalg.qr(draw(50, 50, dtype=torch.float32)).Q
    q = ba.KroneckerGaussian({"b": torch.zeros(50)}, {"b": torch.ones(50)}, {"b": basis}, {}).to(dtype=torch.float64)
    q.save(tmp_path / "q")
    close(ba.load_posterior(tmp_path / "q").left["b"], basis)
    q.left["b"][0, 0] += 0.01
    with pytest.raises(ValueError, match="^left of 'b' must be orthogonal"):
        q.to(dtype=torch.float64)
