"""Samples of a last layer against passes of the whole network, how often the layers before it run, and how often its
weights are drawn.
"""

import gc
import sys
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba
from bayesadam.calibration.safe import Watched
from bayesadam.posterior import PartialGaussian
from bayesadam.predictive.monte_carlo import outputs_at_samples
from bayesadam.predictive.plan import Options

X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


class Network(nn.Module):
    """Counts the passes of its body."""

    def __init__(self, change=lambda network, z: z):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        self.change, self.passes = change, 0

    def forward(self, x):
        self.passes += 1
        return self.change(self, self.head(torch.tanh(self.body(x))))


def posterior(network, kind="dense"):
    mean = {name: p.detach().clone() for name, p in network.named_parameters()}
    last = {name: value for name, value in mean.items() if "head" in name}
    root = torch.randn(10, 10, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    variance = {name: (value.square() + 0.1) * ("head" in name) for name, value in mean.items()}
    if kind == "diagonal":
        return ba.DiagonalGaussian(mean, variance)
    random = ba.DenseGaussian(last, root @ root.T)
    return PartialGaussian(random, {name: value for name, value in mean.items() if name not in last})


def by_passes(network, q, inputs=X, count=20):
    return outputs_at_samples(network, q, inputs, range(count), Options(ba.Categorical(), seed=3))


def predicted(network, q, inputs=X, **options):
    return ba.predict(network, q, inputs, likelihood=ba.Categorical(), mc_samples=20, seed=3, **options)


@pytest.mark.parametrize("kind", ["dense", "diagonal"])
@pytest.mark.parametrize("loader", [False, True])
def test_the_body_runs_once(kind, loader):
    network = Network()
    q = posterior(network, kind)
    expected = by_passes(network, q).log_softmax(-1)
    network.passes = 0
    inputs = DataLoader(TensorDataset(X, X), batch_size=8) if loader else X
    found = predicted(network, q, inputs)
    torch.testing.assert_close(found.log_probs, expected, rtol=1e-5, atol=1e-6)
    assert network.passes == 1 + (3 if loader else 1)  # one is a check, by one row


TENSORS = {
    "dense": [lambda q: q.random.scale_tril, lambda q: q.random.mean["head.weight"], lambda q: q.fixed["body.bias"]],
    "diagonal": [lambda q: q.variance["head.weight"], lambda q: q.mean["head.bias"], lambda q: q.mean["body.weight"]],
}


@pytest.mark.parametrize("kind", list(TENSORS))
def test_samples_are_drawn_again_where_they_would_differ(kind):
    """Not for other rows, but for another number or seed, and after changes of the posterior or the network."""
    network = Network()
    q, likelihood = posterior(network, kind), ba.Categorical()
    random = q.random if kind == "dense" else q
    drawn, sample = [], random.sample

    def counting(count, *, seed):
        drawn.append((count, seed))
        return sample(count, seed=seed)

    random.sample = counting
    expected = by_passes(network, q).log_softmax(-1)
    for rows in (20, 1, 7):
        torch.testing.assert_close(predicted(network, q, X[:rows]).log_probs, expected[:, :rows], rtol=1e-5, atol=1e-6)
    assert drawn == [(20, 3)]
    few = ba.predict(network, q, X, likelihood=likelihood, mc_samples=6, seed=3)
    torch.testing.assert_close(few.log_probs, expected[:6], rtol=1e-5, atol=1e-6)
    other = ba.predict(network, q, X, likelihood=likelihood, mc_samples=20, seed=4)
    assert not torch.allclose(other.log_probs, expected, atol=0.1)
    assert drawn == [(20, 3), (6, 3), (20, 4)]
    tensors = [find(q) for find in TENSORS[kind]]
    for tensor in (*tensors, network.head.weight, network.body.weight):
        before = predicted(network, q).log_probs
        with torch.no_grad():
            tensor.mul_(3.0)
        after = predicted(network, q).log_probs
        torch.testing.assert_close(after, by_passes(network, q).log_softmax(-1), rtol=1e-5, atol=1e-6)
        is_of_network = isinstance(tensor, nn.Parameter)  # whose values are not those of the prediction
        assert torch.equal(after, before) == is_of_network


def test_kept_samples_go_with_the_posterior():
    network = Network()
    q = posterior(network)
    factor = weakref.ref(q.random.scale_tril)
    predicted(network, q)
    del q
    gc.collect()
    assert factor() is None


CHANGES = {
    "after": lambda network, z: 2.0 * z,
    "in place": lambda network, z: z.mul_(2.0),
    "again": lambda network, z: network.head(functional.pad(z, (0, 2))),
    "bare": lambda network, z: z + network.head.bias,
}


class ByName(Network):
    """Calls its head with the name of the argument."""

    def forward(self, x):
        self.passes += 1
        return self.head(input=torch.tanh(self.body(x)))


def test_a_layer_called_by_name_and_no_rows():
    network, q = ByName(), posterior(Network())
    torch.testing.assert_close(predicted(network, q).log_probs, predicted(Network(), q).log_probs)
    network.passes = 0
    predicted(network, q)
    assert network.passes <= 3
    layer = nn.Linear(3, 2)
    q = ba.DiagonalGaussian.point_mass(layer)
    q = ba.DiagonalGaussian(q.mean, {name: torch.ones_like(value) for name, value in q.mean.items()})
    assert ba.predict(layer, q, X[:0], likelihood=ba.Gaussian(), mc_samples=5).mean.shape == (0, 2)


@pytest.mark.parametrize("change", list(CHANGES))
def test_outputs_that_are_not_those_of_the_layer(change):
    network = Network(CHANGES[change])
    q = posterior(network)
    torch.testing.assert_close(predicted(network, q).log_probs, by_passes(network, q).log_softmax(-1))


class Tied(Network):
    def forward(self, x):
        self.passes += 1
        return self.head(self.body(x) * self.head.weight[0])


def test_a_body_that_uses_the_weights_of_the_layer():
    network = Tied()
    q = posterior(network)
    torch.testing.assert_close(predicted(network, q).log_probs, by_passes(network, q).log_softmax(-1))


def partly_ignored(outputs):
    return outputs.argmax(-1).index_fill(0, torch.tensor([0, 5]), -100)


WIDTHS = {
    "classes": (Network, ba.Categorical(), lambda outputs: outputs.argmax(-1), 2),
    "ignored": (Network, ba.Categorical(), partly_ignored, 2),
    "regression": (Network, ba.Gaussian(9.0), lambda outputs: outputs + 0.3 * torch.ones_like(outputs).bernoulli_(), 2),
    "tied": (Tied, ba.Categorical(), lambda outputs: outputs.argmax(-1), None),
}


@pytest.mark.parametrize("kind", list(WIDTHS))
@pytest.mark.parametrize("structure", ["last_layer", "last_layer_kron"])
def test_the_width_is_found_with_one_pass_of_the_body(kind, structure, monkeypatch):
    """The search for the harmless width gives what it gave by passes at every width."""
    make, likelihood, targets, most = WIDTHS[kind]

    def fitted():
        torch.manual_seed(0)
        network = make()
        with torch.no_grad():
            network.head.weight.mul_(20.0)  # sure of itself, so that noise does harm
            y = targets(network(X))
        network.passes = 0
        q = ba.laplace(network, (X, y), likelihood=likelihood, structure=structure)
        return q.hyperparameters["scaled"], network.passes

    scale, passes = fitted()
    monkeypatch.setattr(Watched, "_at_last_layer", lambda self, posterior, data: None)
    monkeypatch.setattr(sys.modules["bayesadam.predictive.plan"], "random_layer", lambda model, posterior: None)
    assert fitted()[0] == scale < 1.0
    assert most is None or passes == most  # one to fit, and one for all widths
