"""Networks with last layers in random features: the kernel, the bounds, and variances that grow with the distance."""

import math

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

import bayesadam as ba
from bayesadam.distance import RandomFeatures, SpectralBound, distance_aware
from modules import module_of


def perceptron():
    return nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))


def test_features_have_the_gaussian_kernel():
    """With 20,000 features to within 0.03, which is four standard errors."""
    layer = RandomFeatures(3, features=20_000, length_scale=0.5).eval()
    layer.scaling.running_mean.copy_(torch.tensor([1.0, -2.0, 0.0]))
    layer.scaling.running_var.copy_(torch.tensor([4.0, 0.25, 1.0]))
    h = torch.randn(20, 3)
    z = (h - layer.scaling.running_mean) / (layer.scaling.running_var + layer.scaling.eps).sqrt() / (0.5 * math.sqrt(3))
    expected = (-0.5 * torch.cdist(z, z).square()).exp()
    features = layer(h)
    torch.testing.assert_close(features @ features.T, expected, rtol=0.0, atol=0.03)
    torch.testing.assert_close(layer(h.view(4, 5, 3)), features.view(4, 5, -1))


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 3, 2, 2)])
def test_a_weight_is_divided_as_far_as_its_norm_exceeds_the_bound(shape):
    weight = torch.randn(shape)
    norm = torch.linalg.matrix_norm(weight.flatten(1), 2)
    bound = SpectralBound(weight, bound=0.5)
    for _ in range(100):
        bound(weight)
    torch.testing.assert_close(bound(weight), weight * (0.5 / norm), rtol=1e-3, atol=1e-4)
    small = weight * (0.4 / norm)
    torch.testing.assert_close(SpectralBound(small, bound=0.5)(small), small, rtol=0.0, atol=0.0)


def test_its_gradient_is_that_of_the_division_by_the_norm():
    weight = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    bound = SpectralBound(weight, bound=0.5)
    for _ in range(500):
        bound(weight)
    target = torch.randn(4, 3, dtype=torch.float64)
    (ours,) = torch.autograd.grad((bound(weight) * target).sum(), weight)
    (exact,) = torch.autograd.grad((weight * 0.5 / torch.linalg.matrix_norm(weight, 2) * target).sum(), weight)
    torch.testing.assert_close(ours, exact, rtol=1e-6, atol=1e-8)


