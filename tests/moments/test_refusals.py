"""Every refusal of ``bayesadam.moments``, once: a call, the type of its error and words of the message."""

import math
import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

import bayesadam as ba
from bayesadam import priors
from bayesadam.functional import moments as maps
from bayesadam.moments import Graph, Moments, expected_log_likelihood, log_predictive
from moments.networks import data, linear, make, mlp, run
from moments.references import draw
from refusals import assert_refused, refusals


class OfNoExpectation(ba.likelihoods.Likelihood):
    """A likelihood of all outputs together."""

    def log_density(self, output, target):
        return output.logsumexp(-1)


def twice():
    return make(lambda self, x: self.layer(self.layer(x)), layer=linear(3, 3))


def branch(self, x):
    return x if x.sum() > 0 else -x


def view_of_what_changes(self, x):
    h = self.a(x)
    part = h[:, :2]
    h += self.b(x)
    return part


def what_a_view_changes(self, x):
    h = self.a(x)
    F.relu(h.view(-1, 2, 2), inplace=True)
    return self.b(h)


def another_view(self, x):
    h = self.same(self.a(x))
    F.relu(self.drop(h.unsqueeze(1)), inplace=True)
    return self.b(h.reshape(-1, 4))


def added_to_itself(self, x):
    h = self.a(x)
    other = F.relu(h)
    h += other
    return h


def hooked():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Linear(3, 3)))
    model[1].register_forward_hook(lambda *_: None)
    return model


def frozen_bias():
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    model[1].bias.requires_grad_(False)
    return model


def shared():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    return model


def two_layers(function):
    return make(function, a=linear(4, 4), b=linear(4, 4), drop=nn.Dropout(0.1), same=nn.Identity()).eval()


def quotient():
    return make(lambda self, x, y: x / y)


def narrow_posterior():
    return ba.DiagonalGaussian({"0.weight": torch.zeros(6, 4)}, {"0.weight": torch.ones(6, 4)})


def lstm():
    return nn.Sequential(linear(3, 3), nn.Sequential(nn.LSTM(2, 2)))


def quantizable():
    return nn.Sequential(nn.modules.linear.NonDynamicallyQuantizableLinear(2, 2))


def weight_norm():
    return nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 2)))


