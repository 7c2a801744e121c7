"""The recipe "learned": what its rules compute, beside slow loops in float64, and what it promises."""

import inspect
import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from bayesadam.engine.rule import RECENCY, START
from bayesadam.optim import IVON, VOGN, Vadam, Vprop
from bayesadam.optim.ivon import SQUARES
from bayesadam.optim.recipes import recipe_of

N, M, STEPS = 200, 16, 25
FOUR = [Vadam, Vprop, IVON, VOGN]


class Line(nn.Module):
    def __init__(self, size=6):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(size, generator=generator, dtype=torch.float64) * 0.3)

    def forward(self, x):
        return (x * self.weight).sum(-1)


def rows(step):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(M, 6, generator=generator, dtype=torch.float64)
    return x, x[:, 0] + 0.5 * torch.randn(M, generator=generator, dtype=torch.float64)


def gradients(theta, step):
    """Per-example gradients of the half squared error, by hand."""
    x, y = rows(step)
    return ((x @ theta) - y).unsqueeze(-1) * x


def prior_precision(values):
    return 2.0 ** round(math.log2(0.1 / values.var(correction=0).item()))


def train(cls, **options):
    model = Line()
    if cls is VOGN:
        options["curvature"] = ba.PerExampleSquares(model)
    else:
        options["batch_size"] = M
    opt = cls(model.named_parameters(), num_data=N, seed=7, **options)
    for step in range(STEPS):
        x, y = rows(step)
        with opt.sampled_params():
            (0.5 * (model(x) - y).square()).mean().backward()
        opt.step()
    return model, opt


def reference(cls):
    """The rule as its docstring states it."""
    mean = Line().weight.detach().clone()
    tau, (b1, b2) = (cls.recipes["learned"][name] for name in ("temperature", "betas"))
    lr = {IVON: 0.3, VOGN: 0.01}.get(cls, 5e-3)  # IVON has fewer weights than a minibatch has examples
    lam = prior_precision(mean)
    d, start, k = lam / N, lam + START * N / tau, 30.0
    m, v = torch.zeros_like(mean), torch.zeros_like(mean)
    s = torch.full_like(mean, (start - lam) / N)
    forgotten = 1.0
    precision = torch.full_like(mean, start)
    for step in range(STEPS):
        t = step + 1
        eps = noise.normal(7, step, 0, 0, (6,)).double()
        sigma = precision.rsqrt()
        each = gradients(mean + sigma * eps, step)
        g = each.mean(0)
        weight = max(1 - b2, RECENCY / (t + k + RECENCY - 1))  # tau r
        forgotten *= 1 - weight
        prior = tau * d * mean
        if cls in (Vadam, Vprop):
            v = b2 * v + (1 - b2) * g**2
            corrected = v / (1 - b2**t)
            m = b1 * m + (1 - b1) * (g + prior)
            direction = m / (1 - b1**t) if cls is Vadam else g + prior
            mean = mean - lr * direction / (corrected.sqrt() + tau * d + 1e-8)
            precision = (1 - forgotten) * (N * M * corrected / tau + lam) + forgotten * start
            continue
        if cls is IVON:
            h = g * eps / sigma
            if t > 1:
                h = (1 - SQUARES) * h + SQUARES * M * g * (g - m / (1 - b1 ** (t - 1)))
            m = b1 * m + (1 - b1) * g
            error, r = tau * s - h, weight / tau
            s = s - r * error + 0.5 * r**2 * error**2 / (s + d)
            newton = (m / (1 - b1**t) + prior) / (s + d)
            mean = mean - lr * (start - lam) / N * newton
        else:
            h = each.square().mean(0)
            m = b1 * m + (1 - b1) * (g + prior)
            s = (1 - weight) * s + weight / tau * h
            mean = mean - lr / tau * m / (1 - b1**t) / (s + d)
        precision = N * (s + d)
    return mean, precision, forgotten


@pytest.mark.parametrize("compile", [False, None])
@pytest.mark.parametrize("cls", FOUR)
def test_steps_are_those_of_a_slow_loop(cls, compile):
    model, opt = train(cls, compile=compile)
    mean, precision, _ = reference(cls)
    q = opt.posterior()
    # The noise is float32, and the kernels' differs from it by a few 1e-7.
    torch.testing.assert_close(model.weight.detach(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(q.variance["weight"], 1 / precision, rtol=1e-4, atol=0.0)


@pytest.mark.parametrize("cls", FOUR)
def test_share_of_the_start_is_that_of_a_start_of_thirty_steps(cls):
    _, opt = train(cls)
    _, precision, forgotten = reference(cls)
    start = START * N / cls.recipes["learned"]["temperature"]
    found = opt.report().rows[0].start_share
    assert found == pytest.approx((forgotten * start / precision).clamp(0, 1).mean().item(), rel=1e-3)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.99999)])
