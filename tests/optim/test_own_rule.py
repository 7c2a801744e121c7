"""A rule in a user's own file, that of ``docs/guides/own-rule.md``, gets all that the library's rules have."""

import importlib.util
import re
import sys
from pathlib import Path

import pytest
import torch

import bayesadam as ba
from bayesadam.core import launch
from bayesadam.optim.vogn import VOGNRule
from optim.methods import loss_of, make_net, train, weights
from population import conftest as reference
from population.problems import BATCH, F64, models_of, noise_of, regression

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "own-rule.md"


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """The page's first block as a module."""
    path = tmp_path_factory.mktemp("own") / "softsign.py"
    path.write_text(re.search(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)[1])
    spec = importlib.util.spec_from_file_location("softsign", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["softsign"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["softsign"]


def make(cls, dtype=torch.float32, **options):
    net = make_net(dtype)
    return net, cls(net.named_parameters(), 0.01, num_data=50, seed=3, **{"batch_size": 2, **options})


@pytest.mark.parametrize("samples", [1, 3])
def test_a_step_is_what_the_rule_says(own, samples):
    """Loops over the samples, from the page's equations."""
    net, opt = make(own.SoftSign, torch.float64, mc_samples=samples, sharpness=4.0, initial_precision=80.0)
    mu, m, s = weights(net), torch.zeros(()), torch.tensor((80.0 - 1.0) / 50, dtype=torch.float64)
    for step in range(3):
        grads = []
        for _ in range(samples):
            with opt.sampled_params():
                theta = weights(net)
                loss_of(net, step).backward()
            twin = make_net(torch.float64)
            torch.nn.utils.vector_to_parameters(theta, twin.parameters())
            loss_of(twin, step).backward()
            grads.append(torch.cat([p.grad.flatten() for p in twin.parameters()]))
        assert ((theta - mu) * (50 * (s + 1 / 50)).sqrt()).square().mean().sub(1).abs() < 0.6  # 50 squares of N(0, 1)
        opt.step()
        opt.zero_grad()
        grad = sum(grads) / samples
        h = 2 * sum(g.square() for g in grads) / samples  # the size of the minibatch times it
        m = 0.9 * m + 0.1 * (grad + mu / 50)
        s = 0.999 * s + 0.001 * h
        mu = mu - 0.01 * torch.tanh(4.0 * m)
        torch.testing.assert_close(weights(net), mu, rtol=1e-12, atol=1e-14)
    variance = torch.cat([v.flatten() for v in opt.posterior().variance.values()])
    torch.testing.assert_close(variance, 1 / (50 * (s + 1 / 50)), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("mode", "samples", "dtype"),
    [("block", 2, torch.float32), ("train", 1, torch.float64), ("train", 1, torch.float32)],
)
def test_compiled_it_is_the_same_to_rounding(own, mode, samples, dtype, monkeypatch):
    made = []
    kernel_of = launch.kernel_of
    monkeypatch.setattr(launch, "kernel_of", lambda *rest: made.append(kernel_of(*rest)) or made[-1])
    runs = []
    for compiled in (False, True):
        net, opt = make(own.SoftSign, dtype, mc_samples=samples, compile=compiled)
        train(net, opt, 5, mode=mode)  # a warning would be an error
        opt.eval()
        runs.append((weights(net), opt.posterior().variance))
        assert bool(made) is compiled
    assert all(made)
    torch.testing.assert_close(runs[0][0], runs[1][0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(runs[1][1], runs[0][1], rtol=1e-5, atol=0)


def test_a_population_trains_each_as_alone(own):
    options = {"method": own.SoftSign, "epochs": 3, "lr": [0.01, 0.02, 0.03, 0.04], "mc_samples": 2, "seed": 4}
    options["sharpness"] = [5.0, 20.0, 10.0, 8.0]
    problem = models_of(), regression(), noise_of(4.0)
    nets = reference.train(*problem, options={"batch_size": BATCH}, **options)
    reference.assert_members_are(nets, reference.all_alone(*problem, **options), reference.TOLERANCE[F64])


def test_options_are_checked(own):
    net = make_net()
    message = r"softness must be an option of SoftSign \(betas, .*, sharpness, batch_size\), got 2\.0"
    with pytest.raises(TypeError, match=message):
        own.SoftSign(net.parameters(), num_data=50, batch_size=2, softness=2.0)

    class Bare(ba.optim.PerturbedOptimizer):
        rule = own.SoftSignRule()

    assert Bare(net.parameters(), num_data=50, sharpness=2.0).param_groups[0]["sharpness"] == 2.0
    with pytest.raises(ValueError, match=r"sharpness must be positive, got 0\.0"):
        own.SoftSign(net.parameters(), num_data=50, batch_size=2, sharpness=0.0)
    with pytest.raises(ValueError, match="sharpness must be positive, got 'hard'"):
        own.SoftSign([{"params": list(net.parameters()), "sharpness": "hard"}], num_data=50, batch_size=2)


NOT_ELEMENTWISE = {
    "sum": (lambda grad, hp: grad.square().sum(), r"aten\.sum\.default"),
    "rounding": (
        lambda grad, hp: torch.div(grad, 2.0, rounding_mode="floor"),
        r"aten\.div\.\w+ with rounding_mode",
    ),
    "if": (lambda grad, hp: 1.0 if hp.sharpness > 1e9 else 2.0, r"aten\.\w+"),
}
"""What a rule may do with a value, which a loop over the weights cannot."""


@pytest.mark.parametrize("word", NOT_ELEMENTWISE)
def test_what_is_not_element_wise_is_refused(own, word):
    compute, called = NOT_ELEMENTWISE[word]

    class Rule(own.SoftSignRule):
        def update(self, mean, state, grad, curvature, hp):
            return super().update(mean, state, grad + 0 * compute(grad, hp), curvature, hp)

    class Odd(own.SoftSign):
        rule = Rule()

    net, opt = make(Odd)
    with pytest.raises(TypeError, match=rf"Rule must be element-wise, but it calls {called}"):
        train(net, opt, 1)


def full(value):
    """A number as a tensor of all weights."""
    return lambda like, hp: torch.full_like(like, value)


CONSTANTS = {
    "curvature": {"curvature": full(100.0)},
    "of a hyper-parameter": {"curvature": lambda like, hp: torch.zeros_like(like) + 2.0 * hp.num_data},
    "state": {"curvature": full(100.0), "state": full(100.0)},
    "precision": {"curvature": full(100.0), "precision": full(5001.0)},
}
"""What may be a number in a rule, and is computed from the state otherwise; the precision is 50 * 100 + 1."""


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("word", CONSTANTS)
def test_a_rule_may_return_constants(own, word, samples, compiled):
    made = CONSTANTS[word]

    class Constant(own.SoftSignRule):
        def curvature(self, grad, deviation, state, hp):
            return made["curvature"](grad, hp)

        def update(self, mean, state, grad, curvature, hp):
            moved, new = super().update(mean, state, grad, curvature, hp)
            return moved, {**new, "exp_avg_sq": made.get("state", lambda like, hp: curvature)(mean, hp)}

        def precision(self, state, hp):
            computed = hp.num_data * state["exp_avg_sq"] + hp.prior_precision
            return made.get("precision", lambda like, hp: computed)(state["exp_avg_sq"], hp)

    class Odd(own.SoftSign):
        rule = Constant()

    for mode in ("block", "train") if samples == 1 else ("block",):
        net, opt = make(Odd, torch.float64, mc_samples=samples, compile=compiled)
        train(net, opt, 2, mode=mode)
        opt.eval()
        for variance in opt.posterior().variance.values():
            torch.testing.assert_close(variance, torch.full_like(variance, 1 / 5001), rtol=1e-12, atol=0.0)


class OwnCurvature(VOGNRule):
    """Of a constant instead of squared gradients of examples."""

    def curvature(self, grad, deviation, state, hp):
        return 100.0 + 0.0 * grad


class OwnVOGN(ba.VOGN):
    rule = OwnCurvature()


@pytest.mark.parametrize("mode", ["block", "train"])
def test_vogn_uses_the_curvature_of_its_rule(mode):
    net = make_net(torch.float64)
    opt = OwnVOGN(net.parameters(), num_data=50, betas=(0.0, 0.0), curvature=ba.PerExampleSquares(net))
    train(net, opt, 2, mode=mode)
    opt.eval()
    for variance in opt.posterior(net).variance.values():
        torch.testing.assert_close(variance, torch.full_like(variance, 1 / 5001), rtol=1e-12, atol=0.0)


def test_so_does_a_population():
    options = {"method": OwnVOGN, "epochs": 2, "batch_size": BATCH, "betas": (0.0, 0.0), "progress": False}
    nets = ba.population.train(models_of(), regression((50,))[0], likelihood=noise_of(4.0), **options)
    for variance in nets.variance.values():
        torch.testing.assert_close(variance, torch.full_like(variance, 1 / 5001), rtol=1e-12, atol=0.0)
