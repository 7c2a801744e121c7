"""Epochs found from the sizes of minibatches, and what is said about a ``num_data`` that is far too small."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import bayesadam as ba
from bayesadam.optim.epochs import Epoch, Epochs

N = 85


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def loader(batch_size=8, **options):
    data = TensorDataset(torch.randn(N, 3, generator=torch.Generator().manual_seed(0)))
    return DataLoader(data, batch_size=batch_size, **{"shuffle": True, **options})


def trained(num_data, batches=None, *, epochs=3, optimizer=ba.Vadam, views=1, micro=1, augment=False, **options):
    """An optimiser after a training with the drop-in loop, by steps of ``micro`` passes."""
    net, batches = network(), loader() if batches is None else batches
    opt = optimizer(net.named_parameters(), num_data=num_data, **options)
    opt.follow(net)
    for _ in range(epochs):
        net.train()
        for number, (x,) in enumerate(batches, 1):
            for _ in range(views):
                seen = x + torch.randn_like(x) if augment else x
                (net(seen).square().mean() / micro).backward()
            if number % micro == 0 or number == len(batches):
                opt.step()
                opt.zero_grad()
        net.eval()
        net(torch.ones(7, 3))
    return opt


def said(opt):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opt.posterior()
    assert all(warning.filename == __file__ for warning in caught)
    return [str(warning.message) for warning in caught]


SENTENCE = (
    "num_data is 11, but an epoch has 85 examples in 11 minibatches: give num_data=85, which is len(loader.dataset) "
    "and not len(loader)"
)


@pytest.mark.parametrize(
    "training",
    [
        {},
        {"epochs": 2},
        {"augment": True},
        {"views": 2},
        {"micro": 4},
        {"optimizer": ba.IVON, "batch_size": 8, "total_steps": 33},
        {"optimizer": ba.VON, "initial_precision": 100.0},
    ],
    ids=str,
)
def test_the_number_of_minibatches_is_noticed(training):
    batches = loader()
    opt = trained(len(batches), batches, **training)
    assert opt.report().doubt == SENTENCE
    assert opt.report().sentences[-1] == f"{SENTENCE}."
    assert said(opt) == [SENTENCE]
    assert said(opt) == []
    assert said(trained(len(batches.dataset), batches, **training)) == []


def test_an_epoch_may_repeat_examples():
    sampler = WeightedRandomSampler(torch.ones(N), 6 * N)
    assert said(trained(N, loader(shuffle=None, sampler=sampler))) == []


@pytest.mark.parametrize("num_data", [N, N / 2, 12, 10 * N])
def test_other_numbers_are_left_alone(num_data):
    opt = trained(num_data)
    assert opt.report().doubt is None
    assert said(opt) == []


def test_without_a_second_epoch_or_a_smaller_minibatch_nothing_is_certain():
    assert said(trained(11, epochs=1)) == []
    assert said(trained(10, loader(drop_last=True))) == []


def test_a_temperature_of_zero_has_no_number_of_data():
    assert said(trained(1, optimizer=ba.VadaGrad, initial_precision=1.0)) == []
    assert said(trained(1, optimizer=ba.VAN)) == []


def test_samples_in_blocks_are_not_minibatches():
    net, batches = network(), loader()
    opts = [ba.Vadam(net.named_parameters(), num_data=n, mc_samples=2) for n in (len(batches), 2 * len(batches))]
    for opt in opts:
        opt.attach(net)
        for _ in range(2):
            for (x,) in batches:
                for _ in range(2):
                    with opt.sampled_params():
                        net(x).square().mean().backward()
                opt.step()
    assert said(opts[0]) == [SENTENCE]
    assert said(opts[1]) == []


@pytest.mark.parametrize("follow", [False, True])
def test_a_step_of_more_examples_than_there_are(follow):
    net = network()
    opt = ba.IVON(net.named_parameters(), num_data=3, batch_size=16)
    if follow:
        opt.attach(net)
    assert said(opt) == []
    with opt.sampled_params():
        net(torch.ones(16, 3)).square().mean().backward()
    opt.step()
    sentence = (
        "num_data is 3, but a single step has 16 examples: give the number of all training examples, which is "
        "len(loader.dataset) and not len(loader)"
    )
    assert said(opt) == [sentence]
    assert opt.report().doubt == sentence
    assert copy.deepcopy(opt).report().doubt == sentence


def test_reports_count_the_epochs():
    opt = trained(N, batch_size=8, epochs=2)
    assert opt.report().passes == pytest.approx(2 * 11 * 8 / N)
    assert opt.report().sentences[0].startswith("After 22 steps (2.1 epochs by num_data), ")
    assert (
        trained(11, batch_size=8, epochs=2).report().sentences[0].startswith("After 22 steps (16 epochs by num_data)")
    )
    assert ba.VON(network().named_parameters(), num_data=N).report().passes is None


def found(*sizes):
    epochs = Epochs()
    for size in sizes:
        epochs.see(size)
    return epochs.latest()


@pytest.mark.parametrize(
    ("sizes", "epoch"),
    [
        ([8, 8, 3] * 2, Epoch(3, 19)),
        ([8, 3, *[8, 8, 3] * 2], Epoch(3, 19)),
        ([*[8, 8, 3] * 2, 8], Epoch(3, 19)),
        ([*[8, 8, 3] * 2, 8, 3], Epoch(3, 19)),
        ([*[8, 8, 3] * 2, *[9, 5] * 2], Epoch(2, 14)),
        ([8, 8, 8, 8, 3, 3] * 2, Epoch(3, 19)),
        ([3, 8, 8, 3, 8, 8, 3], Epoch(3, 19)),
        ([8, 8, 3], None),
        ([8, 8, 3, 8, 3], None),
        ([8, 8, 3, 8, 8, 2], None),
        ([8, 8, 3, None, 8, 8, 3], None),
        ([8, 8, 8, 3, 3] * 2, None),
        ([8] * 20, None),
        ([5, 6, 7, 8] * 3, None),
        ([], None),
    ],
    ids=str,
)
def test_epochs_are_found_in_sizes(sizes, epoch):
    assert found(*sizes) == epoch
