"""``torch.compile`` around a whole training step: the graph breaks where it must, and numbers are the same."""

import shutil

import pytest
import torch
import torch._dynamo

import bayesadam as ba
from optim.conftest import loss_of, make_net, snapshot, weights

METHODS = {
    "vadam": lambda net, **options: ba.Vadam(net.parameters(), 0.01, num_data=50, **options),
    "ivon": lambda net, **options: ba.IVON(net.parameters(), 0.1, num_data=50, **options),
    "vogn": lambda net, **options: ba.VOGN(
        net.parameters(), 0.05, num_data=50, curvature=ba.PerExampleSquares(net), **options
    ),
    "von full": lambda net, **options: ba.VON(net.parameters(), 0.05, num_data=50, covariance="full", **options),
}
# PyTorch's own, where a graph breaks while a loss is alive, and where it looks at a function with its own backward.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
BACKENDS = ["eager", pytest.param("inductor", marks=pytest.mark.skipif(not shutil.which("g++"), reason="no compiler"))]


@pytest.fixture(autouse=True)
def _nothing_compiled_before():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def drop_in(net, opt, x, y):
    opt.zero_grad()
    loss = torch.nn.functional.mse_loss(net(x), y)
    loss.backward()
    opt.step()
    return loss


def blocks(net, opt, x, y):
    for _ in range(opt.param_groups[0]["mc_samples"]):
        with opt.sampled_params():
            loss = torch.nn.functional.mse_loss(net(x), y)
            loss.backward()
    opt.step()
    return loss


def closure(net, opt, x, y):
    def compute():
        opt.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        return loss

    return opt.step(compute)


WAYS = {"drop_in": (drop_in, 1), "blocks": (blocks, 1), "two blocks": (blocks, 2), "closure": (closure, 2)}


def run(method, way, backend=None, **options):
    net = make_net()
    function, samples = WAYS[way]
    opt = METHODS[method](net, mc_samples=samples, **options)
    if way == "drop_in":
        opt.train()

    def train_step(x, y):
        return function(net, opt, x, y)

    if backend is not None:
        train_step = torch.compile(train_step, backend=backend)
    losses = []
    for step in range(5):
        x = torch.randn(16, 3, generator=torch.Generator().manual_seed(step))
        losses.append(float(train_step(x, x[:, :2].sin()).detach()))
    opt.eval()
    return losses, weights(net), snapshot(opt)[1], net, opt


def assert_same(found, expected, rtol):
    torch.testing.assert_close(found[0], expected[0], rtol=rtol, atol=rtol)
    torch.testing.assert_close(found[1], expected[1], rtol=rtol, atol=rtol)
    for one, other in zip(found[2], expected[2], strict=True):
        for name, value in other.items():
            torch.testing.assert_close(one[name], value, rtol=10 * rtol, atol=rtol)


CASES = [(method, way, False) for method in ("vadam", "ivon") for way in WAYS]
CASES += [("vadam", "drop_in", True), ("ivon", "two blocks", True)]
CASES += [("vogn", "drop_in", False), ("vogn", "two blocks", False), ("von full", "drop_in", False)]


@pytest.mark.parametrize(("method", "way", "kernels"), CASES)
def test_a_compiled_step_gives_the_same_numbers(method, way, kernels):
    found = run(method, way, "eager", compile=kernels)
    assert_same(found, run(method, way, compile=kernels), rtol=1e-6)
    assert found[4].param_groups[0]["noise_step"] == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_compiled_by_the_default_backend(backend):
    assert_same(run("vadam", "drop_in", backend), run("vadam", "drop_in"), rtol=1e-4)


def test_a_model_that_is_compiled_alone():
    net, other = make_net(), make_net()
    opts = [METHODS["vadam"](n) for n in (net, other)]
    compiled = torch.compile(net, backend="eager")
    for model, opt in zip((compiled, other), opts, strict=True):
        for step in range(3):
            with opt.sampled_params():
                loss_of(model, step).backward()
            opt.step()
    torch.testing.assert_close(weights(net), weights(other), rtol=1e-6, atol=1e-7)
