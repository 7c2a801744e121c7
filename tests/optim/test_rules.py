"""The rules against slow float64 loops, their noise-free limits against torch, and the fixed point of the precision."""

import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam.optim import OPTIMIZERS
from optim.methods import RATES, Method, make_step, methods, variance_of
from optim.problems import START, D, Problem, eps_of, tensor
from references import REFERENCES, Setting

LR = {"vadagrad": 0.05, "ivon": 0.05, "vogn": 0.05, "von": 0.05, "van": 0.05}
PUBLISHED = sorted(name for name in RATES if name in REFERENCES)
"""BayesAdam, our own, has a test of its own."""
WITH_PRIOR = [name for name in PUBLISHED if OPTIMIZERS[name].has_prior]
SECOND_ORDER = ["von", "van", "ngvi", "natural_von"]
ON_NOISE = [*SECOND_ORDER, "ivon", "bbb"]
"""Their curvature is read off the noise, if they are not given the Hessian."""


def trained(name, steps, problem, mode="block", schedule=None, make=None, **hyperparameters):
    """The mean, and the precision, after some steps; VOGN's minibatches are one example."""
    net = nn.Linear(D, 1, bias=False).double()
    net.weight.data.copy_(tensor([START]))
    opt = (make or Method(name))(net, **hyperparameters)

    def loss(t):
        if name == "vogn":  # of which this is the gradient, at any weights
            return net(tensor([problem.gradient(net.weight[0].tolist(), t)])).mean()
        return problem.loss(net.weight[0], t)

    for t in range(steps):
        if schedule is not None:
            opt.param_groups[0]["betas"] = schedule(t)
        make_step(opt, lambda t=t: loss(t), mode)
    opt.eval()
    q = opt.posterior()
    return q.mean["weight"][0].tolist(), q.variance["weight"][0].reciprocal().tolist()


def assert_matches(name, steps=30, *, problem=None, mode="block", schedule=None, prior=None, **hyperparameters):
    problem = problem or Problem()
    settings = {"lr": LR.get(name, 0.01), "num_data": 100.0, "betas": (0.9, 0.99), **hyperparameters}
    if name == "vadagrad":
        settings.setdefault("initial_precision", 100.0)
    elif prior is None:
        settings.setdefault("prior_precision", 3.0)
    else:
        mean, variance = ({"weight": tensor([values])} for values in prior)
        settings["prior"] = ba.DiagonalGaussian(mean, variance)
    mean, precision = trained(name, steps, problem, mode, schedule, **settings)

    hessian = settings.pop("hessian", "reparameterized")
    settings.pop("probes", None)
    noise = eps_of(antithetic=settings.pop("antithetic", False))
    settings.setdefault("initial_precision", 100.0)
    settings.setdefault("temperature", 0.0 if name == "van" else 1.0)
    if schedule is not None:
        settings["betas"] = schedule
    start = START
    if settings.pop("prior", None) is not None:
        start = settings["prior_mean"] = prior[0]
        settings["prior_precision"] = 1 / prior[1][0]
    if hessian != "reparameterized":
        settings["hessian"] = problem.hessian
    expected = REFERENCES[name](start, steps, Setting(problem.gradient, noise, **settings))
    assert mean == pytest.approx(expected[0], rel=1e-10, abs=1e-10)
    assert precision == pytest.approx(expected[1], rel=1e-10)


CASES = {
    "default": {},
    "three samples": {"mc_samples": 3},
    "antithetic": {"mc_samples": 4, "antithetic": True},
    "b2 = 0": {"betas": (0.9, 0.0)},
    "b1 = 0": {"betas": (0.0, 0.99)},
    "schedule": {"schedule": lambda t: (0.9 - 0.3 * (t % 5) / 5, 1 - 0.1 / (1 + t**0.55))},
    "started elsewhere": {"initial_precision": 500.0},
}
TEMPERED = {
    **{f"temperature {tau}": {"temperature": tau} for tau in (0.0, 0.01, 0.5)},
    "another mean of the prior": {"prior": ([0.5, -0.2, 0.1, 0.3, -0.4], [1 / 40.0] * D)},
}


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("case", CASES)
def test_equals_reference_loop_given_the_same_noise(name, case):
    options = dict(CASES[case])
    if case == "b2 = 0" and name in SECOND_ORDER:  # one step's noise often gives a negative precision
        options["correction"] = "elementwise"
    # Without memory the step divides by this gradient's size alone, which multiplies rounding errors step by step.
    assert_matches(name, 10 if case == "b2 = 0" else 30, **options)


