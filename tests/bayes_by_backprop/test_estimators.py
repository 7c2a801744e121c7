"""Local reparameterisation and Flipout: exact moments, independence, unbiased gradients, and what they refuse."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from bayesadam import noise
from bayesadam.bayes_by_backprop import variational
from bayesadam.bayes_by_backprop.draws import signs
from modules import module_of

DRAWS = 600
BOUND = 4.5  # standard errors, for the largest of hundreds of outputs

LAYERS = {
    "linear": (lambda: nn.Linear(4, 3), (2, 4)),
    "linear without bias": (lambda: nn.Linear(4, 3, bias=False), (2, 4)),
    "linear of sequences": (lambda: nn.Linear(4, 3), (2, 3, 4)),
    "linear of one vector": (lambda: nn.Linear(4, 3), (4,)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 5)),
    "conv2d": (lambda: nn.Conv2d(2, 3, 2, padding=1, padding_mode="circular"), (2, 2, 3, 3)),
    "conv2d of one image": (lambda: nn.Conv2d(2, 3, 2), (2, 3, 3)),
    "conv2d same": (lambda: nn.Conv2d(2, 2, 3, padding="same", dilation=2, bias=False), (2, 2, 4, 4)),
    "conv3d": (lambda: nn.Conv3d(1, 2, 2, padding_mode="reflect", padding=1), (2, 1, 3, 2, 2)),
    "transposed": (lambda: nn.ConvTranspose1d(3, 2, 2, stride=2), (2, 3, 3)),
}


def made(layer, estimator, std=0.4, **options):
    torch.manual_seed(3)
    return variational(
        layer().double(), initial_std=lambda _, p: std * (0.5 + torch.rand_like(p)), estimator=estimator, **options
    )


def moments(net, x):
    """Exact mean and variance of a linear layer's outputs, the latter from unit changes of every weight."""
    with torch.no_grad():
        mean = net.model(x)
        variance = torch.zeros_like(mean)
        names = [name for name, _ in net.model.named_parameters()]
        zeros = {name: torch.zeros_like(p) for name, p in net.model.named_parameters()}
        for name in names:
            std = functional.softplus(net.rho.get_parameter(name)).flatten()
            for i, s in enumerate(std):
                unit = {**zeros, name: zeros[name].flatten().index_fill(0, torch.tensor(i), 1.0).view_as(zeros[name])}
                variance += (s * torch.func.functional_call(net.model, unit, x)).square()
    return mean, variance


@pytest.mark.parametrize("layer", LAYERS)
def test_local_outputs_have_the_exact_mean_and_variance(layer):
    make, shape = LAYERS[layer]
    net = made(make, "local", seed=5)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    mean, variance = moments(net, x)
    for number in range(2):
        eps = noise.normal(5, number, 1, 0, mean.shape).double()
        torch.testing.assert_close(net(x), mean + variance.sqrt() * eps, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layer", LAYERS)
def test_flipout_has_weights_with_signs_of_the_shared_sample(layer):
    """For every data point the deviation of the shared sample with one pair of signs, the same at all positions."""
    make, shape = LAYERS[layer]
    net = made(make, "flipout", seed=5)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    weight = net.model.weight
    single = x.ndim == weight.ndim - 1
    rows = x.unsqueeze(0) if single else x
    linear, transposed = weight.ndim == 2, isinstance(net.model, nn.ConvTranspose1d)
    width = rows.shape[-1 if linear else 1]
    with torch.no_grad():
        with net.common_draw():
            out = net(x)
            deviation = {name: net._draw.theta(name) - p for name, p in net.model.named_parameters()}
        out = out.unsqueeze(0) if single else out
        outputs = out.shape[-1 if linear else 1]
        both = signs(5, 0, 0, (len(rows), width + outputs), x)
        for row, sign, got in zip(rows, both, out, strict=True):
            before, after = sign[:width], sign[width:]
            if transposed:
                pattern = before[:, None] * after
            else:
                groups = getattr(net.model, "groups", 1)
                inputs = before.view(groups, -1).repeat_interleave(outputs // groups, 0)
                pattern = after[:, None] * inputs
            theta = {"weight": weight + deviation["weight"] * pattern[(...,) + (None,) * (weight.ndim - 2)]}
            if "bias" in deviation:
                theta["bias"] = net.model.bias + deviation["bias"] * after
            expected = torch.func.functional_call(net.model, theta, row.unsqueeze(0))[0]
            torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-12)
    assert both.unique().numel() == 2


@pytest.mark.parametrize(("estimator", "independent"), [("shared", False), ("local", True), ("flipout", True)])
def test_data_points_are_independent(estimator, independent):
    net = made(LAYERS["linear"][0], estimator)
    x = torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(4)).expand(3, 4)
    with torch.no_grad():
        out = torch.stack([net(x) for _ in range(DRAWS)]) - net.model(x)
    out = out / out.std(0)
    for first, second in ((0, 1), (1, 2), (0, 2)):
        correlation = (out[:, first] * out[:, second]).mean(0).abs()
        assert (correlation < BOUND / math.sqrt(DRAWS)).all() == independent
        squares = ((out[:, first].square() - 1) * (out[:, second].square() - 1)).mean(0).abs()
        assert estimator != "local" or (squares < 2 * BOUND / math.sqrt(DRAWS)).all()


