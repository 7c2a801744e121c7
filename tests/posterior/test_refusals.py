"""What constructors of posteriors refuse, each kind of mistake once."""

import math

import torch

import bayesadam as ba
from bayesadam.posterior import BernoulliPosterior, PartialGaussian, ensemble
from posterior.kinds import SHAPES, dense, diagonal, draw, kronecker, means
from refusals import assert_refused, refusals

NAN, INF = math.nan, math.inf
TWO = {"w": torch.zeros(2)}


def tensors(values):
    return {name: torch.as_tensor(value) for name, value in values.items()}


def of(cls, *parts):
    """A posterior from dicts of numbers."""
    return lambda: cls(*(tensors(part) for part in parts))


def covariance(matrix, **mean):
    return lambda: ba.DenseGaussian(tensors(mean or TWO), torch.tensor(matrix))


def factor(matrix):
    return lambda: ba.DenseGaussian.from_scale_tril(TWO, torch.tensor(matrix))


def precision(matrix, random=None):
    random = None if random is None else torch.tensor(random)
    return lambda: ba.DenseGaussian.from_precision(TWO, torch.tensor(matrix), random=random)


def from_covariance_of_low_rank(size, rank):
    root = draw(size, rank)
    return lambda: ba.DenseGaussian({"w": torch.zeros(size)}, root @ root.T)


def low_rank_precision(matrix, rank):
    return lambda: ba.LowRankGaussian.from_precision({"w": torch.zeros(3)}, matrix, rank)


def factored(**change):
    given = {"mean": {"w": torch.zeros(2, 3)}, "eigenvalues": {"w": torch.ones(2, 3)}, "left": {}, "right": {}}
    return lambda: ba.KroneckerGaussian(**{**given, **change})


def fixed(**change):
    return lambda: PartialGaussian(**{"random": dense(), "fixed": {"f": torch.zeros(2)}, **change})


def network(*shape, table=None, **options):
    layer = torch.nn.Linear(*shape, **options)
    if table is not None:
        layer.table = torch.nn.Parameter(torch.tensor([table]), requires_grad=False)
    return layer


def buffered(name):
    return diagonal().with_buffers({name: torch.zeros(2)})


