"""The Gaussian with Kronecker-factored covariances: against dense matrices in float64."""

import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.functional.kronecker import between, rotate
from bayesadam.posterior import kronecker
from bayesadam.posterior.partial import PartialGaussian

F64 = {"dtype": torch.float64}
EXACT = {"rtol": 1e-10, "atol": 1e-10}
SHAPES = {"z.weight": (3, 4), "z.bias": (3,), "conv": (2, 2, 3), "a": (), "empty": (0, 2), "m/n": (4,)}
LEFT, RIGHT = ("z.weight", "z.bias", "conv"), ("z.weight", "conv")


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), **F64)


def orthogonal(size, seed=0):
    return torch.linalg.qr(draw(size, size, seed=seed)).Q.contiguous()


def make(seed=0, left=LEFT, right=RIGHT):
    mean = {name: draw(*shape, seed=seed + i) for i, (name, shape) in enumerate(SHAPES.items())}
    values = {name: draw(*shape, seed=seed + i + 50).exp() for i, (name, shape) in enumerate(SHAPES.items())}
    rows = {name: orthogonal(SHAPES[name][0], seed + 3) for name in left}
    columns = {name: orthogonal(math.prod(SHAPES[name][1:]), seed + 4) for name in right}
    return ba.KroneckerGaussian(mean, values, rows, columns, hyperparameters={"seed": seed})


