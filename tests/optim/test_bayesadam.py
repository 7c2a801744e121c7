"""BayesAdam: its rule beside a slow loop, its defaults, and squared gradients of examples as its curvature."""

import math

import pytest
import torch
from torch import nn

import bayesadam as ba
from bayesadam import noise
from bayesadam.optim.bayesadam import annealed
from optim.methods import make_net, make_step, train, variance_of, weights

N, M, STEPS, LR, TAU = 200, 16, 25, 5e-3, 0.01


class Line(nn.Module):
    def __init__(self, size=6, scale=0.3):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.weight = nn.Parameter(torch.randn(size, generator=generator, dtype=torch.float64) * scale)

    def forward(self, x):
        return (x * self.weight).sum(-1)


def rows(step):
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(M, 6, generator=generator, dtype=torch.float64)
    return x, x[:, 0] + 0.5 * torch.randn(M, generator=generator, dtype=torch.float64)


def trained(steps=STEPS, scale=0.3, **options):
    model = Line(scale=scale)
    plan = {"batch_size": M, "total_steps": 60, "max_memorised": None}
    opt = ba.BayesAdam(model.named_parameters(), num_data=N, seed=7, **{**plan, **options})
    for step in range(steps):
        x, y = rows(step)
        make_step(opt, lambda x=x, y=y: 0.5 * (model(x) - y).square().mean())
    return model, opt


def reference(total_steps, scale):
    """Adam's step at the sample, smaller under a narrow prior; the precision is that of the squares times M, and of a
    start that counts 30 steps.

    Returns mean, precision of the posterior, and the share of the start in it.
    """
    b1, b2 = 0.9, 0.999
    mean = Line(scale=scale).weight.detach().clone()
    prior = 3 * 2.0 ** round(math.log2(0.1 / mean.var(correction=0).item()))
    start = prior + 0.1 * N / TAU
    m, v, precision, weight_of_start = torch.zeros(6), torch.zeros(6), torch.full_like(mean, start), 1.0
    for t in range(1, STEPS + 1):
        theta = mean + precision.rsqrt() * noise.normal(7, t - 1, 0, 0, (6,)).double()
        x, y = rows(t - 1)
        g = ((x @ theta - y).unsqueeze(-1) * x).mean(0)
        tau = TAU * max(1e-3, min(1.0, t / total_steps) ** 4)
        warm_up = total_steps / 20 + 1
        rate = LR * annealed((t - 1) / total_steps) * min(1.0, t / warm_up) * min(1.0, 8.0 / prior**0.5)
        weight_of_start *= 1 - max(1 - b2, 3 / (t + 30 + 2))
        m = b1 * m + (1 - b1) * (g + tau * prior / N * mean)
        v = b2 * v + (1 - b2) * g**2
        corrected = v / (1 - b2**t)
        mean = mean - rate * m / (1 - b1**t) / (corrected.sqrt() + tau * prior / N + 1e-8)
        precision, posterior = (
            (1 - weight_of_start) * (N * M * corrected / one + prior) + weight_of_start * start
            for one in (tau, 0.1 * TAU)
        )
    return mean, posterior, weight_of_start * (start - prior) / posterior


@pytest.mark.parametrize(("total_steps", "scale"), [(20, 0.3), (60, 0.3), (60, 0.03)])
@pytest.mark.parametrize("compile", [False, True])
def test_steps_are_those_of_a_slow_loop(compile, total_steps, scale):
    model, opt = trained(compile=compile, total_steps=total_steps, scale=scale, temperature=TAU)
    mean, precision, share = reference(total_steps, scale)
    # The noise is float32, and the kernels' differs from it by a few 1e-7.
    torch.testing.assert_close(model.weight.detach(), mean, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(opt.posterior().variance["weight"], 1 / precision, rtol=1e-4, atol=0.0)
    assert opt.report().rows[0].start_share == pytest.approx(share.clamp(0, 1).mean().item(), rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"mc_samples": 2}])
def test_ways_to_train_agree_while_the_noise_grows(options):
    """With one sample drop-in training and blocks are equal."""
    found = []
    for mode in ("block",) if options.get("mc_samples") else ("block", "train"):
        net = make_net()
        opt = ba.BayesAdam(
            net.named_parameters(), num_data=50, batch_size=16, total_steps=8, temperature=0.3, **options
        )
        train(net, opt, 6, mode=mode)
        opt.eval()
        found.append([*weights(net), *variance_of(opt)])
    torch.testing.assert_close(found[0], found[-1], rtol=1e-5 if options else 0.0, atol=1e-6 if options else 0.0)