CASES = [
    (of(ba.DiagonalGaussian, {}, {}), "mean must have at least one weight tensor, got none"),
    (lambda: ba.DiagonalGaussian.point_mass(torch.nn.ReLU()), "mean must have at least one weight tensor, got none"),
    (of(ba.DiagonalGaussian, {"a": 1.0, "b": 1.0}, {"b": 1.0, "a": 1.0}), "variance must have the names .*'b', 'a'"),
    (of(ba.DiagonalGaussian, {"a": [1.0]}, {"a": [1.0] * 2}), r"variance of 'a' must be of shape \(1,\), got \(2,\)"),
    (of(ba.DiagonalGaussian, {"a": INF}, {"a": 1.0}), "mean of 'a' must be finite, got inf or nan"),
    (of(ba.DiagonalGaussian, {"a": 0.0}, {"a": -2.0}), "variance of 'a' must be finite and not negative, got -2.0"),
    (of(ba.DiagonalGaussian, {"a": 0.0}, {"a": NAN}), "variance of 'a' must be finite and not negative, got nan"),
    (of(BernoulliPosterior, {}, {}), "probability must have at least one weight tensor, got none"),
    (of(BernoulliPosterior, {"a": 0.5}, {"b": 1.0}), r"scale must have the names of probability \['a'\], got \['b'\]"),
    (of(BernoulliPosterior, {"a": 1}, {"a": 1.0}), "probability of 'a' must be a floating-point tensor, got dtype"),
    (of(BernoulliPosterior, {"a": 1.5}, {"a": 1.0}), r"probability of 'a' must be in \[0, 1\], got 1.5"),
    (of(BernoulliPosterior, {"a": NAN}, {"a": 1.0}), r"probability of 'a' must be in \[0, 1\], got nan"),
    (
        of(BernoulliPosterior, {"a": 0.5}, {"a": 1}),
        "scale of 'a' must be of the .* dtype torch.float32 or a narrower one, got",
    ),
    (of(BernoulliPosterior, {"a": [0.5]}, {"a": [1.0] * 2}), r"scale of 'a' must broadcast to the shape \(1,\), got"),
    (of(BernoulliPosterior, {"a": 0.5}, {"a": INF}), "scale of 'a' must be finite, got inf or nan"),
    (covariance([[1.0]]), r"covariance must be of shape \(2, 2\), got \(1, 1\)"),
    (covariance([[1]], a=[0.0]), "covariance must be a floating-point tensor, got dtype torch.int64"),
    (covariance([[NAN]], a=[0.0]), "covariance must be finite, got inf or nan"),
    (covariance([[-2.0]], a=[0.0]), "covariance must have a diagonal that is not negative, got -2.0"),
    (covariance([[1.0, 0.5], [0.25, 1.0]]), r"covariance must be symmetric, got 0.5 at \(0, 1\) and 0.25 at \(1, 0\)"),
    (covariance([[1.0, 1e-9], [1e-9, 0.0]]), "covariance must be 0 in the row and column of every 0 on its diagonal"),
    (covariance([[4.0, 0.0, 4.0], [0.0, 0.0, 0.0], [4.0, 0.0, 1.0]], a=[0.0] * 3), "covariance must be positive"),
    (covariance([[1.0, 1.0], [1.0, 1.0]]), "covariance must be positive definite"),
    (from_covariance_of_low_rank(50, 20), "covariance must be positive definite"),  # with pivots of rounding
    (
        lambda: ba.DenseGaussian({"w": torch.zeros(10_001)}, torch.empty(()).expand(10_001, 10_001)),
        "mean must have at most 10,000 weights for a dense .*, got 10,001",
    ),
    (
        lambda: ba.DenseGaussian({"a": torch.zeros(1), "b": torch.zeros(1, device="meta")}, torch.eye(2)),
        "mean of 'b' must be on the device of the others, cpu, got meta",
    ),
    (factor([[1.0, 0.5], [0.0, 1.0]]), r"scale_tril must be lower triangular, got 0.5 at \(0, 1\) above the diagonal"),
    (factor([[1.0, 0.0], [0.0, -1.0]]), "scale_tril must have a diagonal that is not negative, got -1.0"),
    (factor([[1.0, 0.0], [0.5, 0.0]]), r"scale_tril must be 0 in the row and column .*, got 0.5 at \(1, 0\)"),
    (factor([[0.0, 0.0], [0.5, 1.0]]), r"scale_tril must be 0 in the row and column .*, got 0.5 at \(1, 0\)"),
    (precision([[1.0, 2.0], [2.0, 1.0]]), "precision must be positive definite over the random .*, got -1 as the "),
    (precision([[1.0, 0.0], [0.0, 0.0]]), "precision must have a positive diagonal over .* weights, got 0.0"),
    (precision([[1.0, 0.1], [0.0, 1.0]]), "precision must be symmetric, got 0.1"),
    (precision([[1.0, 0.0], [0.0, 1.0]], [1.0, 0.0]), r"random must be a boolean tensor of shape \(2,\), got torch.fl"),
    (of(ba.LowRankGaussian, TWO, TWO, {"b": [[1.0] * 2]}), r"factors must have the names of mean \['w'\], got \['b'\]"),
    (of(ba.LowRankGaussian, TWO, TWO, {"w": [1.0] * 2}), r"factors of 'w' must be of shape \(2, 2\), got \(2,\)"),
    (of(ba.LowRankGaussian, TWO, TWO, {"w": 1.0}), r"factors of 'w' must be of shape \(0, 2\), got \(\)"),
    (of(ba.LowRankGaussian, TWO, TWO, {"w": [[1.0, NAN]]}), "factors of 'w' must be finite, got inf or nan"),
    (of(ba.LowRankGaussian, TWO, TWO, {"w": [[1, 2]]}), "factors of 'w' must be a floating-point tensor, got dtype"),
    (of(ba.LowRankGaussian, *[{"a": 0.0, "b": 0.0}] * 2, {"a": [1.0, 2.0], "b": [1.0]}), "factors of 'b' must be of"),
    (low_rank_precision(torch.eye(3), -1), "rank must be a whole number of at least 0, got -1"),
    (low_rank_precision(torch.eye(2), 2), r"precision must be of shape \(3, 3\), got \(2, 2\)"),
    (low_rank_precision(-torch.eye(3), 2), "precision must be finite with a positive diagonal, got other numbers"),
    (low_rank_precision(2 * torch.eye(3) - 1.5, 2), "precision must be positive definite, got -.* as the smallest"),
    (factored(eigenvalues={"v": torch.ones(2, 3)}), r"eigenvalues must have the names of mean \['w'\], got \['v'\]"),
    (factored(eigenvalues={"w": torch.ones(3)}), r"variance of 'w' must be of shape \(2, 3\), got \(3,\)"),
    (factored(eigenvalues={"w": torch.eye(3)[:2]}, left={"w": torch.eye(2)}), "eigenvalues of 'w' must be positive,"),
    (factored(left={"v": torch.eye(2)}), "left must only have weights that mean has, got 'v'"),
    (factored(left={"w": torch.eye(3)}), r"left of 'w' must be of shape \(2, 2\), got \(3, 3\)"),
    (factored(right={"w": 2 * torch.eye(3)}), "right of 'w' must be orthogonal, got a matrix that "),
    (factored(right={"w": torch.eye(3).long()}), "right of 'w' must be a floating-point tensor, got dtype torch.int64"),
    (factored(left={"w": torch.full((2, 2), NAN)}), "left of 'w' must be finite, got inf or nan"),
    (fixed(random="other"), r"random must be one of \['DenseGaussian', .*\], got str"),
    (fixed(fixed={"a": torch.zeros(())}), "fixed must only have weights that are not random, got 'a'"),
    (fixed(fixed={"f": torch.tensor([NAN])}), "mean of 'f' must be finite, got inf or nan"),
    (fixed(order=["f"]), r"order must have the names .*, got \['f'\]"),
    (fixed(order=[*reversed(SHAPES), "f"]), "order must keep the order of the random weights "),
    (lambda: ba.Mixture([]), "components must have at least one posterior, got none"),
    (lambda: ba.Mixture([3]), "components must be Gaussian posteriors or mixtures, got int"),
    (
        lambda: ba.Mixture([diagonal(means({"a": (2,)})), diagonal(means({"a": (2,), "b": ()}))]),
        r"components\[1\] must only have weights that the posterior has, got 'b'",
    ),
    (lambda: ensemble([]), "models must have at least one network, got none"),
    (lambda: ensemble([network(3, 2), network(3, 4)]), r"models must be of one architecture, got 'weight' \(\(2, 3\),"),
    (lambda: ensemble([network(3, 2), network(3, 2, bias=False)]), "models must be of .* in model 0 and None in mod"),
    (lambda: ensemble([network(3, 2, table=0), network(3, 2, table=1)]), "mean of 'table' must be a floating-point"),
    (lambda: ba.Mixture([buffered("a"), buffered("b")]), r"components\[1\] must have the buffers \['a'\], got \['b'\]"),
    (lambda: ba.merge([buffered("a"), diagonal()]), r"posteriors\[1\] must have the buffers \['a'\], got \[\]"),
    (lambda: ba.merge([]), "posteriors must have at least one posterior, got none"),
    (lambda: ba.merge([diagonal(), dense()]), "posteriors must be DiagonalGaussians .* got DenseGaussian"),
    (lambda: ba.merge([diagonal(), diagonal(means({"a": ()}))]), "posteriors.1. must have the weights 'z.weight', got"),
    (lambda: ba.merge([diagonal()] * 2, weights=[1]), r"weights must have one number for each of 2 .*, got \[1.0\]"),
    (lambda: ba.merge([diagonal()], base=dense()), "base must be a DiagonalGaussian .* got DenseGaussian"),
    (
        lambda: ba.merge([diagonal()], base=diagonal({"v": torch.ones(1)})),
        r"base must have weights of .* got only \['v'\]",
    ),
    (
        lambda: ba.merge([diagonal({"v": torch.ones(2)})], base=diagonal({"v": torch.ones(1)})),
        r"base of 'v' must be of shape \(2,\), got \(1,\)",
    ),
    (lambda: ba.merge([diagonal()] * 2, weights=[1, -1]), "weights must be positive and finite, got -1.0"),
    (lambda: diagonal().prune(-0.1), r"fraction must be in \[0, 1\], got -0.1"),
    (lambda: dense().prune(NAN), r"fraction must be in \[0, 1\], got nan"),
    (lambda: diagonal().prune(0.5, by="size"), r"by must be one of \('signal_to_noise', 'magnitude'\), got 'size'"),
    (lambda: kronecker().prune(0.5), "posterior must be of a class that can be pruned, got a KroneckerGaussian, whose"),
    (lambda: ba.DenseGaussian({"w": torch.tensor([1e6])}, torch.eye(1)).to(dtype=torch.float16), "mean of 'w' must be"),
    (lambda: dense().scaled(-0.1), "factor must be a finite number of at least 0, got -0.1"),
    (lambda: dense().scaled("2"), "factor must be a finite number of at least 0, got '2'"),
]


@refusals([(make, f"^{message}") for make, message in CASES])
def test_refusals(call, error, message):
    assert_refused(call, error, message)
