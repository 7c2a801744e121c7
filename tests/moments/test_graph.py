"""Moments through whole networks: exact with one hidden layer, by hand however layers are put together."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bayesadam import moments
from bayesadam.functional import moments as maps
from bayesadam.moments import Graph, Moments
from bayesadam.moments.rules import MODULES
from moments.networks import layers, linear, make, random_weights, run, same
from moments.references import F64, close, draw, one_hidden_layer, spread


def layer(x, weights, name):
    """A linear layer by hand, of Moments."""
    w, b = weights[f"{name}.weight"], weights.get(f"{name}.bias", Moments(None))
    return Moments(*maps.linear(x.mean, x.variance, w.mean, w.variance, b.mean, b.variance))


def relu(x):
    return Moments(*maps.relu(x.mean, x.variance))


@pytest.mark.parametrize("seed", range(2))
def test_one_hidden_layer_is_exact(seed):
    """The only networks for which everything is."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    weights = random_weights(model, seed)
    x = 2.0 * draw(5, 3, seed=seed)
    mean, covariance = one_hidden_layer(x, *layers(lambda name: (weights[name].mean, weights[name].variance)))
    ours = run(model, x, weights=weights, covariance=True)
    close(ours.mean, mean, rtol=1e-6, atol=1e-9)
    close(ours.covariance, covariance, rtol=1e-6, atol=1e-9)
    close(ours.variance, covariance.diagonal(dim1=-2, dim2=-1), rtol=1e-6, atol=1e-9)
    plain = run(model, x, weights=weights)
    assert plain.covariance is None
    assert torch.equal(plain.variance, ours.variance)
    off = covariance - torch.diag_embed(covariance.diagonal(dim1=-2, dim2=-1))
    assert off.abs().max() > 0.01 * covariance.max()  # there is something to know


def moved(move):
    """The same for means and variances."""
    return (lambda fc, x: move(fc(x))), lambda h, x: (move(h.mean), move(h.variance))


def twice_as_wide(fc, x):
    h = fc(x)
    return torch.cat((h, 3.0 * h), dim=-1)


#: A forward of one layer, and its moments by those of the layer's outputs.
ONE_LAYER = {
    "flatten": moved(lambda x: torch.flatten(x, 1)),
    "view": moved(lambda x: x.view(x.shape[0], -1)),
    "reshape": moved(lambda x: x.reshape(-1, x.shape[1] * x.shape[2])),
    "permute": moved(lambda x: x.permute(2, 0, 1)),
    "slice": moved(lambda x: x[..., 1:]),
    "squeeze": moved(lambda x: x.unsqueeze(1).squeeze(1)),
    "movedim": moved(lambda x: x.movedim(0, -1)),
    "cat": moved(lambda x: torch.cat([x, x[:, :1]], 1)),
    "cat by name": (
        twice_as_wide,
        lambda h, x: (torch.cat([h.mean, 3 * h.mean], 2), torch.cat([h.variance, 9 * h.variance], 2)),
    ),
    "with certain parts": (
        lambda fc, x: torch.cat([fc(x), x], 1),
        lambda h, x: (torch.cat([h.mean, x], 1), torch.cat([h.variance, 0.0 * x], 1)),
    ),
    "residual": (lambda fc, x: x + F.relu(fc(x)), lambda h, x: (x + relu(h).mean, relu(h).variance)),
}


@pytest.mark.parametrize("name", ONE_LAYER)
def test_one_layer(name):
    forward, truth = ONE_LAYER[name]
    model = make(lambda self, x: forward(self.fc, x), fc=linear(3, 3))
    weights, x = random_weights(model), draw(5, 2, 3)
    same(run(model, x, weights=weights), truth(layer(Moments(x), weights, "fc"), x))