NETWORKS = {
    "a layer without a rule": (lstm, "(else use 'monte_carlo'), got the layer '1.0' (LSTM); use bayesadam.variational"),
    "one with a replacement": (lambda: nn.Sequential(nn.EmbeddingBag(3, 2)), "use nn.Embedding and nn.Flatten"),
    "a softmax": (lambda: nn.Sequential(linear(2, 2), nn.Softmax(-1)), "the layer '1' (Softmax); use logits"),
    "a parametrised layer": (weight_norm, "the layer '0' (ParametrizedLinear); use bayesadam.variational"),
    "no linear layer": (quantizable, "the layer '0' (NonDynamicallyQuantizableLinear)"),
    "two inputs": (lambda: make(lambda self, x, y: self.fc(x, y), fc=nn.Linear(2, 2)), "the layer 'fc' with 2 inputs"),
    "a function": (lambda: make(lambda self, x: torch.sin(x)), "the function 'sin'"),
    "a method": (lambda: make(lambda self, x: x.exp()), "the function 'exp'"),
    "an attribute": (lambda: make(lambda self, x: x.T), "the function 'getattr'"),
    "two outputs": (lambda: make(lambda self, x: (x, x)), "an output that is not one tensor"),
    "a number": (lambda: make(lambda self, x: x.size(0)), "an output that is not one tensor"),
    "any number of inputs": (lambda: make(lambda self, *x: x[0]), "any number of inputs '*x'"),
    "any names of inputs": (lambda: make(lambda self, **x: x["a"]), "any number of inputs '**x'"),
    "a branch": (lambda: make(branch), "got Made: symbolically traced variables cannot be used as inputs to control"),
    "a loop": (lambda: make(lambda self, x: torch.cat([y for y in x])), "model must be a fixed sequence of layers"),
    "hooks": (hooked, "model must have no forward hooks to propagate moments, got some at '1'"),
    "an argument": (
        lambda: make(lambda self, x: torch.add(x, x, alpha=2)),
        "the function 'add' with these arguments (got",
    ),
    "a view": (lambda: two_layers(view_of_what_changes), "'getitem', which may share memory with 'a', which 'iadd'"),
    "changed by a view": (lambda: two_layers(what_a_view_changes), "'a', which may share memory with 'view', which"),
    "another view": (lambda: two_layers(another_view), "'same', which may share memory with 'drop', which 'relu'"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_without_moments(name):
    model, words = NETWORKS[name]
    for build in (Graph, ba.fawn, lambda model: ba.fawn(model, weights="bernoulli")):
        network = model()
        wanted = [p.requires_grad for p in network.parameters()]
        with pytest.raises(ValueError, match=re.escape(words)):
            build(network)
        assert [p.requires_grad for p in network.parameters()] == wanted


def fawn(model=None, **options):
    return ba.fawn(mlp() if model is None else model(), **options)


def bernoulli(**options):
    return ba.fawn(mlp(), weights="bernoulli", **options)


def last_layer(model=mlp, **options):
    return ba.variational_last_layer(model(), **options)


def loss(net=fawn, **options):
    given = {"inputs": data()[0], "target": data()[1], "likelihood": ba.Gaussian(), "num_data": 6, **options}
    return net().loss(given.pop("inputs"), given.pop("target"), **given)


def outputs(*shape):
    return Moments(draw(*shape), draw(*shape, seed=1).square())


def ones(mean):
    return {name: torch.ones_like(m) for name, m in mean.items()}


def prediction(model=mlp, q=None, **options):
    mean = {name: p.detach().clone() for name, p in mlp().named_parameters()}
    q = ba.DiagonalGaussian(mean, ones(mean)) if q is None else q(mean)
    given = {"likelihood": ba.Gaussian(4.0), "method": "moments", "inputs": data()[0], **options}
    return ba.predict(model(), q, given.pop("inputs"), **given)


def dense(mean):
    return ba.DenseGaussian(mean, torch.eye(sum(m.numel() for m in mean.values()), dtype=torch.float64))


def embedding():
    return run(nn.Sequential(nn.Embedding(4, 2, max_norm=1.0)), torch.tensor([1]), weights={})


def batch_norm(training):
    model = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=training)).train(training)
    return run(model, torch.ones(2, 3), weights={})


def tanh_outputs():
    return nn.Sequential(nn.Linear(4, 2), nn.Tanh())


def patched():
    layer = nn.Linear(3, 2)
    layer.forward = lambda x: nn.functional.linear(x, 3.0 * layer.weight, layer.bias)
    return nn.Sequential(layer)


def changed_in_place():
    return nn.Sequential(linear(4, 2), nn.ReLU(inplace=True))


def low_rank(mean):
    return ba.LowRankGaussian(mean, ones(mean), {name: torch.zeros(2, *m.shape) for name, m in mean.items()})


def dropout(mean):
    return ba.MCDropout(nn.Sequential(nn.Linear(4, 2), nn.Dropout()))


def maxima_with_indices():
    return run(nn.Sequential(nn.MaxPool1d(2, return_indices=True)), torch.zeros(1, 1, 4), weights={})


