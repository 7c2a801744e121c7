"""The optimisers with a Hessian, diagonal covariance: against loops, against exact posteriors, and their misuse."""

import math
from contextlib import suppress

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from optim.conftest import loss_of, make_net, same, snapshot, weights
from references import REFERENCES

CLASSES = {"von": ba.VON, "van": ba.VAN, "ngvi": ba.NGVI, "natural_von": ba.NaturalVON}
LR = {"von": 0.05, "van": 0.05, "ngvi": 0.02, "natural_von": 0.02}
D = 5


class Problem:
    """``sum_j 0.35 (j+1) x_j^2 - x_j cos(0.3 t + j) - a/9 cos(3 x_j)``, and coupling of neighbours in a ring.

    Its Hessian diagonal is ``0.7 (j+1) + a cos(3 x_j)``: positive for small ``a``.
    """

    def __init__(self, a=0.45, coupling=0.1):
        self.a, self.coupling = a, coupling

    def loss(self, x, t):
        j = torch.arange(D, dtype=x.dtype)
        own = 0.35 * (j + 1) * x.square() - x * torch.cos(0.3 * t + j) - self.a / 9 * torch.cos(3 * x)
        return own.sum() + self.coupling * (x * x.roll(-1)).sum()

    def gradient(self, x, t):
        return [
            0.7 * (j + 1) * x[j]
            - math.cos(0.3 * t + j)
            + self.a / 3 * math.sin(3 * x[j])
            + self.coupling * (x[(j + 1) % D] + x[j - 1])
            for j in range(D)
        ]

    def hessian(self, x, t):
        return [0.7 * (j + 1) + self.a * math.cos(3 * x[j]) for j in range(D)]


START = [0.4 - 0.3 * j for j in range(D)]


def tensor(value):
    return torch.tensor(value, dtype=torch.float64)


def eps_of(antithetic=False):
    def eps(t, sample):
        pair = sample // 2 if antithetic else sample
        draw = noise.normal(0, t, pair, 0, (D,)).double()
        return (-draw if antithetic and sample % 2 else draw).tolist()

    return eps


def closure_of(opt, problem, parameter, t):
    def closure():
        opt.zero_grad()
        loss = problem.loss(parameter, t)
        if opt.param_groups[0]["hessian"] == "reparameterized":
            loss.backward()
        return loss

    return closure


def run(name, problem, steps, mode="block", schedule=None, **hp):
    parameter = nn.Parameter(tensor(START))
    opt = CLASSES[name]([("w", parameter)], **hp)
    for t in range(steps):
        if schedule is not None:
            opt.param_groups[0]["betas"] = schedule(t)
        if mode == "train":
            opt.train()
        if mode != "block":
            opt.step(closure_of(opt, problem, parameter, t))
            continue
        for _ in range(hp.get("mc_samples", 1)):
            with opt.sampled_params():
                opt.backward(problem.loss(parameter, t))
        opt.step()
    opt.eval()
    q = opt.posterior()
    return q.mean["w"].tolist(), q.variance["w"].reciprocal().tolist()


def assert_matches(name, problem, steps=25, mode="block", schedule=None, **hp):
    hp = {"lr": LR[name], "num_data": 100.0, "betas": (0.9, 0.9), "prior_precision": 3.0, **hp}
    if name == "ngvi":
        assert schedule is None
    mean, precision = run(name, problem, steps, mode, schedule, **hp)
    options = {k: v for k, v in hp.items() if k not in ("hessian", "correction", "antithetic", "probes", "betas")}
    options.setdefault("initial_precision", 100.0)
    options["correction"] = hp.get("correction", None if hp["hessian"] == "exact" else "elementwise")
    if hp["hessian"] != "reparameterized":
        options["hessian"] = problem.hessian
    expected = REFERENCES[name](
        START, problem.gradient, eps_of(hp.get("antithetic")), steps, betas=schedule or hp["betas"], **options
    )
    assert mean == pytest.approx(expected[0], rel=1e-10, abs=1e-10)
    assert precision == pytest.approx(expected[1], rel=1e-10)


CASES = {
    "default": {},
    "three samples": {"mc_samples": 3},
    "antithetic": {"mc_samples": 4, "antithetic": True},
    "temperature 0": {"temperature": 0.0},
    "temperature 0.5": {"temperature": 0.5},
    "elementwise": {"correction": "elementwise"},
    "backtracking": {"correction": "backtracking"},
    "started elsewhere": {"initial_precision": 30.0},
}