class TestStructures:
    def test_a_variance_of_the_bias_alone_can_be_viewed(self):
        """It has one row in memory, and so no view in which rows are joined."""
        model = make(lambda self, x: self.fc(x).view(-1), fc=linear(3, 4))
        weights, x = random_weights(model), draw(5, 3)
        only = {"fc.bias": weights["fc.bias"]}
        same(run(model, x, weights=only), (model(x), weights["fc.bias"].variance.repeat(5)))

    def test_functional_layers_with_parameters(self):
        model = make(
            lambda self, x: torch.tanh(F.linear(x, self.weight, bias=self.bias)) * self.scale - self.shift / 2.0,
            weight=nn.Parameter(draw(4, 3)),
            bias=nn.Parameter(draw(4)),
            scale=nn.Parameter(draw(4, seed=1)),
            shift=nn.Parameter(draw(4, seed=2)),
        )
        weights, x = random_weights(model), draw(5, 3, seed=4)
        h = maps.linear(x, None, *(part for n in ("weight", "bias") for part in (weights[n].mean, weights[n].variance)))
        (e, v), (s, t) = maps.tanh(*h), (weights["scale"].mean, weights["scale"].variance)
        mean, variance = e * s, e**2 * t + v * s**2 + v * t
        truth = (mean - 0.5 * weights["shift"].mean, variance + 0.25 * weights["shift"].variance)
        same(run(model, x, weights=weights), truth)

    def test_several_inputs_by_place_and_by_name(self):
        def forward(self, x, y, scale=2.0, *, z):
            return self.a(x) * scale - self.b(y) / z

        model = make(forward, a=linear(3, 2), b=linear(4, 2, seed=1))
        weights, x, y, z = random_weights(model), draw(5, 3), draw(5, 4, seed=1), draw(5, 2, seed=2).abs() + 1.0
        a, b = layer(Moments(x), weights, "a"), layer(Moments(y), weights, "b")
        truth = (2.0 * a.mean - b.mean / z, 4.0 * a.variance + b.variance / z**2)
        same(run(model, x, y, weights=weights, z=z), truth)
        same(run(model, x, weights=weights, y=y, z=z), truth)
        same(run(model, weights=weights, z=z, y=y, x=x, scale=2.0), truth)
        same(run(model, x, y, 2, weights=weights, z=z), truth)

    def test_sums_and_products(self):
        model = make(lambda self, x, y, z, w: 1.0 - (x - y) * x.mul(z).add(2.0) + torch.sub(w, 3.0).div(2.0))
        x, y, z, w = (Moments(draw(7, seed=i), spread(7, seed=i)) for i in range(4))
        # each use of an input counts as independent of the others
        gap, gap_v = x.mean - y.mean, x.variance + y.variance
        product = x.mean * z.mean + 2.0
        product_v = x.mean**2 * z.variance + z.mean**2 * x.variance + x.variance * z.variance
        variance = gap**2 * product_v + product**2 * gap_v + gap_v * product_v + 0.25 * w.variance
        same(run(model, x, y, z, w), (1.0 - gap * product + (w.mean - 3.0) / 2.0, variance))

    def test_sums_and_products_of_other_shapes(self):
        x, u, y = draw(1, 3), spread(1, 3), draw(5, 1, seed=1)
        same(run(make(lambda self, x, y: x + y), Moments(x, u), y), (x + y, u.expand(5, 3)))
        same(run(make(lambda self, x, y: y - x), Moments(x, u), y), (y - x, u.expand(5, 3)))
        same(run(make(lambda self, x, y: x * y), Moments(x, u), y), (x * y, u * y**2))
        same(run(make(lambda self, x, y: x / y), Moments(x, u), y), (x / y, u / y**2))

    def test_a_layer_that_is_called_twice(self):
        fc = linear(3, 3)
        model = make(lambda self, x: self.second(F.relu(self.first(x))), first=fc, second=fc)
        weights, x = random_weights(model), draw(5, 3)
        assert list(weights) == ["first.weight", "first.bias"]
        same(run(model, x, weights=weights), layer(relu(layer(Moments(x), weights, "first")), weights, "first"))

    def test_parameters_that_two_layers_share(self):
        model = make(lambda self, x: self.b(self.a(x)), a=linear(3, 3), b=linear(3, 3, seed=1))
        model.b.weight = model.a.weight
        weights, x = random_weights(model), draw(5, 3)
        assert "b.weight" not in weights
        truth = layer(layer(Moments(x), weights, "a"), {**weights, "b.weight": weights["a.weight"]}, "b")
        same(run(model, x, weights=weights), truth)

    @pytest.mark.parametrize(
        ("kind", "shape", "affine"),
        [(nn.BatchNorm1d, (4,), True), (nn.BatchNorm1d, (4, 3), False), (nn.BatchNorm2d, (4, 2, 3), True)],
    )
    def test_batch_norm(self, kind, shape, affine):
        model = nn.Sequential(kind(4, affine=affine, eps=0.1)).double().eval()
        model[0].running_mean.copy_(draw(4, seed=1))
        model[0].running_var.copy_(draw(4, seed=2).exp())
        x, u = draw(5, *shape), spread(5, *shape)
        if affine:
            model[0].weight.data.copy_(draw(4, seed=3))
        weights = random_weights(model)
        shape = (4, *[1] * (len(shape) - 1))
        scale = (1.0 / (model[0].running_var + 0.1).sqrt()).view(shape)
        mean = (x - model[0].running_mean.view(shape)) * scale
        for certain in (True, False):
            variance = None if certain else u * scale**2
            truth = Moments(mean, variance)
            if affine:
                w, b = (weights[f"0.{name}"].moved(lambda t: t.view(shape)) for name in ("weight", "bias"))
                carried = torch.zeros_like(x) if certain else variance
                variance = mean**2 * w.variance + carried * (w.mean**2 + w.variance) + b.variance
                truth = Moments(mean * w.mean + b.mean, variance)
            same(run(model, Moments(x, None if certain else u), weights=weights), truth)
        assert torch.equal(run(model, x, weights={}).mean, model(x))
        only = {name: value for name, value in weights.items() if "weight" in name}
        if affine:
            close(run(model, x, weights=only).variance, mean**2 * weights["0.weight"].variance.view(shape))

    def test_dropout_is_noise_in_training_mode_only(self):
        model = nn.Sequential(nn.Dropout(0.2), linear(3, 2))
        x = draw(5, 3)
        same(run(model, x, weights={}), maps.linear(x, x**2 * 0.25, model[1].weight, None, model[1].bias))
        close(run(model, x, weights={}).variance, (x**2 * 0.25) @ model[1].weight.square().T)
        assert run(model.eval(), x, weights={}).variance is None

    def test_convolutions_and_pools(self):
        model = nn.Sequential(
            nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2),
            nn.ReLU(),
            nn.AvgPool2d(2, stride=1, padding=1, count_include_pad=False),
            nn.Conv2d(4, 3, (2, 1), dilation=(2, 1), bias=False),
            nn.AdaptiveAvgPool2d((2, 1)),
            nn.Flatten(),
            nn.Linear(6, 2),
        ).double()
        weights, x = random_weights(model), draw(2, 2, 7, 8)

        def weight(name):
            found = weights.get(name, Moments(None))
            return found.mean, found.variance

        h = maps.convolution(model[0]._conv_forward, x, None, *weight("0.weight"), *weight("0.bias"))
        h = maps.avg_pool2d(*maps.relu(*h), 2, stride=1, padding=1, count_include_pad=False)
        h = maps.convolution(model[3]._conv_forward, *h, *weight("3.weight"), *weight("3.bias"))
        h = maps.adaptive_avg_pool2d(*h, (2, 1))
        truth = layer(Moments(*(t.flatten(1) for t in h)), weights, "6")
        same(run(model, x, weights=weights), truth)
        certain = run(model, x, weights={}, covariance=True)
        assert torch.equal(certain.mean, model(x))
        assert certain.variance is None
        assert torch.equal(certain.spread(), torch.zeros_like(certain.mean))

    def test_a_circular_convolution_is_a_plain_one_of_more(self):
        model = nn.Sequential(nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular")).double()
        weights, x, u = random_weights(model), draw(2, 1, 5), spread(2, 1, 5)
        wide = [torch.cat([z[..., -1:], z, z[..., :1]], -1) for z in (x, u)]
        parts = [part for n in ("weight", "bias") for part in (weights[f"0.{n}"].mean, weights[f"0.{n}"].variance)]
        same(run(model, Moments(x, u), weights=weights), maps.convolution(F.conv1d, *wide, *parts))


class Combined(nn.Module):
    """A function of the outputs of two linear layers, and of the inputs."""

    def __init__(self, function):
        super().__init__()
        self.a, self.b, self.function = linear(3, 4), linear(3, 4, seed=1), function
        self.norm, self.back, self.scale = nn.BatchNorm1d(4).double(), linear(4, 4), nn.Parameter(draw(4))
        self.drop = nn.Dropout(0.5)
        self.relu, self.softplus, self.flat = nn.ReLU(), nn.Softplus(), nn.Flatten()
        self.eval()

    def forward(self, x):
        return self.function(self, x, self.a(x), self.b(x))


REFUSED = {
    "add": lambda m, x, h, g: h + h,
    "mul": lambda m, x, h, g: h * torch.sigmoid(h),  # a swish by hand
    "multiplied": lambda m, x, h, g: m.softplus(h).mul(m.relu(h).tanh()),
    "moved": lambda m, x, h, g: h.view(-1, 2, 2) * m.flat(h).reshape(-1, 2, 2),
    "part": lambda m, x, h, g: h * h[:, :1],
    "batch norm": lambda m, x, h, g: h + m.norm(h),
    "of two": lambda m, x, h, g: (h + g) * torch.sigmoid(h - g),
    "a long way back": lambda m, x, h, g: (h + m.back(h)) + h,
    "a parameter": lambda m, x, h, g: h + m.scale * torch.sigmoid(m.scale),
}
TAKEN = {
    "residual": lambda m, x, h, g: h + m.back(F.relu(h)),
    "residual after a norm": lambda m, x, h, g: h + m.back(F.relu(m.norm(h))),
    "gated": lambda m, x, h, g: h * torch.sigmoid(g),
    "highway": lambda m, x, h, g: torch.sigmoid(g) * h + (1.0 - torch.sigmoid(g)) * m.back(h),
    "certain inputs": lambda m, x, h, g: (x * x + x * torch.sigmoid(x))[:, :1] * h,
    "certain inputs with others": lambda m, x, h, g: (x[:, :1] + h) * (x[:, :1] + g),
    "parts of what was joined": lambda m, x, h, g: (lambda j: j[:, :4] * j[:, 4:])(torch.cat([h, g], 1)),
    "one scale for two": lambda m, x, h, g: m.scale * h + m.scale * g,
}
ITSELF = "got the function '[a-z]+' of a random value and itself, or a function of itself$"


class TestCombinations:
    @pytest.mark.parametrize("name", REFUSED)
    def test_of_a_value_with_itself_are_refused(self, name):
        """Silently taken as independent of each other, their variance would be wrong by a factor."""
        model, x = Combined(REFUSED[name]), draw(5, 3)
        with pytest.raises(ValueError, match=ITSELF):
            run(model, x)
        assert torch.equal(run(model, x, weights={}).mean, model(x))  # what is certain may be

    @pytest.mark.parametrize("name", TAKEN)
    def test_of_different_values_are_taken(self, name):
        model, x = Combined(TAKEN[name]), draw(5, 3)
        assert run(model, x).variance.gt(0).all()
        assert torch.equal(run(model, x, weights={}).mean, model(x))

    def test_only_what_is_random_counts(self):
        """Of frozen layers anything may be made: the last layer of a network with a swish by hand, say."""
        model, x = Combined(lambda m, x, h, g: m.back(h * torch.sigmoid(h))), draw(5, 3)
        weights = {n: w for n, w in random_weights(model).items() if n.startswith("back")}
        hidden = Moments((model.a(x) * torch.sigmoid(model.a(x))).detach())
        same(run(model, x, weights=weights), layer(hidden, weights, "back"))

    def test_noise_of_a_layer_on_certain_inputs(self):
        dropped = Combined(lambda m, x, h, g: (lambda d: d * torch.sigmoid(d))(m.drop(x))).train()
        normed = Combined(lambda m, x, h, g: (lambda n: n * torch.sigmoid(n))(m.norm(h)))
        weights = random_weights(normed)
        for model, kept in ((dropped, {}), (normed, {"norm.weight": weights["norm.weight"]})):
            with pytest.raises(ValueError, match=ITSELF):
                run(model, draw(5, 3), weights=kept)

    def test_a_layer_of_ones_own(self):
        class Sine(nn.Module):
            def forward(self, x):
                return torch.sin(x)

        model, x = Combined(lambda m, x, h, g: h + m.sine(h)), draw(5, 3)
        model.sine = Sine()
        try:
            for elementwise in (False, True, False):
                moments.register(Sine, elementwise=elementwise)(lambda module, x, weights: x)
                if elementwise:
                    with pytest.raises(ValueError, match=ITSELF):
                        run(model, x)
                else:
                    run(model, x)
        finally:
            del MODULES[Sine]


ELEMENTWISE = {
    "relu": (nn.ReLU(inplace=True), F.relu, maps.relu),
    "relu as a method": (nn.ReLU(), lambda x: x.relu(), maps.relu),
    "leaky_relu": (
        nn.LeakyReLU(0.2),
        lambda x: F.leaky_relu(x, 0.2),
        lambda m, v: maps.leaky_relu(m, v, 0.2),
    ),
    "sigmoid": (nn.Sigmoid(), torch.sigmoid, maps.sigmoid),
    "sigmoid as a method": (nn.Sigmoid(), lambda x: x.sigmoid(), maps.sigmoid),
    "tanh": (nn.Tanh(), torch.tanh, maps.tanh),
    "tanh as a method": (nn.Tanh(), lambda x: x.tanh(), maps.tanh),
    "gelu": (nn.GELU(), F.gelu, maps.gelu),
    "gelu_tanh": (
        nn.GELU("tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        lambda m, v: maps.gelu(m, v, approximate="tanh"),
    ),
    "silu": (nn.SiLU(), F.silu, maps.silu),
}
QUADRATURE = {
    "elu": nn.ELU(0.7, inplace=True),
    "selu": nn.SELU(),
    "celu": nn.CELU(),
    "softplus": nn.Softplus(),
    "softsign": nn.Softsign(),
    "mish": nn.Mish(),
    "log_sigmoid": nn.LogSigmoid(),
    "hardtanh": nn.Hardtanh(inplace=True),
    "relu6": nn.ReLU6(),
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_layers_and_functions(name):
    module, function, rule = ELEMENTWISE[name]
    x, u = draw(50), spread(50)
    before = x.clone()
    for model in (nn.Sequential(module), make(lambda self, x: function(x))):
        same(run(model, Moments(x, u)), rule(x, u), rtol=0, atol=0)
        certain = run(model, x)
        assert torch.equal(certain.mean, function(x))
        assert certain.variance is None
        assert torch.equal(x, before)


@pytest.mark.parametrize("name", QUADRATURE)
def test_layers_by_quadrature(name):
    x, u = 1.5 * draw(3, seed=2), 0.3 + spread(3)
    before = x.clone()
    model = nn.Sequential(QUADRATURE[name])
    ours = run(model, Moments(x, u))
    z = torch.linspace(-10.0, 10.0, 20_001, **F64)
    mass = torch.exp(-0.5 * z**2)
    mass = mass / mass.sum()
    values = model((x.unsqueeze(1) + u.sqrt().unsqueeze(1) * z).clone())
    mean = (values * mass).sum(1)
    # functions with kinks are the harder ones
    rough = {"rtol": 0.02, "atol": 0.01} if name in ("softsign", "hardtanh", "relu6", "selu", "celu", "elu") else {}
    fine = {"rtol": 1e-4, "atol": 1e-5}
    close(ours.mean, mean, **(rough or fine))
    close(
        ours.variance, ((values - mean.unsqueeze(1)).square() * mass).sum(1), **(rough or {"rtol": 1e-3, "atol": 1e-5})
    )
    assert torch.equal(run(model, x).mean, model(x.clone()))
    assert torch.equal(x, before)


class TestSubclasses:
    class Shifted(nn.Linear):
        def forward(self, x):
            return 2.0 * super().forward(x) + 1.0

    def test_what_it_computes_counts(self):
        model = nn.Sequential(self.Shifted(3, 2)).double()
        weights, x = random_weights(model), draw(5, 3)
        h = layer(Moments(x), weights, "0")
        same(run(model, x, weights=weights), (2.0 * h.mean + 1.0, 4.0 * h.variance))
        assert not Graph(model).has_covariance

    def test_register(self):
        class Sine(nn.Module):
            def __init__(self):
                super().__init__()
                self.scale = nn.Parameter(draw(3))

            def forward(self, x):
                return torch.sin(x) * self.scale

        model, x, u = nn.Sequential(Sine()), draw(5, 3), spread(5, 3)

        @moments.register(Sine)
        def rule(module, x, weights):
            assert isinstance(module, Sine)
            assert weights("scale").variance is not None
            mean = torch.sin(x.mean) * torch.exp(-0.5 * x.spread())
            return Moments(mean * weights("scale").mean, x.variance)

        try:
            ours = run(model, Moments(x, u))
            same(ours, (torch.sin(x) * torch.exp(-0.5 * u) * model[0].scale, u))
            with pytest.raises(ValueError, match="got the function 'sin'$"):
                Graph(nn.Sequential(type("Sub", (Sine,), {})()))
        finally:
            del MODULES[Sine]


def test_plain_values_are_computed_plainly():
    def forward(self, x, count):
        width = x.shape[-1] * 2
        ones = torch.ones(width // 2, dtype=x.dtype, device=x.device)
        return self.fc(x * ones).view(x.size(0), count + 1, -1) + torch.zeros(1, dtype=x.dtype)

    model = make(forward, fc=linear(3, 4))
    weights, x = random_weights(model), draw(5, 3)
    h = layer(Moments(x), weights, "fc")
    same(run(model, x, 1, weights=weights), h.moved(lambda t: t.view(5, 2, 2)))