def test_start_is_forgotten_whatever_betas_are(betas):
    _, opt = train(IVON, betas=betas)
    t, k = STEPS, 30
    expected = math.prod((i + k + 2 - 3) / (i + k + 2) for i in range(1, t + 1))
    state = next(iter(opt.state.values()))
    assert state["initial_weight"] == pytest.approx(expected)


def test_average_never_reaches_back_further_than_betas_say():
    _, opt = train(IVON, betas=(0.9, 0.5))
    assert next(iter(opt.state.values()))["initial_weight"] == pytest.approx(0.5**STEPS)


@pytest.mark.parametrize("cls", FOUR)
def test_width_is_learned_on_regression(cls):
    """At the end the precision is that of the tempered optimum, N h / tau + lambda, with h = E[x^2] var."""
    torch.manual_seed(0)
    count, size = 2000, 8
    x = torch.randn(count, size) * torch.logspace(-0.5, 0.5, size)
    y = x.sum(-1, keepdim=True) + torch.randn(count, 1)
    model = nn.Linear(size, 1)
    options = {"curvature": ba.PerExampleSquares(model)} if cls is VOGN else {"batch_size": 50}
    lr = {Vadam: 0.05, Vprop: 0.05, IVON: 1.0, VOGN: 0.1}[cls]
    opt = cls(model.named_parameters(), lr=lr, num_data=count, total_steps=1200, **options)
    opt.train()
    for epoch in range(30):
        for part in torch.randperm(count, generator=torch.Generator().manual_seed(epoch)).split(50):
            opt.zero_grad()
            (0.5 * (model(x[part]) - y[part]).square()).mean().backward()
            opt.step()
    opt.eval()
    q, report = opt.posterior(), opt.report()
    prior = next(row for row in report.rows if row.name == "weight").prior_precision
    exact = count * x.square().mean(0) / cls.recipes["learned"]["temperature"] + prior
    ratio = q.variance["weight"].flatten() * exact
    assert 0.6 < ratio.median() < 1.6
    assert torch.corrcoef(torch.stack([q.variance["weight"].flatten().log(), -exact.log()]))[0, 1] > 0.9
    assert report.total.start_share < 0.02


def test_curvature_of_vadam_does_not_depend_on_the_batch_size():
    """M times the square of a mean of M gradients is their mean square, wherever their mean is 0."""
    torch.manual_seed(0)
    x = torch.randn(4096, 1)
    y = torch.randn(4096, 1)
    widths = {}
    for size in (8, 64):
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        opt = Vadam(model.named_parameters(), lr=0.0, num_data=4096, batch_size=size, initial_precision=1e6)
        for part in torch.randperm(4096).split(size):
            with opt.sampled_params():
                (0.5 * (model(x[part]) - y[part]).square()).mean().backward()
            opt.step()
        widths[size] = opt.posterior().variance["weight"].item()
    assert widths[8] == pytest.approx(widths[64], rel=0.5)  # 64 steps of chi-square noise


@pytest.mark.parametrize(("init", "expected"), [(0.05, 32.0), (1.0, 0.125)])
def test_initial_prior_is_a_power_of_two_near_a_tenth_of_the_initial_precision(init, expected):
    model = nn.Linear(100, 100)
    nn.init.normal_(model.weight, std=init, generator=torch.Generator().manual_seed(0))
    nn.init.zeros_(model.bias)
    opt = IVON(model.named_parameters(), num_data=10)
    opt.train()
    model(torch.ones(1, 100)).sum().backward()
    opt.step()
    priors = [opt.state[p]["prior_precision"] for p in (model.weight, model.bias)]
    assert priors == [expected, 0.125]  # equal values count as of variance 1


def test_initial_prior_is_kept_by_checkpoints():
    model, opt = train(IVON)
    other = Line()
    with torch.no_grad():
        other.weight.mul_(100.0)
    resumed = IVON(other.named_parameters(), num_data=N, seed=7, batch_size=M)
    resumed.load_state_dict(opt.state_dict())
    assert resumed.state[other.weight]["prior_precision"] == opt.state[model.weight]["prior_precision"]
    assert torch.equal(resumed.posterior().variance["weight"], opt.posterior().variance["weight"])


