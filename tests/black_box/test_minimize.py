"""Black-box minimisation: SciPy's conventions, the step against VAN's rule, noise, bounds, and what is refused."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesadam as ba
from bayesadam.black_box.rates import AdaptiveRate, Reliability
from bayesadam.black_box.search import Search, reflected, utilities


def bowl(x):
    return ((x - 1.0) ** 2).sum()


def search(size, *, full, noisy=False):
    free = torch.full((size,), torch.inf, dtype=torch.float64)
    mean, widths = torch.linspace(-1, 1, size).double(), torch.linspace(0.5, 2.0, size).double()
    return Search(mean, widths, -free, free, full=full, pairs=4, noisy=noisy, seed=3)


def test_the_minimum_of_a_bowl_is_found():
    found = ba.minimize(bowl, torch.zeros(3, 2))
    assert found.success
    assert found.status == 0
    assert found.x.shape == found.mean.shape == found.std.shape == (3, 2)
    assert found.covariance.shape == (6, 6)
    assert found.x == pytest.approx(torch.ones(3, 2), abs=1e-5)
    assert found.fun == float(bowl(found.x))
    assert float(found.std.max()) < 1e-6
    assert not found.noisy
    assert found["nfev"] == dict(found)["nfev"] == found.nfev
    with pytest.raises(KeyError, match="jac"):
        found["jac"]


@pytest.mark.parametrize(
    ("x0", "kind", "dtype"),
    [
        (torch.zeros(2), torch.Tensor, torch.float32),
        (torch.zeros(2, dtype=torch.float64), torch.Tensor, torch.float64),
        (np.zeros(2, dtype=np.float32), np.ndarray, np.dtype(np.float32)),
        ([0, 0], np.ndarray, np.dtype(np.float64)),
        (0.0, np.ndarray, np.dtype(np.float64)),
    ],
    ids=str,
)
def test_the_function_is_given_what_x0_is(x0, kind, dtype):
    seen = set()

    def f(x):
        seen.add((type(x), x.dtype, tuple(x.shape)))
        x += 7.0  # a point is the function's own
        return bowl(x - 7.0)

    found = ba.minimize(f, x0, maxfev=200)
    assert seen == {(kind, dtype, tuple(np.shape(x0)))}
    assert type(found.x) is kind
    assert found.x.dtype == dtype
    assert np.asarray(found.x) == pytest.approx(np.ones(np.shape(x0)), abs=0.02)


def test_many_points_at_once_give_the_same():
    x0 = torch.zeros(2, 2, dtype=torch.float64)
    one = ba.minimize(bowl, x0, maxfev=150)
    many = ba.minimize(lambda x: ((x - 1.0) ** 2).sum((1, 2)), x0, maxfev=150, vectorized=True)
    assert many.nfev == one.nfev == 150
    assert many.x == pytest.approx(one.x, abs=1e-12)


@pytest.mark.parametrize("noise", [0.0, 1.0])
@pytest.mark.parametrize("maxfev", [1, 2, 3, 5, 9, 10, 11, 12, 37, 101])
def test_the_evaluations_are_as_many_as_asked_for(maxfev, noise):
    generator, calls = np.random.default_rng(0), []

    def f(x):
        calls.append(x)
        return bowl(x) + noise * generator.standard_normal()

    found = ba.minimize(f, np.zeros(3), maxfev=maxfev)
    assert len(calls) == found.nfev == maxfev
    assert (found.success, found.status) == (False, 1)
    assert "maximum number" in found.message


def test_the_seed_decides():
    one, same, other = (ba.minimize(bowl, np.zeros(3), maxfev=60, seed=seed) for seed in (1, 1, 2))
    assert (one.x == same.x).all()
    assert (one.x != other.x).all()


def rosenbrock(x):
    return (100.0 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1.0 - x[..., :-1]) ** 2).sum(-1)


def test_a_full_covariance_follows_a_curved_valley_and_a_diagonal_one_does_not():
    starts = [torch.tensor([-1.0, float(k)], dtype=torch.float64) for k in range(5)]
    values = {
        kind: sorted(
            ba.minimize(rosenbrock, x0, maxfev=1500, vectorized=True, covariance=kind, seed=seed).fun
            for seed, x0 in enumerate(starts)
        )
        for kind in ("full", "diagonal")
    }
    assert values["full"][2] < 1e-6
    assert values["diagonal"][2] > 1e-4
    assert ba.minimize(rosenbrock, starts[0], maxfev=20, covariance="diagonal").covariance is None


def test_by_default_large_problems_have_a_diagonal_covariance():
    assert ba.minimize(bowl, np.zeros(50), maxfev=2).covariance is not None
    assert ba.minimize(bowl, np.zeros(51), maxfev=2).covariance is None


def test_ranks_alone_count():
    one = ba.minimize(bowl, np.zeros(3), maxfev=100)
    other = ba.minimize(lambda x: math.exp(3.0 * bowl(x)) - 50.0, np.zeros(3), maxfev=100)
    assert (one.x == other.x).all()


def test_the_tolerance_of_the_values_is_absolute():
    plain, tiny = (
        [ba.minimize(lambda x, scale=scale: scale * bowl(x), np.zeros(3), **options) for options in ({}, {"ftol": 0.0})]
        for scale in (1.0, 2.0**-50)
    )
    assert (plain[1].x == tiny[1].x).all()
    assert plain[1].nfev == tiny[1].nfev
    assert tiny[0].success
    assert tiny[0].nfev < plain[0].nfev < plain[1].nfev


def test_without_noise_the_best_point_seen_is_returned():
    seen = {}

    def f(x):
        seen[float(bowl(x))] = x.copy()
        return bowl(x)

    found = ba.minimize(f, np.zeros(3), maxfev=50)
    assert found.fun == min(seen)
    assert (found.x == seen[found.fun]).all()


def test_with_noise_the_mean_is_returned_and_is_closer_than_the_luckiest_point():
    errors, lucky = [], []
    for seed in range(10):
        generator, seen = np.random.default_rng(seed), []

        def f(x, generator=generator, seen=seen):
            value = bowl(x) + generator.standard_normal()
            seen.append((value, float(bowl(x))))
            return value

        found = ba.minimize(f, np.full(3, -2.0), seed=seed)
        assert found.noisy
        assert (found.x == found.mean).all()
        assert abs(found.fun - bowl(found.x)) < 3.0
        errors.append(float(bowl(found.x)))
        lucky.append(min(seen)[1])
    assert np.median(errors) < 0.1
    assert np.median(errors) < 0.3 * np.median(lucky)


def test_noise_is_noticed_or_told():
    generator = np.random.default_rng(0)
    assert not ba.minimize(bowl, np.zeros(2), maxfev=100).noisy
    assert ba.minimize(lambda x: bowl(x) + generator.standard_normal(), np.zeros(2), maxfev=100).noisy
    assert ba.minimize(bowl, np.zeros(2), maxfev=100, noisy=True).noisy
    assert not ba.minimize(lambda x: bowl(x) + generator.standard_normal(), np.zeros(2), maxfev=100, noisy=False).noisy


def test_bounds_hold_and_a_minimum_at_one_is_found():
    seen = []

    def f(x):
        seen.append(x.copy())
        return (x**2).sum()

    found = ba.minimize(f, np.array([4.0, 0.5, 1.0]), bounds=[(2.0, 5.0), (-1.0, None), (None, -0.5 + 2.0)])
    points = np.array(seen)
    assert (points[:, 0] >= 2.0).all()
    assert (points[:, 0] <= 5.0).all()
    assert (points[:, 1] >= -1.0).all()
    assert (points[:, 2] <= 1.5).all()
    assert found.x == pytest.approx([2.0, 0.0, 0.0], abs=1e-3)


def test_bounds_are_scipys():
    optimize = pytest.importorskip("scipy.optimize")
    x0 = np.full(3, 3.0)
    pairs = ba.minimize(bowl, x0, bounds=[(2.0, 5.0)] * 3, maxfev=60)
    own = ba.minimize(bowl, x0, bounds=optimize.Bounds(2.0, [5.0] * 3), maxfev=60)
    tensor = ba.minimize(bowl, x0, bounds=torch.tensor([[2.0, 5.0]] * 3), maxfev=60)
    assert (pairs.x == own.x).all()
    assert (pairs.x == tensor.x).all()
    assert optimize.OptimizeResult(pairs).nit == pairs.nit


def test_reflection():
    lower = torch.tensor([0.0, -math.inf, 0.0, -math.inf], dtype=torch.float64)
    upper = torch.tensor([5.0, 5.0, math.inf, math.inf], dtype=torch.float64)
    points = torch.tensor([[-1.0, 7.0, -3.0, 9.0], [12.0, 1.0, 1.0, -9.0], [4.9, 5.0, 0.0, 0.1]], dtype=torch.float64)
    wanted = torch.tensor([[1.0, 3.0, 3.0, 9.0], [2.0, 1.0, 1.0, -9.0], [4.9, 5.0, 0.0, 0.1]], dtype=torch.float64)
    assert torch.equal(reflected(points, lower, upper), wanted)


def test_the_width_at_the_start():
    assert ba.minimize(bowl, np.zeros(2), maxfev=1).std.tolist() == [1.0, 1.0]
    assert ba.minimize(bowl, np.zeros(2), maxfev=1, bounds=[(-2.0, 2.0), (None, 3.0)]).std.tolist() == [1.0, 1.0]
    assert ba.minimize(bowl, np.zeros(2), maxfev=1, bounds=[(-2.0, 6.0), (None, 3.0)]).std.tolist() == [2.0, 1.0]
    assert ba.minimize(bowl, np.zeros(2), maxfev=1, std=[0.1, 3.0]).std == pytest.approx([0.1, 3.0])


def test_flat_functions_end():
    found = ba.minimize(lambda x: 2.0, np.zeros(3))
    assert found.success
    assert found.nit == 10
    assert (found.x == 0.0).all()


@pytest.mark.parametrize(
    "true", [True, np.True_, np.array([True]), torch.tensor(True), torch.tensor([[True]]), "iteration"], ids=repr
)
def test_the_callback_stops(true):
    seen = []

    def callback(intermediate_result):
        seen.append(intermediate_result)
        if len(seen) == 3:
            if true == "iteration":
                raise StopIteration
            return true
        return None if len(seen) == 1 else not true

    found = ba.minimize(bowl, np.zeros(3), callback=callback)
    assert (found.status, found.success, found.nit) == (2, False, 3)
    assert "callback" in found.message
    assert [one.nit for one in seen] == [1, 2, 3]
    assert all(one.fun == bowl(one.x) for one in seen)
    assert found.fun <= seen[-1].fun


@pytest.mark.parametrize("value", [1, 1.0, "stop", np.ones(1), torch.ones(()), torch.tensor([True, True])], ids=repr)
def test_other_values_of_the_callback_do_not_stop(value):
    assert ba.minimize(bowl, np.zeros(3), callback=lambda x: value, maxfev=60).status == 1


def test_the_callback_may_take_the_point():
    seen = []
    found = ba.minimize(bowl, np.zeros(3), callback=seen.append, maxfev=60)
    assert len(seen) == found.nit
    assert all(isinstance(x, np.ndarray) for x in seen)


@pytest.mark.parametrize("full", [True, False])
def test_the_step_is_vans(full):
    """The same step by the library's rule, from gradient and Hessian by Stein's identities; if full, in matrices."""
    q = search(3, full=full)
    before_mean, before_std = q.mean.clone(), q.std.clone()
    eps, points = q.draw(5)
    values = (points**2 + points).sum(1)
    u = utilities(values)
    rate, scale_rate = (q._shape_rate, 0.5 if full else 1.0)
    gradient = torch.zeros(3, dtype=torch.float64)
    hessian = torch.zeros(3, 3, dtype=torch.float64)
    for k in range(8):
        for i in range(3):
            gradient[i] += u[k] * eps[k, i] / before_std[i]
            for j in range(3):
                hessian[i, j] += u[k] * (eps[k, i] * eps[k, j] - float(i == j))
    trace = hessian.diagonal().mean() * torch.eye(3, dtype=torch.float64)
    change = rate * (hessian - trace) + scale_rate * trace
    q.update(eps, values)
    if full:
        inverse = torch.diag(1 / before_std)
        r = inverse @ change @ inverse
        precision = inverse @ inverse
        precision = precision + r + 0.5 * r @ torch.linalg.inv(precision) @ r
        assert torch.linalg.inv(q.covariance) == pytest.approx(precision, rel=1e-9, abs=1e-12)
        assert q.mean == pytest.approx(before_mean - torch.linalg.solve(precision, gradient), rel=1e-9)
        return
    rule = ba.VAN.rule
    hyper = {"lr": 1.0, "num_data": 1.0, "temperature": 0.0, "prior_mean": 0.0, "prior_precision": 0.0}
    hyper |= {
        "initial_precision": 1.0,
        "betas": (0.0, 0.0),
        "step": 1,
        "correction": "elementwise",
        "clip_radius": math.inf,
    }
    mean, state = before_mean.clone(), {"hessian": before_std**-2}
    rule.update_(mean, state, gradient.clone(), change.diagonal() / before_std**2, hyper)
    assert q.mean == pytest.approx(mean, rel=1e-9)
    assert q.std**-2 == pytest.approx(rule.precision(state, hyper), rel=1e-9)


def test_points_are_antithetic_and_of_the_covariance():
    q = search(4, full=True)
    eps, points = q.draw(0)
    assert torch.equal(eps[:4], -eps[4:])
    assert (points - q.mean) == pytest.approx(eps * q.std)
    assert not torch.equal(q.draw(1)[0], eps)


def test_utilities():
    found = utilities(torch.tensor([3.0, 1.0, 2.0, 9.0, 8.0, 7.0]).double())
    raw = np.maximum(0.0, math.log(4.0) - np.log(np.arange(1, 7)))
    wanted = 1 / 6 - raw / raw.sum()
    assert found.numpy() == pytest.approx(wanted[[2, 0, 1, 5, 4, 3]])
    tied = utilities(torch.tensor([2.0, 1.0, 2.0, 1.0]).double())
    assert tied[0] == tied[2] > tied[1] == tied[3]
    assert float(tied.sum()) == pytest.approx(0.0, abs=1e-15)
    assert utilities(torch.full((6,), 2.0).double()) == pytest.approx(torch.zeros(6).double(), abs=1e-15)


def test_rates_follow_the_signal():
    generator = torch.Generator().manual_seed(0)
    constant, noise = AdaptiveRate(0.1, 1.4), AdaptiveRate(0.1, 1.4)
    for _ in range(300):
        constant(torch.ones(5))
        noise(torch.randn(5, generator=generator))
    assert constant.value == 1.0
    assert noise.value < 0.1


def test_reliability():
    generator = torch.Generator().manual_seed(0)
    values = torch.arange(30).double()
    clear, lost = Reliability(), Reliability()
    assert clear.value == 0.0
    for _ in range(10):
        clear.observe(values, 2 * values + 1)
        lost.observe(values, torch.randn(30, generator=generator).double())
    assert clear.value == 1.0
    assert lost.value < 0.2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"x0": np.array([])}, "x0 must be finite, real numbers"),
        ({"x0": np.array([0.0, math.nan])}, "x0 must be finite, real numbers"),
        ({"x0": ["a"]}, "x0 must be finite, real numbers"),
        ({"x0": np.array([1j])}, "x0 must be finite, real numbers"),
        (
            {"bounds": [(0.5, 1.0)] * 3},
            r"x0 must be within the bounds, got 0.0 at position 0, .*\[0.5, 1.0",
        ),
        ({"bounds": [(-1.0, 1.0)] * 2}, r"bounds must be 3 pairs \(lower, upper\)"),
        ({"bounds": [(-1.0, 1.0, 2.0)] * 3}, r"bounds must be 3 pairs \(lower, upper\)"),
        ({"bounds": 3.0}, r"bounds must be 3 pairs \(lower, upper\)"),
        ({"bounds": [(0.0, 0.0)] * 3}, "bounds must have each lower bound below the upper one"),
        ({"std": 0.0}, "std must be positive and finite, one number or 3, got 0.0"),
        ({"std": [1.0, 2.0]}, "std must be positive and finite, one number or 3"),
        ({"std": "1.0"}, "std must be positive and finite, one number or 3, got '1.0'"),
        ({"std": ["1", "1", "1"]}, r"std must be positive and finite, one number or 3, got \['1', '1', '1'\]"),
        ({"std": [1, None, 1]}, r"std must be positive and finite, one number or 3, got \[1, None, 1\]"),
        ({"std": [1, math.nan, 1]}, r"std must be positive and finite, one number or 3, got \[1, nan, 1\]"),
        ({"std": []}, r"std must be positive and finite, one number or 3, got \[\]"),
        ({"std": 1j}, "std must be positive and finite, one number or 3, got 1j"),
        ({"std": 10**400}, "std must be positive and finite, one number or 3, got 1000"),
        ({"bounds": [(-1.0, 10**400)] * 3}, r"bounds must be 3 pairs \(lower, upper\)"),
        ({"maxfev": 0}, "maxfev must be a whole number of at least 1, got 0"),
        ({"maxfev": 10.5}, "maxfev must be a whole number"),
        ({"pairs": 1}, "pairs must be a whole number of at least 2, got 1"),
        ({"xtol": -1.0}, "xtol must be a finite number of at least 0, got -1.0"),
        ({"ftol": math.nan}, "ftol must be a finite number of at least 0, got nan"),
        ({"covariance": "dense"}, "covariance must be one of .*got 'dense'"),
        ({"nonfinite": "ignore"}, "nonfinite must be 'raise' or 'skip', got 'ignore'"),
        ({"noisy": "no"}, "noisy must be True, False or None, got 'no'"),
        ({"vectorized": None}, "vectorized must be True or False, got None"),
        ({"seed": -1}, "seed must be a whole number in"),
        ({"callback": 3}, "callback must be None or callable, got 3"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_bad_arguments_are_named_before_the_function_is_called(options, message):
    def never(x):
        raise AssertionError("called")

    with pytest.raises(ValueError, match=message):
        ba.minimize(never, **{"x0": np.zeros(3), **options})


def test_a_global_generator_is_not_touched():
    state = torch.get_rng_state()
    ba.minimize(bowl, torch.zeros(2), maxfev=50)
    assert torch.equal(torch.get_rng_state(), state)


ROOT = Path(__file__).parents[2]
METHODS = ("ours", "cma", "Nelder-Mead", "random")


def compared():
    """The rows of the guide's table: function and size, and numbers."""
    page = (ROOT / "docs" / "guides" / "black-box.md").read_text()
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 7 and cells[1].isdigit():
            yield f"{cells[0]} {cells[1]}", [float(cell) for cell in cells[2:]]


def test_the_guide_has_the_numbers_of_the_benchmark():
    results = json.loads((ROOT / "benchmarks" / "results" / "minimize.json").read_text())["problems"]
    rows = dict(compared())
    assert len(rows) == len(results) == 30
    for key, (*medians, first) in rows.items():
        assert medians == pytest.approx([results[key][method]["median"] for method in METHODS], rel=0.051), key
        assert first == results[key]["cma"]["first"]


def test_the_benchmark_says_what_the_guide_does():
    results = json.loads((ROOT / "benchmarks" / "results" / "minimize.json").read_text())["problems"]
    for key, found in results.items():
        assert found["ours"]["median"] <= found["random"]["median"], key
        if key.startswith("noisy") and key != "noisy Rosenbrock 2":
            assert found["ours"]["median"] < found["cma"]["median"], key
            assert found["cma"]["first"] >= 15, key