def test_signs_are_fair_bits_of_their_own():
    like = torch.zeros(1)
    values = torch.stack([signs(7, step, index, (40, 33), like) for step in range(20) for index in range(2)])
    assert values.unique().tolist() == [-1.0, 1.0]
    assert abs(values.mean().item()) < 4 / math.sqrt(values.numel())
    flat = values.flatten(1)
    correlation = flat @ flat.T / flat.shape[1] - torch.eye(len(flat))
    assert correlation.abs().max() < 5 / math.sqrt(flat.shape[1])
    pairs = flat.T @ flat / len(flat)
    assert abs(pairs.triu(1).sum().item()) < 4 * math.sqrt(flat.shape[1] ** 2 / 2 / len(flat))
    assert torch.equal(signs(7, 3, 1, (40, 33), like), signs(7, 3, 1, (40, 33), like))
    assert not torch.equal(signs(7, 3, 1, (40, 33), like), signs(2**40 + 7, 3, 1, (40, 33), like))


@pytest.mark.parametrize("layer", ["linear of sequences", "conv1d", "transposed"])
@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
@pytest.mark.parametrize(("dtype", "std", "tolerance"), [(torch.bfloat16, 0.05, 0.02), (torch.float16, 3e-4, 2e-3)])
def test_low_precision_is_rounding_only(layer, estimator, dtype, std, tolerance):
    """With means of 0 nothing hides the spread; the square of 3e-4 is no number of float16."""
    make, shape = LAYERS[layer]
    low, wide = (variational(make().to(d), initial_std=std, estimator=estimator) for d in (dtype, torch.float64))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)
    for parameter in (*low.model.parameters(), *wide.model.parameters()):
        parameter.data.zero_()
    out, expected = low(x), wide(x.double())
    assert out.dtype == dtype
    assert (out.double() - expected).norm() < tolerance * expected.norm()
    out.square().sum().backward()
    expected.square().sum().backward()
    for parameter, reference in zip(low.parameters(), wide.parameters(), strict=True):
        assert parameter.grad.dtype == parameter.dtype
        assert (parameter.grad.double() - reference.grad).norm() < tolerance * reference.grad.norm()