def test_the_width_is_learned_on_regression():
    """At the end the precision is that of the optimum at a tenth of tau, 10 N h / tau + lambda, with h = E[x^2] var.

    The variance of the noise is 4, so that the squares of the first gradients do not dominate the average.
    """
    count, size = 2000, 8
    x = torch.randn(count, size) * torch.logspace(-0.5, 0.5, size)
    y = x.sum(-1, keepdim=True) + 2.0 * torch.randn(count, 1)
    model = nn.Linear(size, 1)
    opt = ba.BayesAdam(model.named_parameters(), lr=0.05, num_data=count, total_steps=1200, batch_size=50)
    for epoch in range(30):
        for part in torch.randperm(count, generator=torch.Generator().manual_seed(epoch)).split(50):
            make_step(opt, lambda part=part: 0.5 * (model(x[part]) - y[part]).square().mean(), "train")
    opt.eval()
    q, report = opt.posterior(), opt.report()
    prior = next(row for row in report.rows if row.name == "weight").prior_precision
    exact = count * 4.0 * x.square().mean(0) / (0.1 * opt.param_groups[0]["temperature"]) + prior
    ratio = q.variance["weight"].flatten() * exact
    assert 0.6 < ratio.median() < 1.6
    assert torch.corrcoef(torch.stack([q.variance["weight"].flatten().log(), -exact.log()]))[0, 1] > 0.9
    assert report.total.start_share < 0.02


def test_squares_of_examples_give_the_width_of_the_mean_square():
    """With a minibatch of one example the two curvatures are the same; with more, the squares do not depend on it."""
    found = []
    for squares, size in ((False, 1), (True, 1), (True, 4)):
        model = Line()
        curvature = ba.PerExampleSquares(model) if squares else None
        plan = {"num_data": N, "batch_size": size, "total_steps": 1, "temperature": TAU, "max_memorised": None}
        opt = ba.BayesAdam(model.named_parameters(), lr=0.0, curvature=curvature, **plan)
        for step in range(200):
            x, y = rows(step % 20 if size == 1 else 0)
            part = slice(0, 1) if size == 1 else slice(4 * (step % 4), 4 * (step % 4) + 4)
            make_step(opt, lambda model=model, x=x[part], y=y[part]: 0.5 * (model(x) - y).square().mean())
        found.append(opt.posterior().variance["weight"])
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=0)
    x, y = rows(0)
    exact = N / (0.1 * TAU) * ((x @ Line().weight.detach() - y)[:, None] * x).square().mean(0)
    assert (0.5 < found[2] * exact).all()
    assert (found[2] * exact < 2).all()


@pytest.mark.parametrize(("init", "expected"), [(0.05, 96.0), (1.0, 0.375)])
def test_the_initial_prior_is_three_times_a_tenth_of_the_initial_precision(init, expected):
    model = nn.Linear(100, 100)
    nn.init.normal_(model.weight, std=init, generator=torch.Generator().manual_seed(0))
    nn.init.zeros_(model.bias)
    opt = ba.BayesAdam(model.named_parameters(), num_data=10, batch_size=1, total_steps=10)
    make_step(opt, lambda: model(torch.ones(1, 100)).sum())
    priors = [opt.state[p]["prior_precision"] for p in (model.weight, model.bias)]
    assert priors == [expected, 0.375]  # equal values count as of variance 1


def moves(steps, change=lambda opt, step: None):
    """How many learning rates each step moves along a gradient that is always the same; 20 steps are planned, and the
    rate rises over one of them.
    """
    weight, found = nn.Parameter(torch.zeros(1, dtype=torch.float64)), []
    options = {"num_data": 1e9, "batch_size": 10, "total_steps": 20, "prior_precision": 1e-6}
    opt = ba.BayesAdam([("w", weight)], 1e-3, **options)
    for step in range(steps):
        change(opt, step)
        before = weight.item()
        make_step(opt, weight.sum)
        found.append((before - weight.item()) / float(opt.param_groups[0]["lr"]))
    return found