LIKE_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "prior_precision": 1.0}
DEFAULTS = {
    **dict.fromkeys(("vadam", "vprop", "bbb", "natural_vadam", "natural_von"), LIKE_ADAM),
    "vadagrad": {"lr": 1e-2, "betas": (0.9, 0.999), "temperature": 0.0},
    "von": {"lr": 1e-2, "betas": (0.0, 0.999), "prior_precision": 1.0},
    "van": {"lr": 1e-2, "betas": (0.0, 0.999), "prior_precision": 1.0, "temperature": 0.0},
    "vogn": {"lr": 1e-3, "betas": (0.0, 0.999), "prior_precision": 1.0},
    "ngvi": {"lr": 1e-2, "betas": (0.9, 0.999), "prior_precision": 1.0},
    "ivon": {"lr": 0.1, "betas": (0.9, 0.99999), "prior_precision": 1e-4 * 100.0},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_default_arguments_are_the_published_algorithm(name):
    """Only the sizes are given; the initial precision is ``max(num_data, prior_precision)``."""

    def with_defaults(net, **required):
        curvature = {"curvature": ba.PerExampleSquares(net)} if name == "vogn" else {}
        return OPTIMIZERS[name](net.named_parameters(), num_data=100.0, **curvature, **required)

    required = {"initial_precision": 100.0} if name == "vadagrad" else {}
    mean, precision = trained(name, 30, Problem(), make=with_defaults, **required)
    setting = Setting(Problem().gradient, eps_of(), num_data=100.0, initial_precision=100.0, **DEFAULTS[name])
    expected = REFERENCES[name](START, 30, setting)
    assert mean == pytest.approx(expected[0], rel=1e-10, abs=1e-10)
    assert precision == pytest.approx(expected[1], rel=1e-10)


@pytest.mark.parametrize("name", WITH_PRIOR)
@pytest.mark.parametrize("case", TEMPERED)
def test_temperature_and_prior_equal_reference_loop(name, case):
    assert_matches(name, **TEMPERED[case])


@pytest.mark.parametrize(("clip_radius", "rescale_lr"), [(0.1, True), (math.inf, False), (0.1, False)])
def test_ivon_options_equal_reference_loop(clip_radius, rescale_lr):
    assert_matches("ivon", 60, lr=0.01, initial_precision=30.0, clip_radius=clip_radius, rescale_lr=rescale_lr)


@pytest.mark.parametrize("name", ["von", "van"])
def test_clipped_newton_steps_equal_reference_loop(name):
    options = {"initial_precision": 30.0, "lr": 0.05}
    assert_matches(name, 20, clip_radius=0.2, **options)
    clipped, free = (
        trained(name, 20, Problem(), num_data=100.0, **options, **radius)[0] for radius in ({"clip_radius": 0.2}, {})
    )
    assert max(abs(a - b) for a, b in zip(clipped, free, strict=True)) > 0.01


# With second derivatives

EXACT = {
    "default": {},
    "three samples": {"mc_samples": 3},
    "temperature 0": {"temperature": 0.0},
    "temperature 0.5": {"temperature": 0.5},
    "elementwise": {"correction": "elementwise"},
    "backtracking": {"correction": "backtracking"},
    "closure": {"mode": "closure", "mc_samples": 4, "antithetic": True},
}


@pytest.mark.parametrize("name", SECOND_ORDER)
@pytest.mark.parametrize("case", EXACT)
def test_exact_hessian_equals_reference_loop(name, case):
    assert_matches(name, 20, hessian="exact", betas=(0.9, 0.9), **EXACT[case])


@pytest.mark.parametrize("name", SECOND_ORDER)
@pytest.mark.parametrize("correction", ["elementwise", "backtracking"])
@pytest.mark.parametrize("temperature", [0.0, 0.5])
def test_negative_curvature_equals_reference_loop(name, correction, temperature):
    options = {"hessian": "exact", "correction": correction, "temperature": temperature, "betas": (0.5, 0.3)}
    assert_matches(name, 12, problem=Problem(a=6.0), lr=0.2 if name == "ngvi" else 0.005, **options)


@pytest.mark.parametrize("name", SECOND_ORDER)
@pytest.mark.parametrize(("mode", "samples"), [("block", 2), ("closure", 1), ("train", 1)])
def test_backtracking_on_noise_equals_reference_loop(name, mode, samples):
    options = {"correction": "backtracking", "betas": (0.9, 0.9), "lr": 0.005, "mc_samples": samples}
    assert_matches(name, 20, mode=mode, **options)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_elementwise_correction_on_noise_equals_reference_loop(name):
    assert_matches(name, correction="elementwise", betas=(0.5, 0.9), mc_samples=2)


@pytest.mark.parametrize("name", SECOND_ORDER)
def test_hutchinson_equals_reference_loop_where_the_hessian_is_diagonal(name):
    problem = Problem(coupling=0.0)
    assert_matches(name, 20, problem=problem, hessian="hutchinson", probes=2, mc_samples=2, betas=(0.9, 0.9))


# Limits and fixed points


def run_torch(make, steps):
    parameter = nn.Parameter(tensor(START))
    opt = make([parameter])
    for t in range(steps):
        parameter.grad = tensor(Problem().gradient(parameter.tolist(), t))
        opt.step()
    return parameter.tolist()


NEGLIGIBLE = {"num_data": 1e30, "prior_precision": 1e22, "initial_precision": 1e22}
LIMITS = {
    "vadam": (
        {"lr": 0.01, "betas": (0.9, 0.999), **NEGLIGIBLE, "initial_precision": 1e30},
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.9, 0.999), eps=1e-8),
    ),
    "vprop": (
        {"lr": 0.001, "betas": (0.0, 0.9), **NEGLIGIBLE},
        lambda p: torch.optim.RMSprop(p, lr=0.001, alpha=0.9, eps=1e-8),
    ),
    "vadagrad": (
        {"lr": 0.05, "betas": (0.0, 0.0), "num_data": 1e15, "initial_precision": 1e28},
        lambda p: torch.optim.Adagrad(p, lr=0.05, eps=0.0, initial_accumulator_value=1e-2),
    ),
}