@pytest.mark.parametrize(("case", "mode"), [*((case, "block") for case in CASES), ("antithetic", "closure")])
@pytest.mark.parametrize("name", CLASSES)
def test_exact_hessian_equals_reference_loop(name, case, mode):
    assert_matches(name, Problem(), mode=mode, hessian="exact", **CASES[case])


@pytest.mark.parametrize("correction", ["elementwise", "backtracking"])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("name", CLASSES)
def test_negative_curvature_equals_reference_loop(name, correction, temperature):
    rates = {"lr": 0.2} if name == "ngvi" else {"lr": 0.005, "betas": (0.5, 0.3)}
    assert_matches(
        name, Problem(a=6.0), hessian="exact", correction=correction, temperature=temperature, steps=12, **rates
    )


@pytest.mark.parametrize("mode", ["block", "closure", "train"])
@pytest.mark.parametrize("name", CLASSES)
def test_reparameterized_hessian_with_backtracking_equals_reference_loop(name, mode):
    hp = {"correction": "backtracking", "betas": (0.9, 0.9), "lr": LR[name] / 5}
    assert_matches(name, Problem(), mode=mode, hessian="reparameterized", **hp)
    if mode != "train":
        assert_matches(name, Problem(), mode=mode, hessian="reparameterized", mc_samples=2, **hp)


@pytest.mark.parametrize("samples", [1, 4])
def test_reparameterized_hessian_without_correction_equals_reference_loop(samples):
    hp = {"correction": None, "betas": (0.0, 0.999), "initial_precision": 1e4}
    assert_matches("von", Problem(), hessian="reparameterized", mc_samples=samples, **hp)


@pytest.mark.parametrize("probes", [1, 3])
@pytest.mark.parametrize("name", CLASSES)
def test_hutchinson_equals_reference_loop_where_the_hessian_is_diagonal(name, probes):
    assert_matches(name, Problem(coupling=0.0), hessian="hutchinson", probes=probes, mc_samples=2)


@pytest.mark.parametrize("name", ["von", "natural_von"])
def test_schedule_of_betas_equals_reference_loop(name):
    schedule = lambda t: (0.9 - 0.3 * (t % 5) / 5, 1 - 0.3 / (1 + t**0.55))  # noqa: E731
    assert_matches(name, Problem(), hessian="exact", schedule=schedule)
    assert_matches(name, Problem(a=6.0), hessian="exact", schedule=schedule, correction="backtracking")


def test_van_is_von_with_another_default_temperature():
    hp = {"lr": 0.05, "num_data": 100.0, "betas": (0.0, 0.9), "hessian": "exact"}
    assert run("van", Problem(), 20, temperature=1.0, **hp) == run("von", Problem(), 20, **hp)
    assert run("van", Problem(), 20, **hp) == run("von", Problem(), 20, temperature=0.0, **hp)
    assert run("van", Problem(), 20, **hp) != run("von", Problem(), 20, **hp)


def test_ngvi_is_von_with_one_rate():
    hp = {"num_data": 100.0, "hessian": "exact", "correction": "elementwise"}
    ngvi = run("ngvi", Problem(), 50, lr=0.1, **hp)
    von = run("von", Problem(), 50, lr=0.1, betas=(0.0, 0.9), **hp)
    assert ngvi[0] == pytest.approx(von[0], rel=1e-12)
    assert ngvi[1] == pytest.approx(von[1], rel=1e-12)


def test_ngvi_with_rate_zero_changes_nothing():
    net = make_net()
    before = weights(net)
    opt = ba.NGVI(net.named_parameters(), lr=0.0, num_data=77)
    precision = opt.posterior().variance
    for step in range(3):
        with opt.sampled_params():
            loss_of(net, step).backward()
        opt.step()
    assert torch.equal(weights(net), before)
    assert same(opt.posterior().variance, precision)


def test_natural_von_without_momentum_is_von():
    hp = {"lr": 0.05, "num_data": 100.0, "hessian": "exact"}
    natural = run("natural_von", Problem(), 50, betas=(0.0, 0.9), **hp)
    von = run("von", Problem(), 50, betas=(0.9, 0.9), **hp)
    assert natural[0] == pytest.approx(von[0], rel=1e-12)
    assert natural[1] == pytest.approx(von[1], rel=1e-12)