@pytest.mark.parametrize("estimator", ["shared", "local", "flipout"])
def test_gradients_are_unbiased(estimator):
    """The mean gradient is that of the expected loss, which many samples of plain PyTorch noise estimate."""
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(6, 3, dtype=torch.float64, generator=generator), torch.randint(2, (6,), generator=generator)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    net = variational(model, initial_std=0.4, estimator=estimator)
    variables = [*net.model.parameters(), *net.rho.parameters()]
    copies, passes = (1, 300) if estimator == "shared" else (20, 60)

    theta = [
        (1 + rho.exp()).log() * torch.randn(40_000, *p.shape, generator=generator, dtype=torch.float64) + p
        for p, rho in zip(net.model.parameters(), net.rho.parameters(), strict=True)
    ]
    hidden = (torch.einsum("ni,shi->snh", x, theta[0]) + theta[1][:, None]).tanh()
    logits = torch.einsum("snh,soh->sno", hidden, theta[2]) + theta[3][:, None]
    expected = torch.autograd.grad(functional.cross_entropy(logits.flatten(0, 1), y.repeat(40_000)), variables)
    grads = []
    for _ in range(passes):
        loss = functional.cross_entropy(net(x.repeat(copies, 1)), y.repeat(copies))
        grads.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, variables)]))
    stacked = torch.stack(grads)
    z = (stacked.mean(0) - torch.cat([g.flatten() for g in expected])) / stacked.std(0) * math.sqrt(passes)
    assert z.abs().max() < BOUND
    assert z.square().mean() < 2.0


class Functional(nn.Module):
    """Uses of weights that are no call of a layer."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.layers = nn.ModuleList([nn.LSTM(3, 3, batch_first=True), nn.MultiheadAttention(3, 1, batch_first=True)])
        self.norm = nn.LayerNorm(3)

    def forward(self, x):
        x = torch.einsum("bti,oi->bto", x, self.first.weight) + self.first.bias * self.scale
        x = self.layers[0](x)[0]
        return self.norm(self.layers[1](x, x, x)[0]) + torch.stack([self.scale, self.first.weight.mT[0]]).sum(0)


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_other_uses_of_weights_have_the_shared_sample(estimator):
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    outputs, gradients = [], []
    for kind in ("shared", estimator):
        torch.manual_seed(0)
        net = variational(Functional().double(), initial_std=0.3, estimator=kind)
        out = net(x)
        out.square().sum().backward()
        outputs.append(out)
        gradients.append([p.grad for p in (*net.model.parameters(), *net.rho.parameters())])
    assert torch.equal(*outputs)
    for first, second in zip(*gradients, strict=True):
        assert torch.equal(first, second)
        assert first.abs().max() > 0


class Twice(nn.Module):
    def __init__(self, tied=False, rows=None):
        super().__init__()
        self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
        self.rows = rows
        if tied:
            self.two.weight = self.one.weight
        else:
            self.two = self.one

    def forward(self, x):
        return self.two(self.one(x)[: self.rows])


def bias_of_another():
    def forward(self, x):
        return functional.linear(self.one(x), self.two.weight, self.one.bias)

    return module_of(forward, one=nn.Linear(3, 3), two=nn.Linear(3, 3))


class EmbeddingAndHead(nn.Module):
    """A tied embedding; its use comes first or last."""

    def __init__(self, last=False):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embedding.weight
        self.last = last

    def forward(self, x):
        if self.last:
            return self.embedding(self.head(functional.one_hot(x % 3, 3).to(self.head.weight.dtype)).argmax(-1))
        return self.head(self.embedding(x))


@pytest.mark.parametrize(
    ("estimator", "model", "name"),
    [
        ("local", lambda: Twice(), "one.weight"),
        ("local", lambda: Twice(tied=True), "one.weight"),
        ("local", bias_of_another, "one.bias"),
        ("flipout", bias_of_another, "one.bias"),
    ],
)
def test_a_parameter_that_is_used_twice_is_refused(estimator, model, name):
    net = variational(model(), estimator=estimator)
    message = f"parameter {name!r} must be used in one way in a forward pass with estimator={estimator!r}.*select"
    with pytest.raises(RuntimeError, match=message):
        net(torch.randn(2, 3))
    assert net.eval()(torch.randn(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("tied", [False, True])
def test_flipout_uses_a_weight_twice_for_the_same_data_points(tied):
    net = variational(Twice(tied).double(), initial_std=0.5, estimator="flipout")
    x = torch.randn(4, 3, dtype=torch.float64)
    with net.common_draw(), torch.no_grad():
        out = net(x)
        draw = net._draw
        for row in range(4):
            both = signs(draw.seed, draw.number, 0, (4, 6), x)[row]
            weight = net.model.one.weight + both[3:, None] * draw.deviations()["one.weight"] * both[:3]
            first = net.model.one.bias + both[3:] * draw.deviations()["one.bias"]
            bias = net.model.two.bias + both[3:] * draw.deviations()["two.bias"] if tied else first
            torch.testing.assert_close(out[row], weight @ (weight @ x[row] + first) + bias, rtol=1e-12, atol=1e-12)
    net = variational(Twice(tied, rows=1), estimator="flipout")
    with pytest.raises(RuntimeError, match="parameter 'one.weight' must be used in one way .*for 4 data .*for 1 data"):
        net(torch.randn(4, 3))


@pytest.mark.parametrize("estimator", ["local", "flipout"])
def test_a_tied_embedding_has_the_shared_sample_everywhere_or_is_refused(estimator):
    x = torch.tensor([0, 3, 4])
    nets = []
    for kind in ("shared", estimator):
        torch.manual_seed(0)
        nets.append(variational(EmbeddingAndHead().double(), estimator=kind, select=lambda name: "weight" in name))
    assert torch.equal(nets[0](x), nets[1](x))
    net = variational(EmbeddingAndHead(last=True).double(), estimator=estimator)
    with pytest.raises(RuntimeError, match="parameter 'embedding.weight' must be used in one way"):
        net(x)


def test_a_use_that_is_not_seen_cannot_go_unnoticed():
    """A custom autograd function gets the placeholder of the local estimator as it is."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, weight):
            return weight.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    class Hidden(nn.Linear):
        def forward(self, x):
            return x @ Double.apply(self.weight).T

    net = variational(Hidden(3, 2), estimator="local")
    with pytest.raises(RuntimeError, match="parameter 'weight' must be used by PyTorch functions .* cannot be seen"):
        net(torch.randn(2, 3)).sum().backward()
    assert variational(Hidden(3, 2))(torch.randn(2, 3)).isfinite().all()