MIXTURE = priors.ScaleMixturePrior()
CASES = {
    # fawn
    "weights": (lambda: fawn(weights="normal"), "weights must be one of ('gaussian', 'bernoulli'), got 'normal'"),
    "model": (lambda: fawn(lambda: abs), "model must be a torch.nn.Module, got builtin_function_or_method"),
    "nothing to train": (lambda: fawn(nn.ReLU), "a trainable parameter that is selected, got none"),
    "nothing selected": (lambda: fawn(select=lambda _: False), "a trainable parameter that is selected, got none"),
    "vectors only": (lambda: bernoulli(select=lambda name: "bias" in name), "must have a weight matrix"),
    "scales": (lambda: bernoulli(scales="layers"), "scales must be one of ('outputs', 'inputs'), got 'layers'"),
    "covariance of tanh": (lambda: fawn(tanh_outputs, covariance=True), "covariance must be False unless nn.Linear"),
    "std by name": (lambda: fawn(initial_std={"0.weight": 0.1}), "must have the random parameter '0.bias', got none"),
    "std": (lambda: fawn(initial_std=math.nan), "initial_std of '0.weight' must be positive and finite, got nan"),
    "no closed form": (lambda: fawn(prior=MIXTURE), "prior must have a divergence in closed form to propagate moments"),
    "precision": (lambda: fawn(prior=-1.0), "prior must be positive and finite, got -1.0"),
    "prior": (lambda: fawn(prior="normal"), "prior must be a precision, one of bayesadam.priors or a DiagonalGaussian"),
    "prior of others": (lambda: fawn(prior=narrow_posterior()), "prior must have the weights '0.bias', got none"),
    "probability": (
        lambda: bernoulli(prior=1.0),
        "prior must be a probability in (0, 1) or None for Bernoulli weights",
    ),
    "Gaussian prior": (lambda: bernoulli(prior=priors.GaussianPrior()), "prior must be a probability or None"),
    # variational_last_layer
    "last layer: model": (lambda: last_layer(lambda: 3), "model must be a torch.nn.Module, got int"),
    "last layer: none": (lambda: last_layer(nn.ReLU), "model must have an nn.Linear, got none"),
    "last layer: own forward": (lambda: last_layer(patched), "model must have an nn.Linear, got none"),
    "last layer: covariance": (lambda: last_layer(covariance="kron"), "covariance must be one of ('full', 'diagonal')"),
    "last layer: name": (lambda: last_layer(last_layer="1"), "the name of an nn.Linear, one of ['0', '2'], got '1'"),
    "last layer: prior": (lambda: last_layer(prior=MIXTURE), "prior must have a divergence in closed form, got Scale"),
    "last layer: std": (lambda: last_layer(initial_std=0.0), "initial_std of '2.weight' must be positive and finite"),
    "last layer: frozen": (lambda: last_layer(frozen_bias), "got '1.bias', which is frozen"),
    "last layer: shared": (lambda: last_layer(shared), "got '1.weight', which is shared with another module"),
    "last layer: large": (lambda: last_layer(lambda: nn.Linear(1000, 11)), "10,000 weights, got 'full' for 11,011"),
    "layers after it": (lambda: last_layer(last_layer="0")(draw(2, 4)), "must give the network's outputs, got '0'"),
    "changed in place": (lambda: last_layer(changed_in_place)(draw(2, 4)), "must give the network's outputs, got '0'"),
    "two calls": (lambda: last_layer(twice)(draw(2, 3)), "must be called once in the model's forward, got 2 calls of"),
    # layers in a pass
    "indices": (maxima_with_indices, "return_indices must be False to propagate moments"),
    "bounded norm": (embedding, "max_norm must be None to propagate moments through an embedding, got 1.0"),
    "shapes": (lambda: maps.max_pool(torch.ones(1, 4), torch.ones(1, 5), (2,)), "variance must be of the mean's shape"),
    "added to itself": (lambda: run(two_layers(added_to_itself), draw(5, 4)), "'iadd' of a random value and itself"),
    "batch statistics": (lambda: batch_norm(True), "statistics and be in eval mode to propagate moments (call .eval()"),
    "no statistics": (lambda: batch_norm(False), "BatchNorm1d must have running statistics and be in eval mode"),
    "no input": (lambda: run(mlp()), "the model must be given its input 'input', got none"),
    "more inputs": (lambda: run(mlp(), draw(2, 4), 2, w=1), "its own inputs only, got 1 more and ['w']"),
    "divisor": (
        lambda: run(quotient(), outputs(3), outputs(3)),
        "a divisor must have no variance to propagate moments",
    ),
    # losses
    "objective": (lambda: loss(objective="elbo"), "objective must be one of ('ropd', 'vi'), got 'elbo'"),
    "num_data": (lambda: loss(num_data=math.inf), "num_data must be a positive, finite number, got inf"),
    "kl_weight": (lambda: loss(kl_weight=-0.1), "kl_weight must be finite and not negative, got -0.1"),
    "temperature": (lambda: loss(temperature=math.nan), "temperature must be in [0, 1], got nan"),
    "likelihood": (lambda: loss(likelihood=3), "likelihood must be a bayesadam.likelihoods.Likelihood, got 3"),
    "expectation": (
        lambda: loss(likelihood=OfNoExpectation()),
        "log_expected_density or element_log_density, got",
    ),
    "target": (lambda: loss(target=torch.ones(20)), "target must be of the output's shape"),
    "wrapper": (lambda: loss(wrapper=nn.Linear(3, 2)), "must contain the network whose loss is computed, got Linear"),
    "last layer: loss": (lambda: loss(last_layer, num_data=0), "num_data must be a positive, finite number, got 0"),
    "last layer: wrapper": (lambda: loss(last_layer, wrapper=nn.Linear(3, 2)), "must contain the network whose loss"),
    "bound": (lambda: ba.Categorical(bound="bohning"), "bound must be one of ('tilted', 'jensen'), got 'bohning'"),
    "expected density": (
        lambda: expected_log_likelihood(ba.Gaussian(), outputs(5, 1), torch.zeros(5)),
        "target must be of the output's shape (5, 1), got (5,)",
    ),
    "predictive density": (
        lambda: log_predictive(ba.Categorical(), outputs(5, 3), torch.full((5,), 3)),
        "target must be in [0, 3), got 3 to 3",
    ),
    # predictions
    "dense": (lambda: prediction(q=dense), "posterior must have independent weights for method='moments'"),
    "low rank": (lambda: prediction(q=low_rank), "without its correlations), got LowRankGaussian"),
    "mixture": (lambda: prediction(q=lambda m: ba.Mixture([ba.DiagonalGaussian(m, ones(m))] * 2)), "got Mixture"),
    "dropout": (lambda: prediction(q=dropout), "got MCDropout"),
    "output": (lambda: prediction(output=abs), "output must be None for method='moments', got <built-in"),
    "other shapes": (lambda: prediction(lambda: mlp(3)), "parameter '2.weight' must be of the posterior's shape"),
    "joint": (lambda: prediction().joint_log_likelihood(data()[1]), "method must be 'monte_carlo' for the joint log-"),
    "batch_size": (lambda: prediction(batch_size=0), "batch_size must be a whole number of at least 1, got 0"),
    "mc_samples": (lambda: prediction(mc_samples=0), "mc_samples must be a whole number of at least 1, got 0"),
    "seed": (lambda: prediction(seed=-1), "seed must be"),
    "no likelihood": (lambda: prediction(likelihood=nn.MSELoss()), "likelihood must be a bayesadam.likelihoods.Likeli"),
    "a link": (lambda: prediction(link="probit"), "('linearized', 'moments') and classification only, got 'probit'"),
    "unknown link": (lambda: prediction(likelihood=ba.Categorical(), link="logit"), "link must be one of"),
    "no batches": (lambda: prediction(inputs=[]), "inputs must have at least one batch, got an empty loader"),
    "too many inputs": (lambda: prediction(inputs=data()), "must be given its own inputs only, got 1 more and []"),
}
ERRORS = dict.fromkeys(("batch statistics", "no statistics"), RuntimeError)
ERRORS |= dict.fromkeys(("no input", "more inputs", "too many inputs", "divisor"), TypeError)


@refusals([(call, ERRORS.get(name, ValueError), words) for name, (call, words) in CASES.items()], literal=True)
def test_refusals(call, error, message):
    assert_refused(call, error, message)