@pytest.mark.parametrize("compile", [None, False])
@pytest.mark.parametrize("cls", FOUR)
def test_a_posterior_as_prior_takes_the_place_of_the_initial_one(cls, compile):
    """The prior of the group is then of no weight, so that any number in its place changes nothing."""
    first, found = train(cls)[1].posterior(), []
    for of_the_group in ("init", 7.0):
        model = Line()
        options = {"curvature": ba.PerExampleSquares(model)} if cls is VOGN else {"batch_size": M}
        opt = cls(model.named_parameters(), lr=0.01, num_data=N, prior=first, compile=compile, **options)
        opt.param_groups[0]["prior_precision"] = of_the_group
        for step in range(3):
            x, y = rows(step)
            with opt.sampled_params():
                (0.5 * (model(x) - y).square()).mean().backward()
            opt.step()
        found.append(opt.posterior())
    assert torch.equal(found[0].mean["weight"], found[1].mean["weight"])
    assert torch.equal(found[0].variance["weight"], found[1].variance["weight"])
    assert not torch.equal(found[0].mean["weight"], first.mean["weight"])


@pytest.mark.parametrize("cls", FOUR)
def test_paper_is_one_option_away(cls):
    model = nn.Linear(2, 1)
    options = {"curvature": ba.PerExampleSquares(model)} if cls is VOGN else {}
    group = cls(model.named_parameters(), num_data=10, recipe="paper", **options).param_groups[0]
    assert (group["temperature"], group["prior_precision"], group["bridge"]) == (1.0, 1.0, True)


@pytest.mark.parametrize(
    ("cls", "weights", "num_data", "batch_size", "rate"),
    [
        (IVON, 100, 1000, 50, 0.3),  # a minibatch of half as many examples as there are weights
        (IVON, 100_000, 20_000, 50, 0.1 * 80 * 50 / 20_000),
        (IVON, 20_000, 100_000, 50, 0.1 * 80 * 50 / 20_000),
        (IVON, 100, 1000, None, 0.1),
        (VOGN, 100_000, 20_000, 50, 0.01 * 80 * 50 / 20_000),
        (Vadam, 100_000, 20_000, 50, 5e-3),
    ],
)
def test_newton_steps_are_smaller_for_large_networks_and_many_examples(cls, weights, num_data, batch_size, rate):
    model = nn.Linear(weights // 10, 10, bias=False)
    frozen = nn.Parameter(torch.zeros(1000), requires_grad=False)
    options = {"curvature": ba.PerExampleSquares(model)} if cls is VOGN else {}
    groups = iter([{"params": model.parameters()}, {"params": iter([frozen]), "perturb": False}])
    opt = cls(groups, num_data=num_data, batch_size=batch_size, **options)
    assert opt.param_groups[0]["lr"] == pytest.approx(rate)
    assert [len(group["params"]) for group in opt.param_groups] == [1, 1]
    assert cls(model.parameters(), lr=0.5, num_data=num_data, **options).param_groups[0]["lr"] == 0.5
    assert cls(model.parameters(), num_data=num_data, recipe="paper", **options).param_groups[0]["lr"] in (0.1, 1e-3)


def test_given_values_replace_the_recipes():
    group = IVON([nn.Parameter(torch.ones(2))], lr=0.3, num_data=10, temperature=0.5).param_groups[0]
    assert (group["lr"], group["temperature"], group["prior_precision"]) == (0.3, 0.5, "init")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recipe": "khan"}, r"recipe must be one of \['learned', 'paper'\], got 'khan'"),
        ({"batch_size": 0}, "batch_size must be None or a positive, finite number, got 0"),
        ({"batch_size": -3}, "batch_size must be None or a positive, finite number, got -3"),
        ({"total_steps": 0}, "total_steps must be None or a positive, finite number, got 0"),
        ({"initial_steps": 0}, "initial_steps must be a positive, finite number, got 0"),
        ({"temperature": 0.0}, "temperature must be positive without the bridge, got 0.0"),
        ({"prior_precision": "fan_in"}, "prior_precision must be a positive, finite number or 'init', got 'fan_in'"),
    ],
)
def test_one_clear_error(options, message):
    with pytest.raises(ValueError, match=message):
        Vadam([nn.Parameter(torch.ones(2))], num_data=10, **options)


def moves(total_steps, steps, scheduler=False):
    """How far each step of Vprop goes, along a gradient that is always the same."""
    weight = nn.Parameter(torch.zeros(1))
    opt = Vprop([weight], lr=1.0, num_data=1e12, total_steps=total_steps, prior_precision=1e-6)
    if scheduler:
        torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)
    found = []
    for _ in range(steps):
        before = weight.item()
        with opt.sampled_params():
            (weight * 1.0).sum().backward()
        opt.step()
        found.append(before - weight.item())
    return found