def test_reading_a_weights_shape_or_dtype_is_no_use_of_it():
    class Reader(nn.Linear):
        def forward(self, x):
            assert self.weight.shape == (2, 3)
            assert self.weight.size(0) == 2
            assert self.weight.ndim == 2
            assert self.weight.dim() == 2
            assert self.weight.device.type == "cpu"
            return functional.linear(bias=self.bias, weight=self.weight, input=x.to(self.weight.dtype))

    net = made(lambda: Reader(3, 2), "local")
    x = torch.randn(1, 3, dtype=torch.float64).expand(2, 3)
    with torch.no_grad():
        out = net(x)
    assert (out[0] != out[1]).all()  # drawn for each, and so not the shared sample


def test_layers_with_one_random_parameter():
    for estimator in ("local", "flipout"):
        for kept in ("weight", "bias"):
            net = made(lambda: nn.Linear(4, 3), estimator, select=lambda name, kept=kept: name == kept)
            x = torch.randn(1, 4, dtype=torch.float64).expand(2, 4)
            with torch.no_grad():
                out = net(x)
            assert (out != net.model(x)).all()
            assert (out[0] == out[1]).all() == (kept == "bias")


def test_the_draws_of_local_outputs_mirror_and_repeat():
    net = made(lambda: nn.Linear(4, 3), "local")
    x = torch.randn(2, 4, dtype=torch.float64)
    with net.common_draw():
        first, again = net(x), net(x)
    with net.common_draw(mirrored=True):
        mirrored = net(x)
    assert torch.equal(first, again)
    torch.testing.assert_close((first + mirrored) / 2, net.model(x), rtol=1e-13, atol=1e-13)
