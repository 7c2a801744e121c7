"""Two optimisers of one model with the same seed, whose noise is then the same."""

import gc
import warnings

import pytest
import torch
from torch import nn

import bayesadam as ba


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))


def made(part, **options):
    return ba.IVON(part.named_parameters(), num_data=32, **options)


@pytest.mark.parametrize("way", ["attach", "follow"])
def test_it_is_warned_of_once(way):
    net = network()
    first, second = made(net[0], seed=3), made(net[2], seed=3)
    getattr(first, way)(net)
    with pytest.warns(UserWarning, match="another optimiser of this model has the same seed=3"):
        getattr(second, way)(net)
    for opt in (first, second):
        getattr(opt, way)(net)


def test_the_warning_is_true():
    net = network()
    means = [net[number].weight.detach().clone() for number in (0, 2)]
    for seed, same in ((0, True), (1, False)):
        first, second = made(net[0]), made(net[2], seed=seed)
        with first.sampled_params(), second.sampled_params():
            noise = [net[number].weight - mean for number, mean in zip((0, 2), means, strict=True)]
        correlation = torch.corrcoef(torch.stack([value.detach().flatten() for value in noise]))[0, 1]
        assert (correlation > 0.99) == same


@pytest.mark.parametrize("case", ["other seed", "same parameters", "without noise", "gone", "other model"])
def test_there_is_no_warning(case):
    net = network()
    first = made(net[2] if case == "same parameters" else net[0])
    first.attach(net)
    options = {"seed": 1} if case == "other seed" else {}
    if case == "gone":
        del first
        gc.collect()
    if case == "other model":
        net = network()
    groups = [{"params": list(net[2].named_parameters()), "perturb": case != "without noise"}]
    second = ba.IVON(groups, num_data=32, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second.attach(net)