def block(q, name):
    """The covariance of one tensor's weights, by the definition."""
    mean = q.mean[name]
    rows = mean.shape[0] if mean.ndim else 1
    eye = torch.eye(rows, **F64), torch.eye(mean.numel() // max(1, rows), **F64)
    basis = torch.kron(q.left.get(name, eye[0]).double(), q.right.get(name, eye[1]).double())
    return basis @ q.eigenvalues[name].double().flatten().diag() @ basis.T


def dense(q):
    return ba.DenseGaussian(q.mean, torch.block_diag(*(block(q, name) for name in q.mean)))


def independent(seed=20):
    values = {name: draw(*shape, seed=seed + i).exp() for i, (name, shape) in enumerate(SHAPES.items())}
    return ba.DiagonalGaussian({name: draw(*shape, seed=seed) for name, shape in SHAPES.items()}, values)


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


class TestDistribution:
    def test_variance(self):
        q = make()
        for name in SHAPES:
            torch.testing.assert_close(q.variance[name].flatten(), block(q, name).diagonal(), **EXACT)
        assert list(q.marginal().variance) == list(SHAPES)
        assert repr(q) == "KroneckerGaussian(6 tensors, 32 weights)"

    def test_samples_are_rotated_noise(self):
        q = make()
        unit = ba.DiagonalGaussian({n: m * 0 for n, m in q.mean.items()}, {n: m * 0 + 1 for n, m in q.mean.items()})
        noise, found = unit.sample(3, seed=4, first=2), q.sample(3, seed=4, first=2)
        for name, mean in q.mean.items():
            rows = mean.shape[0] if mean.ndim else 1
            eye = torch.eye(rows, **F64), torch.eye(mean.numel() // max(1, rows), **F64)
            basis = torch.kron(q.left.get(name, eye[0]), q.right.get(name, eye[1]))
            for i in range(3):
                expected = mean.flatten() + basis @ (q.eigenvalues[name].sqrt() * noise[name][i]).flatten()
                torch.testing.assert_close(found[name][i].flatten(), expected, **EXACT)

    def test_samples_have_the_covariance(self):
        q = make()
        count = 20_000
        for name in ("z.weight", "conv"):
            part = ba.KroneckerGaussian(*({name: p[name]} for p in (q.mean, q.eigenvalues, q.left, q.right)))
            moved = (part.sample(count, seed=1)[name] - q.mean[name]).flatten(1)
            expected = block(q, name)
            spread = expected.diagonal().sqrt()
            error = (moved.T @ moved / count - expected) / spread / spread[:, None]
            assert error.abs().max() < 4.5 * math.sqrt(2 / count)

    def test_without_bases_it_is_the_diagonal_one(self):
        q = make(left=(), right=())
        other = ba.DiagonalGaussian(q.mean, q.eigenvalues)
        a, b = q.sample(2, seed=1), other.sample(2, seed=1)
        for name in SHAPES:
            torch.testing.assert_close(a[name], b[name], **EXACT)
        torch.testing.assert_close(q._scale(q.mean), other._scale(q.mean), **EXACT)

    def test_writes_the_mean_and_other_dtypes(self):
        q = make()
        targets = {name: torch.zeros(mean.shape, dtype=torch.bfloat16) for name, mean in q.mean.items()}
        write = q.writer(3)
        write(targets, 5)
        draws = q.sample(1, seed=3, first=5)
        assert all(torch.equal(targets[name], draws[name][0].bfloat16()) for name in SHAPES)
        write(targets, None)
        assert all(torch.equal(targets[name], q.mean[name].bfloat16()) for name in SHAPES)

    def test_log_prob_and_entropy(self):
        q = make()
        theta = q.sample(4, seed=2)
        torch.testing.assert_close(q.log_prob(theta), dense(q).log_prob(theta), **EXACT)
        torch.testing.assert_close(q.entropy(), dense(q).entropy(), **EXACT)
        theta["conv"][1, 0, 1, 2] = math.inf
        density = q.log_prob(theta)
        assert density[1] == -math.inf
        assert density[[0, 2, 3]].isfinite().all()
        with pytest.raises(ValueError, match="^theta must have the weights 'a', got none of that name$"):
            q.log_prob({name: value for name, value in theta.items() if name != "a"})

    def test_point_masses(self):
        q = make()
        values = {name: value * (name not in ("conv", "z.bias")) for name, value in q.eigenvalues.items()}
        values["m/n"][1] = 0.0
        r = ba.KroneckerGaussian(q.mean, values, q.left, q.right)
        draws = r.sample(2)
        assert torch.equal(draws["conv"], q.mean["conv"].expand(2, 2, 2, 3))
        assert torch.equal(draws["m/n"][:, 1], q.mean["m/n"][1].expand(2))
        torch.testing.assert_close(r.log_prob(draws), dense(r).log_prob(draws), **EXACT)
        torch.testing.assert_close(r.entropy(), dense(r).entropy(), **EXACT)
        for prior in (0.4, independent(), make(9), make(9, left=(), right=())):
            reference = prior if isinstance(prior, float | ba.DiagonalGaussian) else dense(prior)
            torch.testing.assert_close(r.kl_divergence(prior), dense(r).kl_divergence(reference), **EXACT)
        draws["conv"][0] += 1e-9
        assert r.log_prob(draws)[0] == -math.inf

    @pytest.mark.parametrize("seed", [0, 7])
    def test_kl_divergence(self, seed):
        q = make(seed)
        for prior in (0.3, independent()):
            torch.testing.assert_close(q.kl_divergence(prior), dense(q).kl_divergence(prior), **EXACT)
        for prior in (make(9), make(9, left=("z.weight",), right=()), make(9, left=(), right=("conv",))):
            torch.testing.assert_close(q.kl_divergence(prior), dense(q).kl_divergence(dense(prior)), **EXACT)
            torch.testing.assert_close(q.kl_divergence(dense(prior)), dense(q).kl_divergence(dense(prior)), **EXACT)
            torch.testing.assert_close(dense(q).kl_divergence(prior), dense(q).kl_divergence(dense(prior)), **EXACT)
        assert 0 <= q.kl_divergence(make(seed)) < 1e-12

    def test_kl_divergence_with_point_masses_on_both_sides(self):
        q = make()
        prior = make().scaled(0.0)
        assert q.kl_divergence(prior) == math.inf
        assert prior.kl_divergence(prior) == 0
        assert prior.kl_divergence(make(5).scaled(0.0)) == math.inf
        assert prior.kl_divergence(q) == 0

    def test_large_ones_need_no_matrix(self):
        shape = {"w": (200, 100)}
        mean, values = ({"w": draw(*shape["w"], seed=s)} for s in (0, 1))
        bases = {"w": orthogonal(200)}, {"w": orthogonal(100)}
        q = ba.KroneckerGaussian(mean, {"w": values["w"].exp()}, *bases)
        assert q.kl_divergence(q.scaled(1.1)).isfinite()
        assert q.kl_divergence(2.0).isfinite()
        message = (
            "^a KroneckerGaussian must have at most 10,000 weights for the divergence from or to a .*, got 20,000$"
        )
        with pytest.raises(ValueError, match=message):
            q.marginal().kl_divergence(q)

    def test_file(self, tmp_path):
        q = make().to(dtype=torch.float32)
        q.save(tmp_path / "q")
        r = ba.load_posterior(tmp_path / "q")
        assert type(r) is ba.KroneckerGaussian
        assert r.hyperparameters == {"seed": 0}
        assert list(r.tensors()) == list(q.tensors())
        for (name, ours), theirs in zip(q.tensors().items(), r.tensors().values(), strict=True):
            assert ours.dtype == theirs.dtype == torch.float32, name
            assert torch.equal(ours, theirs), name
        assert r.left["z.weight"] is r.left["z.bias"]
        assert r.left["z.weight"] is not r.left["conv"]
        a, b = q.sample(3, seed=2), r.sample(3, seed=2)
        assert all(torch.equal(a[name], b[name]) for name in SHAPES)
        for name, value in make().variance.items():
            torch.testing.assert_close(r.variance[name].double(), value, rtol=1e-5, atol=1e-6)

    def test_inside_a_partial_one(self, tmp_path):
        fixed = {"first": draw(5, seed=3)}
        q = PartialGaussian(make(), fixed, order=["first", *SHAPES])
        whole = PartialGaussian(dense(make()), fixed, order=["first", *SHAPES])
        theta = q.sample(2)
        torch.testing.assert_close(q.log_prob(theta), whole.log_prob(theta), **EXACT)
        torch.testing.assert_close(q.kl_divergence(2.0), whole.kl_divergence(2.0), **EXACT)
        prior = PartialGaussian(make(8), fixed, order=["first", *SHAPES])
        expected = dense(make()).kl_divergence(dense(make(8)))
        torch.testing.assert_close(q.kl_divergence(prior), expected, **EXACT)
        q.save(tmp_path / "q")
        r = ba.load_posterior(tmp_path / "q")
        assert type(r.random) is ba.KroneckerGaussian
        assert all(torch.equal(value, r.sample(2)[name]) for name, value in theta.items())


def test_in_a_network():
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    left = {name: orthogonal(len(value)).float() for name, value in before.items()}
    right = {name: orthogonal(value.shape[1], 2).float() for name, value in before.items() if value.ndim == 2}
    q = ba.KroneckerGaussian(before, {n: torch.full_like(v, 0.1) for n, v in before.items()}, left, right)
    with q.applied(model, sample=2, seed=1):
        inside = {name: p.detach().clone() for name, p in model.named_parameters()}
    draws = q.sample(3, seed=1)
    assert all(torch.equal(inside[name], draws[name][2]) for name in before)
    assert not torch.equal(inside["0.weight"], before["0.weight"])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_pruning_is_refused():
    message = "^posterior must have a covariance that stays of its kind without some weights to be pruned, got a Kron"
    with pytest.raises(ValueError, match=message):
        make().prune(0.5)
    pruned = make().marginal().prune(0.5)
    assert sum((value == 0).sum() for value in pruned.variance.values()) == 16


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mean": {}}, r"^eigenvalues must have the names of mean \[\], got \['w'\]$"),
        ({"eigenvalues": {"v": torch.ones(2, 3)}}, r"^eigenvalues must have the names of mean \['w'\], got \['v'\]$"),
        ({"eigenvalues": {"w": torch.ones(3)}}, r"^variance of 'w' must be of shape \(2, 3\), got \(3,\)$"),
        ({"eigenvalues": {"w": -torch.ones(2, 3)}}, "^variance of 'w' must be finite and not negative, got -1.0$"),
        (
            {"eigenvalues": {"w": torch.eye(3)[:2]}},
            "^eigenvalues of 'w' must be positive, or all 0, got some that are 0$",
        ),
        ({"left": {"v": torch.eye(2)}}, "^left must only have weights that mean has, got 'v'$"),
        ({"left": {"w": torch.eye(3)}}, r"^left of 'w' must be of shape \(2, 2\), got \(3, 3\)$"),
        ({"right": {"w": torch.eye(2)}}, r"^right of 'w' must be of shape \(3, 3\), got \(2, 2\)$"),
        ({"right": {"w": 2 * torch.eye(3)}}, "^right of 'w' must be orthogonal, got a vector that it moves by "),
        ({"right": {"w": torch.eye(3).long()}}, "^right of 'w' must be a floating-point tensor, got dtype torch.int64"),
        ({"left": {"w": torch.full((2, 2), math.nan)}}, "^left of 'w' must be finite, got inf or nan$"),
    ],
)
def test_refusals(change, message):
    given = {
        "mean": {"w": torch.zeros(2, 3)},
        "eigenvalues": {"w": torch.ones(2, 3)},
        "left": {"w": torch.eye(2)},
        "right": {},
        **change,
    }
    with pytest.raises(ValueError, match=message):
        ba.KroneckerGaussian(**given)


def test_the_rows_of_the_covariance():
    q = make()
    for name in SHAPES:
        rows = q._rows(name)
        torch.testing.assert_close(rows @ rows.T, block(q, name), **EXACT)
    assert kronecker.MAX_WEIGHTS == 10_000