def test_the_learning_rate_falls_over_the_planned_steps_unless_there_is_a_scheduler():
    expected = [0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * min(1, step / 20))) for step in range(22)]
    expected[0] *= 0.5
    assert moves(22) == pytest.approx(expected, rel=1e-3)

    def by_hand(opt, step):
        opt.param_groups[0]["lr"] = 1e-3 / (step + 1)

    assert moves(5, by_hand) == pytest.approx(expected[:5], rel=1e-3)

    def by_scheduler(opt, step):
        if step == 0:
            torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)

    assert moves(3, by_scheduler) == pytest.approx([0.5, 1.0, 1.0], rel=1e-3)


def test_a_scheduler_is_seen_by_a_group_that_is_added():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    opt = ba.BayesAdam(weights[:1], lr=1e-3, num_data=10, batch_size=1, total_steps=10)
    torch.optim.lr_scheduler.ConstantLR(opt, factor=1.0)
    opt.add_param_group({"params": weights[1:]})
    for _ in range(8):
        before = weights[1].item()
        make_step(opt, lambda: sum(weights).sum())
    assert before - weights[1].item() == pytest.approx(1e-3, rel=1e-3)


def test_a_layer_that_is_trained_for_a_part_has_the_width_of_the_stated_temperature():
    """The mean squared gradient is 1 for both, and neither width depends on the layer's own number of steps."""
    weights = [nn.Parameter(torch.zeros(50)) for _ in range(2)]
    opt = ba.BayesAdam([("always", weights[0]), ("late", weights[1])], num_data=100, batch_size=1, total_steps=400)
    for step in range(400):
        weights[1].requires_grad_(step >= 300)
        x = torch.randn(50, generator=torch.Generator().manual_seed(step))
        make_step(opt, lambda x=x: sum((weight * x).sum() for weight in weights if weight.requires_grad))
    q = opt.posterior()
    temperature = q.hyperparameters["temperature"]
    for name, variance in q.variance.items():
        prior = q.hyperparameters["tensors"][name]["prior_precision"]
        assert (variance * (100 / temperature + prior)).mean().item() == pytest.approx(1.0, rel=0.1)


@pytest.mark.parametrize(("epochs", "steps", "expected"), [(4, 400, 1 / 200), (25, 6400, 1 / 8), (1000, 5000, 1.0)])
def test_the_temperature_grows_with_epochs_and_steps(epochs, steps, expected):
    facts = {"batch_size": epochs * N / steps, "total_steps": steps}
    _, opt = trained(0, **facts)
    assert opt.param_groups[0]["temperature"] == pytest.approx(expected, rel=1e-12)
    assert opt.posterior().hyperparameters["temperature"] == pytest.approx(0.1 * expected, rel=1e-12)
    _, opt = trained(0, **facts, temperature=0.02)
    assert opt.param_groups[0]["temperature"] == 0.02


def test_a_training_that_is_planned_later_is_the_same():
    _, planned = trained(STEPS, total_steps=20)
    _, opt = trained(0, total_steps=None)
    with pytest.raises(RuntimeError, match=r"total_steps must be filled in by plan\(\)"):
        opt.train()
    opt.plan(20)
    for name in ("total_steps", "temperature"):
        assert opt.param_groups[0][name] == planned.param_groups[0][name]


@pytest.mark.parametrize("recorded", [0.1, 0.2])
def test_examples_behind_a_prior_count_as_much_as_new_ones(recorded):
    """The posterior of ``N`` examples with curvature ``h`` has the precision ``N h / T`` at its temperature ``T``."""
    old, new, curvature, num_data = 1.0, 0.4, 2.0, 10_000
    variance = recorded / (num_data * curvature)
    prior = ba.DiagonalGaussian(
        {"w": torch.full((50,), old)}, {"w": torch.full((50,), variance)}, hyperparameters={"temperature": recorded}
    )
    w = nn.Parameter(torch.zeros(50))
    opt = ba.BayesAdam([("w", w)], num_data=num_data, batch_size=1, total_steps=1000, temperature=1.0, prior=prior)
    for _ in range(1000):
        with opt.sampled_params():
            opt.zero_grad()
            (0.5 * curvature * (w - new).square().sum()).backward()
        opt.step()
    assert w.mean().item() == pytest.approx(0.5 * (old + new), abs=0.01)