# Exact posteriors


class Regression:
    """Bayesian linear regression with known noise, whose posterior is a formula (methods section 2)."""

    def __init__(self, outputs=1, bias=True, rows=20, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(rows, 3, generator=generator, dtype=torch.float64) @ torch.tensor(
            [[1.0, 0.5, 0.0], [0.0, 1.0, 0.4], [0.0, 0.0, 0.7]], dtype=torch.float64
        )
        self.y = torch.randn(rows, outputs, generator=generator, dtype=torch.float64) + self.x[:, :1]
        self.noise, self.prior, self.rows = 0.5, 2.0, rows
        self.net = nn.Linear(3, outputs, bias=bias).double()
        columns = []
        for p in self.net.parameters():
            for i in range(p.numel()):  # what a unit weight adds to the outputs
                weight, offset = torch.zeros(outputs, 3).double(), torch.zeros(outputs).double()
                (weight if p.ndim == 2 else offset).view(-1)[i] = 1.0
                columns.append((self.x @ weight.T + offset).flatten())
        design = torch.stack(columns, 1)
        self.gram, self.moment = design.T @ design / self.noise, design.T @ self.y.flatten() / self.noise

    def loss(self, _=None):
        return 0.5 * (self.net(self.x) - self.y).square().sum(1).mean() / self.noise

    def exact(self, tau=1.0):
        """Mean, and the precision matrix, of the optimum of ``E[F] + tau KL``."""
        eye = torch.eye(len(self.gram), dtype=torch.float64)
        return torch.linalg.solve(self.gram + tau * self.prior * eye, self.moment), self.gram / tau + self.prior * eye

    def train(self, opt, steps, mode="block"):
        for _ in range(steps):
            if mode == "closure":
                opt.step(self.loss)
                continue
            for _ in range(opt.param_groups[0]["mc_samples"]):
                with opt.sampled_params():
                    opt.backward(self.loss())
            opt.step()
        q = opt.posterior()
        flat = [torch.cat([value.flatten() for value in part.values()]) for part in (q.mean, q.variance)]
        return flat[0], flat[1].reciprocal()


def relative(found, expected):
    return ((found - expected).norm() / expected.norm()).item()


PAIRS = {"mc_samples": 2, "antithetic": True, "hessian": "exact"}


@pytest.mark.parametrize(
    ("cls", "hp", "steps", "outputs"),
    [
        (ba.VON, {"lr": 0.5, "betas": (0.0, 0.0)}, 120, 1),
        (ba.VON, {"lr": 0.5, "betas": (0.0, 0.9)}, 250, 2),
        (ba.VAN, {"lr": 0.5, "betas": (0.0, 0.9), "temperature": 1.0}, 250, 1),
        (ba.NGVI, {"lr": 0.3}, 200, 2),
        (ba.NaturalVON, {"lr": 0.3, "betas": (0.4, 0.9)}, 250, 1),
    ],
    ids=["VON b2=0", "VON", "VAN", "NGVI", "NaturalVON"],
)
def test_exact_hessian_reaches_the_optimal_mean_field_posterior(cls, hp, steps, outputs):
    problem = Regression(outputs)
    mean, precision = problem.exact()
    opt = cls(problem.net.named_parameters(), num_data=20, prior_precision=2.0, **PAIRS, **hp)
    found = problem.train(opt, steps)
    assert relative(found[0], mean) < 1e-8
    assert relative(found[1], precision.diagonal()) < 1e-8


@pytest.mark.parametrize("tau", [0.3, 0.7])
def test_van_between_optimisation_and_inference_reaches_the_tempered_optimum(tau):
    problem = Regression()
    mean, precision = problem.exact(tau)
    opt = ba.VAN(
        problem.net.named_parameters(),
        lr=0.9,
        num_data=20,
        prior_precision=2.0,
        temperature=tau,
        betas=(0.0, 0.8),
        **PAIRS,
    )
    found = problem.train(opt, 350)
    assert relative(found[1], precision.diagonal()) < 1e-8  # N h / tau + lambda
    assert relative(found[0], mean) < 1e-8


def test_van_at_temperature_0_anneals_to_the_most_likely_weights():
    problem = Regression()
    mean, _ = problem.exact(tau=0.0)
    opt = ba.VAN(problem.net.named_parameters(), lr=1.0, num_data=20, prior_precision=2.0, betas=(0.0, 0.9), **PAIRS)
    found = problem.train(opt, 40)
    assert relative(found[1], 20.0 + 0.1 * 40 * problem.gram.diagonal()) < 1e-10
    found = problem.train(opt, 200)
    assert relative(found[0], mean) < 1e-4


def test_hutchinson_converges_to_the_optimal_mean_field_posterior():
    problem = Regression(2)
    mean, precision = problem.exact()
    hp = {**PAIRS, "hessian": "hutchinson", "lr": 0.3, "betas": (0.0, 0.9)}
    opt = ba.VON(problem.net.named_parameters(), num_data=20, prior_precision=2.0, **hp)
    problem.train(opt, 100)
    average = torch.zeros_like(mean)
    for _ in range(400):
        average += problem.train(opt, 1)[1] / 400
    assert relative(average, precision.diagonal()) < 0.05
    assert relative(problem.train(opt, 1)[0], mean) < 0.01


# Precisions stay positive


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    ("correction", "hessian", "temperature"),
    [
        ("elementwise", "exact", 0.0),
        ("elementwise", "hutchinson", 1.0),
        ("elementwise", "reparameterized", 0.0),
        ("backtracking", "exact", 1.0),
        ("backtracking", "hutchinson", 0.0),
        ("backtracking", "reparameterized", 1.0),
    ],
)
def test_precision_stays_positive_under_wild_curvature(name, correction, hessian, temperature):
    parameter = nn.Parameter(tensor([0.3, -0.2, 0.1, 0.0]))
    options = {} if name == "ngvi" else {"betas": (0.5, 0.1)}
    opt = CLASSES[name](
        [("w", parameter)],
        lr=0.5 if name == "ngvi" else 1e-3,
        num_data=10,
        temperature=temperature,
        hessian=hessian,
        correction=correction,
        **options,
        **({"mc_samples": 2} if hessian == "reparameterized" else {}),
    )
    negative = 0
    for step in range(60):
        for _ in range(opt.param_groups[0]["mc_samples"]):
            with opt.sampled_params():
                wild = tensor([1.0, 30.0, 1e3, 1e-3])
                opt.backward((wild * torch.cos(3.0 * parameter + step)).sum())
                negative += int((torch.cos(3.0 * parameter + step) > 0).sum())
        opt.step()
        variance = opt.posterior().variance["w"]
        assert (variance > 0).all()
        assert variance.isfinite().all()
    assert negative > 50


