"""``param_groups``: what gets noise and what does not, names, and weight decays as priors."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import bayesadam as ba
from bayesadam.optim.param_groups import is_norm
from optim.methods import Method, loss_of, make_step


class LlamaRMSNorm(nn.Module):
    """As libraries of language models write their own."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * x * x.square().mean(-1, keepdim=True).rsqrt()


class PreNorm(nn.Module):
    """A wrapper that is named like a norm layer, around a layer that is none."""

    def __init__(self, inner, width):
        super().__init__()
        self.inner, self.norm = inner, nn.LayerNorm(width)


class NormalizedLinear(nn.Linear):
    """No norm layer."""


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3), nn.LayerNorm(3)
    )


def content(group):
    return [name for name, _ in group["params"]]


def rest(group):
    return {name: value for name, value in group.items() if name != "params"}


NORMS = ["0.bias", "1.weight", "1.bias", "5.weight", "5.bias"]
"""Of norm layers, and the bias that batch norm takes away; layer norm does not."""
OTHERS = ["0.weight", "4.weight", "4.bias"]


def test_norm_layers_are_sorted_out():
    net = network()
    groups = ba.param_groups(net)
    assert [content(group) for group in groups] == [OTHERS, NORMS]
    assert [rest(group) for group in groups] == [{}, {"perturb": False}]
    named = dict(net.named_parameters())
    assert all(parameter is named[name] for group in groups for name, parameter in group["params"])