@pytest.mark.parametrize("name", LIMITS)
def test_with_negligible_noise_and_prior_it_is_the_optimiser_of_torch(name):
    options, make = LIMITS[name]
    mean, _ = trained(name, 100, Problem(), **options)
    assert mean == pytest.approx(run_torch(make, 100), abs=5e-8)


@methods(["vprop", "ivon", "ngvi", "natural_vadam"])
def test_fixed_point_of_the_precision_is_the_tempered_optimum(method):
    """E[N h] / tau + lambda, here with a curvature estimate that is constant in expectation."""
    curvature, prior, num_data, tau = 3.0, 2.0, 50.0, 0.5
    parameter = nn.Parameter(torch.zeros(4_096, dtype=torch.float64))
    options = {"num_data": num_data, "prior_precision": prior, "temperature": tau, "betas": (0.9, 0.99)}
    # NGVI's learning rate is also the precision's; its mean moves, which changes nothing about the expectation.
    opt = method(None, [("w", parameter)], lr=0.01 if method.name == "ngvi" else 0.0, **options)
    on_noise = method.name in ON_NOISE
    for _ in range(1_500):
        with opt.sampled_params():
            # E[g eps / sigma] = curvature; the squared gradient is constant.
            at = curvature * parameter.detach() if on_noise else torch.full_like(parameter, math.sqrt(curvature))
            parameter.grad = at
        opt.step()
    expected = num_data * curvature / tau + prior
    tolerance = 0.02 if on_noise else 1e-3  # the correction term has a bias of order 1 - b2
    assert variance_of(opt).reciprocal().mean().item() == pytest.approx(expected, rel=tolerance)