def two_groups(**options):
    first, second = (nn.Parameter(torch.full((2,), value, dtype=torch.float64)) for value in (0.5, -0.5))
    groups = [{"params": [("a", first)]}, {"params": [("b", second)], "betas": (0.0, 0.99)}]
    hp = {"lr": 0.0, "num_data": 100.0, "prior_precision": 10.0, "betas": (0.0, 0.5), "hessian": "exact", **options}
    return first, second, ba.VON(groups, **hp)


@pytest.mark.parametrize("wild_first", [False, True])
def test_backtracking_halves_the_largest_admissible_rate_of_all_weights_together(wild_first):
    first, second, opt = two_groups(correction="backtracking")
    start = 0.9  # s0 = (100 - 10) / 100, and s + d = 1
    # The second weight falls by 1 at rate 1, the last by 20: it becomes zero at rate 0.05
    curves = [tensor([3.0, -0.1]), tensor([2.0, -19.1])]
    if wild_first:
        curves.reverse()
    with opt.sampled_params():
        opt.backward(0.5 * sum((c * p.square()).sum() for c, p in zip(curves, (first, second), strict=True)))
    opt.step()
    # 0.5 is too much for the first group; the second's own rate is smaller still
    for parameter, curve, rate in ((first, curves[0], 0.025), (second, curves[1], 0.01)):
        expected = start - rate * (start - curve)
        assert opt.state[parameter]["hessian"].tolist() == pytest.approx(expected.tolist(), rel=1e-13)
        assert opt.state[parameter]["beta2_product"] == pytest.approx(1 - rate, rel=1e-13)