class TestBiasesBeforeBatchNorm:
    def quiet(self, *layers):
        return content(ba.param_groups(nn.Sequential(*layers))[1])

    def test_only_directly_before_and_of_its_channels(self):
        assert self.quiet(nn.Linear(2, 4), nn.ReLU(), nn.BatchNorm1d(4)) == ["2.weight", "2.bias"]
        assert self.quiet(nn.Linear(2, 4), nn.Unflatten(1, (2, 2)), nn.BatchNorm1d(2)) == ["2.weight", "2.bias"]
        assert self.quiet(nn.Linear(2, 4), nn.BatchNorm1d(2)) == ["1.weight", "1.bias"]
        assert self.quiet(nn.Linear(2, 4, bias=False), nn.BatchNorm1d(4, affine=True)) == ["1.weight", "1.bias"]
        assert self.quiet(nn.Linear(2, 4), nn.BatchNorm1d(4, affine=False)) == ["0.bias"]

    def test_samples_predict_with_the_statistics_of_the_mean(self):
        """With noise on the biases, whose gradients are 0, samples shift every channel: the NLL is then doubled."""
        torch.manual_seed(0)
        x = torch.randn(256, 6)
        y = (x[:, 0] > 0).long()
        layers = [nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
        opt = ba.BayesAdam(ba.param_groups(net), num_data=256, batch_size=32, total_steps=160)
        for rows in torch.randint(256, (160, 32)):
            with opt.sampled_params():
                opt.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            opt.step()
        q = ba.predictive.with_batch_norm(net, opt.posterior(net), x)
        samples, mean = (
            ba.metrics.nll(ba.predict(net, q, x, likelihood=ba.Categorical(), method=method), y)
            for method in ("monte_carlo", "mean")
        )
        assert samples < mean + 0.05


@pytest.mark.parametrize(
    "layer",
    [
        nn.SyncBatchNorm(4),
        nn.LazyBatchNorm1d(),
        nn.InstanceNorm3d(4, affine=True),
        nn.GroupNorm(2, 4),
        nn.RMSNorm(4),
        LlamaRMSNorm(4),
        type("LayerNorm2d", (LlamaRMSNorm,), {})(4),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_norm_layers_are_known(layer):
    assert is_norm(layer)
    (group,) = ba.param_groups(nn.Sequential(layer))
    assert group["perturb"] is False


def test_what_is_only_named_alike_is_none():
    assert not is_norm(NormalizedLinear(2, 2))
    first, second = ba.param_groups(nn.Sequential(PreNorm(nn.Linear(2, 2), 2), NormalizedLinear(2, 2)))
    assert content(first) == ["0.inner.weight", "0.inner.bias", "1.weight", "1.bias"]
    assert content(second) == ["0.norm.weight", "0.norm.bias"]
    linear = nn.utils.parametrizations.weight_norm(nn.Linear(2, 2))
    (group,) = ba.param_groups(linear)
    assert "perturb" not in group
    assert len(content(group)) == 3


def test_tied_parameters_appear_once_and_frozen_ones_stay():
    net = nn.ModuleDict({"embedding": nn.Embedding(5, 3), "norm": nn.LayerNorm(3), "head": nn.Linear(3, 5)})
    net["head"].weight = net["embedding"].weight
    net["norm"].weight.requires_grad_(False)
    groups = ba.param_groups(net)
    assert [content(group) for group in groups] == [["embedding.weight", "head.bias"], ["norm.weight", "norm.bias"]]
    opt = ba.Vadam(groups, num_data=20)
    with opt.sampled_params():
        net["head"](net["norm"](net["embedding"](torch.arange(5)))).square().mean().backward()
    opt.step()
    q = opt.posterior()
    assert list(q.mean) == ["embedding.weight", "head.bias", "norm.bias"]
    assert q.variance["embedding.weight"].all()
    assert not q.variance["norm.bias"].any()
    assert torch.equal(net["norm"].weight, torch.ones(3))


def test_names_are_those_inside_wrappers():
    net = network()
    for wrapped in (nn.ModuleDict({"module": net}), torch.compile(net)):
        assert [content(group) for group in ba.param_groups(wrapped)] == [OTHERS, NORMS]


def test_without_a_weight_decay_there_is_the_prior_precision_or_the_optimisers():
    net = network()
    assert [group.get("prior_precision") for group in ba.param_groups(net)] == [None, None]
    assert [group["prior_precision"] for group in ba.param_groups(net, prior_precision=5.0)] == [5.0, 5.0]
    assert [group["prior_precision"] for group in ba.param_groups(net, prior_precision="init")] == ["init", "init"]
    groups = ba.param_groups(net, weight_decay=0.0, num_data=200, temperature=0.5)
    assert [group.get("prior_precision") for group in groups] == [None, pytest.approx(1e-8 * 400)]


def test_the_weight_decay_is_that_of_sgd():
    """IVON without noise and momentum is gradient descent, so the two must agree to rounding."""
    data, target = torch.randn(20, 2, 4, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)
    nets = [network().double() for _ in range(2)]
    plain = torch.optim.SGD(nets[0].parameters(), lr=0.1, weight_decay=0.05)
    groups = ba.param_groups(nets[1], weight_decay=0.05, num_data=40, temperature=0.4)
    groups = [{**group, "perturb": False} for group in groups]
    opt = ba.IVON(groups, 0.1, num_data=40, betas=(0.0, 0.99), temperature=0.4, initial_precision=1e3)
    start = copy.deepcopy(nets[0].state_dict())
    opt.train()
    for _ in range(5):
        for net, optimizer in zip(nets, (plain, opt), strict=True):
            optimizer.zero_grad()
            mse_loss(net(data), target).backward()
            optimizer.step()
    for (name, value), other in zip(nets[0].named_parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(other, value, rtol=1e-10, atol=1e-12)
        assert not torch.allclose(value, start[name], atol=1e-3)


@pytest.mark.parametrize("key", ["vadam", "ivon", "vogn", "von"])
def test_optimisers_take_the_groups(key):
    net = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    opt = Method(key)(net, ba.param_groups(net, weight_decay=1e-3, num_data=50, temperature=1.0))
    for step in range(2):
        make_step(opt, lambda step=step: loss_of(net, step))
    for name, variance in opt.posterior().variance.items():
        assert bool(variance.all()) == bool(variance.any()) == (name[0] != "1")