def test_learning_rate_falls_over_the_planned_steps_and_stays_small_beyond():
    found = moves(10, 14)
    expected = [0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1, i / 10))) for i in range(14)]
    assert found == pytest.approx(expected, rel=1e-3)


def test_a_scheduler_is_left_alone():
    assert moves(10, 5, scheduler=True) == pytest.approx([1.0] * 5, rel=1e-3)


def test_resuming_with_another_plan_is_said():
    weight = nn.Parameter(torch.zeros(1))
    saved = Vprop([weight], num_data=10, total_steps=100).state_dict()
    other = Vprop([weight], num_data=10, total_steps=300)
    with pytest.warns(UserWarning, match="total_steps is 100 in the state_dict, and replaces 300"):
        other.load_state_dict(saved)
    assert other.param_groups[0]["total_steps"] == 100


@pytest.mark.parametrize("cls", [*FOUR, ba.VON, ba.VadaGrad])
def test_signatures_name_every_argument(cls):
    parameters = inspect.signature(cls).parameters
    assert not [p for p in parameters.values() if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    assert {"num_data", "seed", "compile"} <= parameters.keys()
    assert ("prior_precision" in parameters) == cls.has_prior
    if cls in FOUR:
        settings = recipe_of(cls.recipes, "learned")
        assert parameters["lr"].default == settings["lr"]
        assert parameters["bridge"].default is False


@pytest.mark.parametrize("cls", FOUR)
@pytest.mark.filterwarnings("error")
def test_an_unknown_batch_size_is_said_where_the_width_needs_it(cls):
    def trained(**options):
        layer = nn.Linear(2, 1)
        if cls is VOGN:
            options = {"curvature": ba.PerExampleSquares(layer)}
        opt = cls(layer.named_parameters(), num_data=100, **options)
        for _ in range(100):
            with opt.sampled_params():
                layer(torch.randn(4, 2)).square().mean().backward()
            opt.step()
        return opt

    opt = trained()
    if cls in (Vadam, Vprop):
        with pytest.warns(UserWarning, match="batch_size is not known, so the posterior is as wide as if"):
            opt.posterior()
    opt.posterior()  # once
    trained(batch_size=4).posterior()


class TestLongerTrainings:
    """The temperature of the recipe grows with the number of epochs."""

    @pytest.mark.parametrize("cls", FOUR)
    @pytest.mark.parametrize(("epochs", "factor"), [(1, 1.0), (30, 1.0), (45, 1.5), (1000, None)])
    def test_of_a_length(self, cls, epochs, factor):
        opt = make(cls, batch_size=20, total_steps=epochs * N // 20)
        own = cls.recipes["learned"]["temperature"]
        expected = 0.1 if factor is None else own * factor
        assert opt.param_groups[0]["temperature"] == pytest.approx(expected, rel=1e-12)

    @pytest.mark.parametrize("cls", FOUR)
    def test_of_an_unknown_length(self, cls):
        own = cls.recipes["learned"]["temperature"]
        for options in ({}, {"batch_size": 20}, {"total_steps": 10_000}):
            assert make(cls, **options).param_groups[0]["temperature"] == own

    @pytest.mark.parametrize("cls", FOUR)
    def test_one_that_is_given_stays(self, cls):
        long = {"batch_size": 20, "total_steps": 10_000}
        assert make(cls, temperature=0.02, **long).param_groups[0]["temperature"] == 0.02
        assert make(cls, temperature=1.0, **long).param_groups[0]["temperature"] == 1.0
        assert make(cls, recipe="paper", **long).param_groups[0]["temperature"] == 1.0

    @pytest.mark.parametrize("cls", FOUR)
    @pytest.mark.parametrize("option", ["batch_size", "total_steps"])
    def test_numbers_out_of_range_are_refused_as_before(self, cls, option):
        for value in (0, -1, math.inf, "all"):
            options = {"batch_size": 20, "total_steps": 10_000, option: value}
            with pytest.raises(ValueError, match=f"^{option} must be None or a positive, finite number"):
                make(cls, **options)

    def test_the_checkpoint_decides(self):
        short, long = (make(IVON, batch_size=20, total_steps=steps) for steps in (300, 3000))
        with pytest.warns(UserWarning, match="^total_steps is"):
            long.load_state_dict(short.state_dict())
        assert long.param_groups[0]["temperature"] == short.param_groups[0]["temperature"] == 0.03


def make(cls, **options):
    model = Line()
    if cls is VOGN:
        options["curvature"] = ba.PerExampleSquares(model)
    return cls(model.named_parameters(), num_data=N, **options)