def test_backtracking_takes_the_minimum_with_the_groups_own_rate_and_forgets_it():
    first, second, opt = two_groups(correction="backtracking")
    for curve, rate in ((-200.0, 0.5 / 200.9), (2.0, None)):
        before = opt.state[first]["hessian"].clone() if first in opt.state else torch.full((2,), 0.9).double()
        with opt.sampled_params():
            opt.backward(0.5 * curve * (first.square().sum() + second.square().sum()))
        opt.step()
        rate = rate or 0.5  # nothing falls below zero at any rate: the group's own
        assert opt.state[first]["hessian"].tolist() == pytest.approx((before - rate * (before - curve)).tolist())
    assert opt.param_groups[0]["betas"] == (0.0, 0.5)


@pytest.mark.parametrize("name", CLASSES)
def test_backtracking_changes_nothing_where_curvature_is_positive(name):
    hp = {"lr": LR[name], "num_data": 100.0, "hessian": "exact"}
    assert run(name, Problem(), 50, correction="backtracking", **hp) == run(name, Problem(), 50, **hp)


def test_without_correction_a_noisy_hessian_is_refused_too():
    parameter = nn.Parameter(torch.ones(4, dtype=torch.float64))
    opt = ba.VON([parameter], num_data=10, hessian="reparameterized", correction=None, betas=(0.0, 0.0))
    before = parameter.detach().clone()
    with pytest.raises(FloatingPointError, match="posterior precision must stay positive"):
        for _ in range(20):
            with opt.sampled_params():
                (100 * parameter).sum().backward()
            before = parameter.detach().clone()
            opt.step()
    assert torch.equal(parameter, before)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize("mode", ["block", "closure"])
def test_without_correction_an_indefinite_step_is_refused_and_nothing_changed(name, mode):
    parameters = [nn.Parameter(torch.full((3,), value, dtype=torch.float64)) for value in (0.5, -0.5)]
    options = {} if name == "ngvi" else {"betas": (0.5, 0.5)}
    opt = CLASSES[name](parameters, lr=0.5, num_data=10, hessian="exact", **options)
    assert opt.defaults["correction"] is None

    def loss(curve):
        return parameters[0].square().sum() + 0.5 * curve * parameters[1].square().sum()

    opt.step(lambda: loss(2.0))
    before, held = snapshot(opt), [p.detach().clone() for p in parameters]
    with pytest.raises(FloatingPointError, match="posterior precision must stay positive, .* nothing was changed"):
        if mode == "closure":
            opt.step(lambda: loss(-50.0))
        else:
            with opt.sampled_params():
                opt.backward(loss(-50.0))
            opt.step()
    assert same(snapshot(opt), before)
    assert same([p.detach() for p in parameters], held)
    opt.zero_grad()
    opt.step(lambda: loss(-0.01))  # a little negative curvature is no harm


def test_steps_that_are_refused_can_be_skipped_and_are_counted():
    parameter = nn.Parameter(torch.ones(3, dtype=torch.float64))
    opt = ba.VON([parameter], num_data=10, hessian="exact", betas=(0.0, 0.5), nonfinite="skip")
    for curve in (1.0, -50.0, 1.0, -50.0, -50.0):
        states = snapshot(opt)[1]
        opt.step(lambda curve=curve: 0.5 * curve * parameter.square().sum())
        assert (same(snapshot(opt)[1], states)) == (curve < 0)
    assert opt.param_groups[0]["skipped_steps"] == 3
    assert opt.state[parameter]["step"] == 2