def test_all_layers_but_the_last_are_bounded_and_the_network_is_not_changed():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3)
    ).double()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    net = distance_aware(model, features=32, bound=0.1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    net(torch.randn(5, 1, 4, 4, dtype=torch.float64))
    for layer in (net[0], net[3]):
        assert torch.linalg.matrix_norm(layer.weight.flatten(1), 2) < 0.11
    features, last = net[4]
    assert isinstance(features, RandomFeatures)
    assert last.weight.shape == (3, 32)
    assert last.weight.dtype == torch.float64
    free = distance_aware(model, features=32, bound=None)
    assert torch.equal(free[3].weight, model[3].weight)
    assert list(free.state_dict()) == [*list(before)[:-2], *(f"4.{name}" for name in free[4].state_dict())]


class Doubled(nn.Linear):
    """A linear layer with a forward method of its own."""

    def forward(self, x):
        return 2.0 * super().forward(x)


@pytest.mark.parametrize(
    "layer", [weight_norm(nn.Linear(3, 16)), spectral_norm(nn.Linear(3, 16)), Doubled(3, 16)], ids=type
)
def test_the_bound_is_one_of_subclasses_and_after_other_parametrisations(layer):
    model = nn.Sequential(layer, nn.ReLU(), nn.Linear(16, 3))
    before = layer.weight.detach().clone()
    net = distance_aware(model, features=32, bound=0.1)
    assert torch.linalg.matrix_norm(net[0].weight, 2) < 0.11
    optimizer = torch.optim.Adam(net.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        net(torch.randn(30, 3)).square().sum().backward()
        optimizer.step()
    assert torch.linalg.matrix_norm(net[0].weight, 2) < 0.11
    torch.testing.assert_close(layer.eval().weight, before, rtol=1e-3, atol=1e-3)


def test_weights_that_cannot_be_bounded_are_refused():
    """A class of a parametrised layer is shared with copies: another parametrised tensor would be one of both."""
    biased, x = nn.Linear(2, 8), torch.randn(5, 2)
    parametrize.register_parametrization(biased, "bias", nn.Tanh())
    hooked = torch.nn.utils.spectral_norm(nn.Linear(2, 8))
    for layer in (biased, hooked, nn.LazyLinear(8)):
        model = nn.Sequential(layer, nn.Linear(8, 1))
        with pytest.raises(ValueError, match="^bound must be None if a weight cannot be parametrised, got 0.9 for"):
            distance_aware(model, features=8, bound=0.9)
        assert distance_aware(model, features=8)(x).shape == (5, 1)
    assert biased(x).shape == (5, 8)


def test_the_layer_may_be_named_or_be_the_model():
    model = perceptron()
    net = distance_aware(model, features=8, last_layer="2")
    assert isinstance(net[2], nn.Sequential)
    assert isinstance(net[4], nn.Linear)
    alone = distance_aware(nn.Linear(3, 2), features=8)
    assert alone(torch.randn(4, 3)).shape == (4, 2)


@pytest.mark.parametrize("name", [None, "layers.4", "head"])
def test_a_layer_is_replaced_under_all_of_its_names(name):
    """The last layer has two names, and the first one has another behind that."""
    layers = perceptron()
    parts = {"layers": layers, "head": layers[-1], "first": layers[0]}
    aliased = module_of(lambda self, x: self.head(self.layers[:-1](x)), **parts)
    net = distance_aware(aliased, features=8, last_layer=name)
    assert net.head is net.layers[-1]
    assert isinstance(net.head[0], RandomFeatures)
    net(torch.randn(5, 2)).sum().backward()
    assert all(parameter.grad is not None for parameter in net.parameters())


@pytest.mark.filterwarnings("ignore:the noise of the likelihood must fit")
def test_the_variance_returns_to_the_prior_with_the_distance():
    x = torch.randn(200, 2)
    y = x.sum(1, keepdim=True).sin()
    net, likelihood = distance_aware(perceptron(), features=256), ba.Gaussian(100.0)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        likelihood(net(x), y).backward()
        optimizer.step()
    net.eval()
    q = ba.laplace(net, (x, y), likelihood=likelihood, structure="last_layer_kron", prior_precision=1.0)
    far = 100.0 * torch.randn(50, 2)
    for method in ("auto", "linearized"):
        options = {"likelihood": likelihood, "method": method}
        near, away = (ba.predict(net, q, rows, **options).epistemic.mean() for rows in (x, far))
        assert near < 0.1
        assert 0.7 < away < 2.5  # the variance 1 of the features' weights, and that of the bias


def test_a_state_dict_is_loaded_with_the_same_outputs():
    net, x = distance_aware(perceptron(), features=16), torch.randn(5, 2)
    net(torch.randn(20, 2))
    state = {name: value.clone() for name, value in net.state_dict().items()}
    net.eval()(torch.randn(20, 2))
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    again = distance_aware(perceptron(), features=16)
    again.load_state_dict(net.state_dict())
    torch.testing.assert_close(again.eval()(x), net.eval()(x), rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (perceptron(), {"features": 0}, "features must be a whole number of at least 1, got 0"),
        (perceptron(), {"length_scale": 0.0}, "length_scale must be a positive, finite number, got 0.0"),
        (perceptron(), {"bound": math.inf}, "bound must be None or a positive, finite number, got inf"),
        (perceptron(), {"last_layer": "1"}, r"last_layer must be the name of an nn.Linear, one of .*, got '1'"),
        (nn.Sequential(nn.LazyLinear(1)), {}, "model must have run once, to initialise its last layer, got Lazy.*"),
        (nn.ReLU(), {}, "model must have an nn.Linear, got none"),
    ],
)
def test_refusals(model, options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        distance_aware(model, **options)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_bounded_weight_is_the_same_when_a_checkpoint_runs_again(reentrant):
    layer = nn.Linear(4, 6)
    parametrize.register_parametrization(layer, "weight", SpectralBound(layer.weight, bound=0.1))
    layer.parametrizations.weight[0].direction.normal_()  # an estimate that a second iteration would change
    x = torch.randn(3, 4, requires_grad=True)
    output = checkpoint(layer, x, use_reentrant=reentrant)
    output.sum().backward()
    torch.testing.assert_close((x * x.grad).sum(), (output - layer.bias).sum(), rtol=1e-5, atol=1e-6)