@pytest.mark.parametrize("correction", [None, "elementwise", "backtracking"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_hessian_that_is_not_finite_changes_nothing(correction, value):
    """At 0 the gradient of ``x^1.5`` is 0 and its second derivative infinite."""
    parameter = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    opt = ba.VON([parameter], num_data=10, hessian="exact", correction=correction)
    opt.step(lambda: parameter.square().sum())
    opt.zero_grad()
    before = snapshot(opt)

    def closure():
        zero = parameter - parameter.detach()
        return (zero if math.isinf(value) else zero.abs()).pow(1.5).sum()

    with pytest.raises(FloatingPointError, match="curvature of parameter number 0 must be finite, got inf or nan"):
        opt.step(closure)
    assert parameter.grad.tolist() == [0.0] * 3
    assert same(snapshot(opt), before)


# Misuse


@pytest.fixture(params=["exact", "hutchinson"])
def deferred(request):
    """A network and its VON with second derivatives."""
    net = make_net(torch.float64)
    return net, ba.VON(net.named_parameters(), num_data=50, hessian=request.param, correction="elementwise")


def assert_refused(net, opt, error, match, call):
    opt.step(lambda: loss_of(net))
    opt.zero_grad()
    before, held = snapshot(opt), weights(net)
    with pytest.raises(error, match=match):
        call()
    assert same(snapshot(opt), before)
    assert torch.equal(weights(net), held)
    assert all(p.grad is None for p in net.parameters())
    opt.step(lambda: loss_of(net))
    assert not torch.equal(weights(net), held)


def test_a_closure_that_has_called_backward_is_refused(deferred):
    net, opt = deferred

    def closure():
        loss = loss_of(net)
        loss.backward()
        return loss

    assert_refused(
        net, opt, RuntimeError, r"loss.backward\(\) must not be called when hessian='", lambda: opt.step(closure)
    )


def test_a_backward_in_a_block_is_refused(deferred):
    net, opt = deferred

    def block():
        with opt.sampled_params():
            loss_of(net).backward()

    assert_refused(net, opt, RuntimeError, r"must not be called .* call optimizer.backward\(loss\)", block)


def test_a_loss_that_was_backwarded_is_refused(deferred):
    net, opt = deferred

    def block():
        with opt.sampled_params():
            loss = loss_of(net)
            loss.backward()
            opt.backward(loss)

    assert_refused(net, opt, RuntimeError, r"loss.backward\(\) must not be called when hessian='", block)


@pytest.mark.parametrize("result", [None, 0.5])
def test_a_closure_must_return_the_loss(deferred, result):
    net, opt = deferred
    match = f"closure must return the loss when hessian='.*', got {result!r}"
    assert_refused(net, opt, TypeError, match, lambda: opt.step(lambda: result))


def test_a_loss_must_be_one_number(deferred):
    net, opt = deferred
    match = "loss must be one number, got a tensor of shape"
    assert_refused(net, opt, ValueError, match, lambda: opt.step(lambda: net(torch.ones(2, 3).double())))


def test_a_loss_without_a_graph_is_refused(deferred):
    net, opt = deferred
    assert_refused(net, opt, RuntimeError, "does not require grad", lambda: opt.step(lambda: loss_of(net).detach()))


def test_train_is_refused_by_name(deferred):
    net, opt = deferred
    held = weights(net)
    with pytest.raises(RuntimeError, match=r"hessian must be 'reparameterized' to use train\(\), got '(exact|hut.*)'"):
        opt.train()
    assert torch.equal(weights(net), held)
    opt.train(False)
    opt.eval()


def test_backward_outside_a_block_leaves_no_trace_in_the_next_step(deferred):
    nets, results = (make_net(torch.float64), make_net(torch.float64)), []
    for net, stray in zip(nets, (False, True), strict=True):
        opt = ba.VON(net.named_parameters(), num_data=50, hessian=deferred[1].defaults["hessian"])
        for step in range(2):
            if stray:
                with suppress(RuntimeError):  # refusing it is as good
                    opt.backward(loss_of(net, 7))
            with opt.sampled_params():
                opt.backward(loss_of(net, step))
            opt.step()
        results.append(weights(net))
    assert torch.equal(*results)


def test_a_step_after_a_backward_outside_a_block_is_refused(deferred):
    net, opt = deferred
    held = weights(net)
    with pytest.raises(RuntimeError, match="sampl"):
        opt.backward(loss_of(net))
        opt.step()
    assert torch.equal(weights(net), held)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_micro_batches_accumulate(covariance):
    results = []
    for parts in (1, 4):
        net = make_net(torch.float64)
        opt = ba.VON(
            net.named_parameters(), num_data=50, hessian="exact", covariance=covariance, correction="elementwise"
        )
        generator = torch.Generator().manual_seed(0)
        for _ in range(3):
            x = torch.randn(8, 3, generator=generator, dtype=torch.float64)
            with opt.sampled_params():
                for part in x.chunk(parts):
                    opt.backward(net(part).pow(2).sum() / 16)
            opt.step()
        q = opt.posterior()
        results.append((weights(net), torch.cat([v.flatten() for v in q.variance.values()])))
    assert torch.allclose(results[0][0], results[1][0], rtol=1e-10, atol=1e-12)
    assert torch.allclose(results[0][1], results[1][1], rtol=1e-10)


def test_zero_grad_in_a_block_forgets_what_was_handed_over(deferred):
    if deferred[1].defaults["hessian"] == "hutchinson":
        pytest.skip("another number of the backward pass, another probe")
    results = []
    for twice in (False, True):
        net = make_net(torch.float64)
        opt = ba.VON(net.named_parameters(), num_data=50, hessian="exact", correction="elementwise")
        with opt.sampled_params():
            if twice:
                opt.backward(loss_of(net, 9))
                opt.zero_grad()
            opt.backward(loss_of(net))
        opt.step()
        results.append((weights(net), snapshot(opt)))
    assert same(*results)


@pytest.mark.parametrize("make", [ba.Vadam, ba.Vprop, ba.IVON, ba.VON], ids=lambda cls: cls.__name__)
def test_backward_of_ordinary_optimisers_is_the_losss(make):
    results = []
    for handed in (False, True):
        net = make_net()
        opt = make(net.named_parameters(), num_data=50)
        for step in range(3):
            with opt.sampled_params():
                loss = loss_of(net, step)
                opt.backward(loss) if handed else loss.backward()
            opt.step()
        results.append((weights(net), snapshot(opt)))
    assert same(*results)


def test_backward_works_under_no_grad(deferred):
    net, opt = deferred
    with opt.sampled_params():
        loss = loss_of(net)
        with torch.no_grad():
            opt.backward(loss)
    opt.step()


def test_closure_returns_the_loss_without_its_graph(deferred):
    net, opt = deferred
    loss = opt.step(lambda: loss_of(net))
    assert loss.grad_fn is None
    assert loss.item() > 0


# Options

BAD = [
    ({"hessian": "diagonal"}, r"hessian must be one of \('reparameterized', 'exact', 'hutchinson'\), got 'diagonal'"),
    ({"correction": "elementwize"}, r"correction must be one of \('elementwise', 'backtracking', None\), got 'eleme"),
    ({"probes": 0}, "probes must be a whole number of at least 1, got 0"),
    ({"probes": 1.5}, "probes must be a whole number of at least 1, got 1.5"),
]


@pytest.mark.parametrize("name", CLASSES)
def test_probes_may_be_any_whole_number(name):
    probes = CLASSES[name](make_net().parameters(), num_data=10, probes=3.0).param_groups[0]["probes"]
    assert type(probes) is int


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_bad_options(name, options, message):
    with pytest.raises(ValueError, match=message):
        CLASSES[name](make_net().parameters(), num_data=10, **options)


@pytest.mark.parametrize("name", ["ngvi", "natural_von"])
def test_covariance_is_diagonal_but_for_von(name):
    with pytest.raises((TypeError, ValueError), match="covariance"):
        CLASSES[name](make_net().parameters(), num_data=10, covariance="full", hessian="exact", betas=(0.9, 0.9))


@pytest.mark.parametrize(
    ("option", "value"), [("hessian", "reparameterized"), ("correction", "backtracking"), ("probes", 3)]
)
def test_options_are_the_same_in_all_groups(option, value):
    net = make_net()
    opt = ba.VON(net[0].parameters(), num_data=10, hessian="exact")
    with pytest.raises(ValueError, match=f"{option} must be the same in all groups, got {value!r}"):
        opt.add_param_group({"params": net[2].parameters(), option: value})
    assert len(opt.param_groups) == 1


def test_defaults_of_the_correction():
    corrections = {h: ba.VON(make_net().parameters(), num_data=10, hessian=h) for h in ("exact", "hutchinson")}
    corrections["default"] = ba.VON(make_net().parameters(), num_data=10)
    found = {name: opt.param_groups[0]["correction"] for name, opt in corrections.items()}
    assert found == {"exact": None, "hutchinson": "elementwise", "default": "elementwise"}


def test_a_state_dict_of_another_hessian_is_refused():
    net = make_net()
    exact = ba.VON(net.named_parameters(), num_data=10, hessian="exact")
    exact.step(lambda: loss_of(net))
    other = ba.VON(make_net().named_parameters(), num_data=10)
    before = snapshot(other)
    with pytest.raises(ValueError, match="hessian of the state_dict must be 'reparameterized', got 'exact'"):
        other.load_state_dict(exact.state_dict())
    assert same(snapshot(other), before)


def test_a_parameter_added_later_has_its_own_hessian():
    first, second = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
    opt = ba.VON([first], lr=0.1, num_data=10, hessian="exact", betas=(0.0, 0.0))
    opt.step(lambda: first.square().sum())
    opt.add_param_group({"params": [second]})
    opt.step(lambda: first.square().sum() + 2 * second.square().sum())
    assert opt.state[first]["hessian"].tolist() == pytest.approx([2.0, 2.0])
    assert opt.state[second]["hessian"].tolist() == pytest.approx([4.0, 4.0])


def test_parameters_without_noise_follow_their_exact_hessian_and_none_that_is_read_off_the_noise():
    for hessian, expected in (("exact", [4.0, 4.0]), ("reparameterized", [1.0, 1.0])):
        noisy, plain = (nn.Parameter(torch.ones(2, dtype=torch.float64)) for _ in range(2))
        groups = [{"params": [noisy]}, {"params": [plain], "perturb": False}]
        opt = ba.VON(groups, lr=0.5, num_data=10, hessian=hessian, betas=(0.0, 0.0), initial_precision=11.0)
        with opt.sampled_params():
            assert plain.tolist() == [1.0, 1.0]
            opt.backward(noisy.square().sum() + 2 * plain.square().sum())
        opt.step()
        assert opt.state[plain]["hessian"].tolist() == pytest.approx(expected)
        divisor = expected[0] + 0.1
        assert plain.tolist() == pytest.approx([1.0 - 0.5 * (4.0 + 0.1) / divisor] * 2)


def test_gradients_changed_inside_the_block_are_refused(net):
    """The curvature was taken for the gradient as it was; ``loss.backward()`` besides would count it twice."""
    opt = ba.VON(net.named_parameters(), num_data=50, hessian="exact", correction="elementwise")
    changes = {
        "backward": lambda: loss_of(net).backward(),
        "clip": lambda: torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3),
        "clear": lambda: net.zero_grad(),
    }
    for change in changes.values():
        mean = weights(net)
        with pytest.raises(RuntimeError, match="must not be changed inside the block"), opt.sampled_params():
            opt.backward(loss_of(net))
            change()
        assert torch.equal(weights(net), mean)
    with pytest.raises(RuntimeError, match=r"loss.backward\(\) must not be called"), opt.sampled_params():
        loss_of(net).backward()
        opt.backward(loss_of(net))
    with opt.sampled_params():
        opt.backward(loss_of(net))
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)
    opt.step()


@pytest.mark.parametrize("make", [ba.Vadam, ba.VON])
def test_backward_is_for_samples_only(net, make):
    opt = make(net.named_parameters(), num_data=50)
    with pytest.raises(RuntimeError, match=r"backward\(\) must be called inside sampled_params\(\)"):
        opt.backward(loss_of(net))
    opt.train()
    opt.backward(loss_of(net))
    opt.step()


def test_the_step_of_ngvi_is_at_most_one(net):
    with pytest.raises(ValueError, match=r"lr must be at most 1, got 1\.5"):
        ba.NGVI(net.named_parameters(), lr=1.5, num_data=50)


def test_a_refused_step_leaves_nothing_behind_in_drop_in_training(net):
    """Back-tracking keeps the curvature: that of a refused gradient must be gone."""
    opt = ba.VON(net.named_parameters(), num_data=50, correction="backtracking")
    opt.train()
    (math.inf * loss_of(net)).backward()
    with pytest.raises(FloatingPointError, match="must be finite"):
        opt.step()
    for _ in range(2):
        opt.zero_grad()
        loss_of(net).backward()
        opt.step()
    assert all(value.isfinite().all() for value in opt.posterior().variance.values())


def test_a_group_cannot_have_another_hessian(net):
    for name, value in (("hessian", "exact"), ("covariance", "full")):
        with pytest.raises(ValueError, match=f"{name} must be the same in all groups, got '{value}'"):
            ba.VON([{"params": list(net.parameters()), name: value}], num_data=50)


def test_the_scale_of_low_precision_gradients_does_not_overflow():
    parameter = torch.nn.Parameter(torch.zeros(100, dtype=torch.float16))
    opt = ba.Vadam([parameter], num_data=50, mc_samples=2)
    for _ in range(2):
        with opt.sampled_params():
            parameter.grad = torch.full_like(parameter, 1e4)
    opt.step()
    assert opt.state[parameter]["exp_avg_sq"].isfinite().all()
