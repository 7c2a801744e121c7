"""Overfitting that is seen from gradients: what is measured, what follows, and what is remembered."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

import bayesadam as ba
from bayesadam.optim import overfitting

ROWS, BATCH, EPOCHS = 128, 16, 40
STEPS = ROWS // BATCH


def labels(noise):
    """Rows with eight labels each; with noise, no label has to do with its row."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, 12, generator=generator)
    clean = x @ torch.randn(12, 8, generator=generator) > 0
    return x, (torch.rand(ROWS, 8, generator=generator) < 0.5 if noise else clean).float()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 256), nn.ReLU(), nn.Linear(256, 8))


def trained(noise, epochs=EPOCHS, total=EPOCHS, **options):
    x, y = labels(noise)
    net = network()
    opt = ba.BayesAdam(net.named_parameters(), num_data=ROWS, batch_size=BATCH, total_steps=total * STEPS, **options)
    train(net, opt, x, y, range(epochs))
    return net, opt


def train(net, opt, x, y, epochs):
    opt.train()
    for epoch in epochs:
        for rows in torch.randperm(ROWS, generator=torch.Generator().manual_seed(epoch)).split(BATCH):
            opt.zero_grad()
            binary_cross_entropy_with_logits(net(x[rows]), y[rows], reduction="sum").div(len(rows)).backward()
            opt.step()
    opt.eval()


def test_noise_that_is_memorised_slows_the_training_and_widens_the_posterior():
    _, opt = trained(noise=True)
    group = opt.param_groups[0]
    assert group["slowdown"] < 0.5
    assert group["overlaps"]["memorised"] > 0.4
    temperature = min(1.0, group["temperature"] / group["slowdown"])
    assert opt.posterior().hyperparameters["temperature"] == pytest.approx(0.1 * temperature)
    net, free = trained(noise=True, max_memorised=None)
    assert free.param_groups[0]["slowdown"] == 1.0
    assert not {*overfitting.MEANS} & free.state[net[0].weight].keys()


def test_what_is_learned_for_new_rows_too_is_not_slowed():
    _, opt = trained(noise=False)
    assert opt.param_groups[0]["slowdown"] > 0.6


def test_overlaps_are_those_of_gradient_and_movement():
    x, y = labels(noise=True)
    net, opt = trained(noise=True, epochs=1)
    means = [opt.state[p]["mean"].clone() for p in net.parameters()]
    starts = [p.detach().double() for p in network().parameters()]
    assert all(
        torch.equal(opt.state[p]["epoch_start"].double(), start)
        for p, start in zip(net.parameters(), starts, strict=True)
    )
    opt.train()
    opt.zero_grad()
    binary_cross_entropy_with_logits(net(x[:BATCH]), y[:BATCH], reduction="sum").div(BATCH).backward()
    expected = sum(
        ((mean.double() - start) * p.grad.double()).sum().item()
        for p, mean, start in zip(net.parameters(), means, starts, strict=True)
    )
    opt.step()  # the first of the second epoch: its rows have been seen since the beginning of the first
    count, total, squares = opt.param_groups[0]["overlaps"]["seen"]
    assert (count, total, squares) == (1, pytest.approx(expected, rel=1e-4), pytest.approx(expected**2, rel=1e-4))


def test_a_training_that_is_continued_from_a_file_is_the_same(tmp_path):
    x, y = labels(noise=True)
    net, opt = trained(noise=True, epochs=15)
    torch.save(opt.state_dict(), tmp_path / "opt.pt")
    weights = copy.deepcopy(net.state_dict())
    train(net, opt, x, y, range(15, 22))
    other = network()
    other.load_state_dict(weights)
    resumed = ba.BayesAdam(
        other.named_parameters(), num_data=ROWS, batch_size=BATCH, total_steps=EPOCHS * STEPS, temperature=0.5
    )
    resumed.load_state_dict(torch.load(tmp_path / "opt.pt", weights_only=True))
    train(other, resumed, x, y, range(15, 22))
    assert all(map(torch.equal, net.parameters(), other.parameters()))
    assert resumed.param_groups[0]["overlaps"] == opt.param_groups[0]["overlaps"]
    assert resumed.param_groups[0]["slowdown"] < 1.0


@pytest.mark.parametrize(
    ("num_data", "batch_size", "total_steps", "expected"),
    [(100, 10, 50, 10), (105, 10, 55, 11), (105, 10, 50, 10), (105, 10, 37, 11), (8, 16, 5, 1)],
)
def test_steps_of_an_epoch(num_data, batch_size, total_steps, expected):
    group = {"num_data": num_data, "batch_size": batch_size, "total_steps": total_steps}
    assert overfitting.steps_of_epoch(group) == expected


def test_a_posterior_is_read_at_any_temperature():
    _, opt = trained(noise=False, temperature=1.0, max_memorised=None)
    narrow, wide = opt.posterior(), opt.posterior(temperature=1.0)
    assert wide.hyperparameters["temperature"] == 1.0
    assert narrow.hyperparameters["temperature"] == pytest.approx(0.1)
    for name, tensors in wide.hyperparameters["tensors"].items():
        prior = tensors["prior_precision"]
        of_data = [1 / q.variance[name] - prior for q in (narrow, wide)]
        torch.testing.assert_close(of_data[0], 10.0 * of_data[1], rtol=0.02, atol=0.02 * prior)
    with pytest.raises(ValueError, match=r"temperature must be .*, got 0.0"):
        opt.posterior(temperature=0.0)


def test_a_frozen_parameter_with_an_earlier_gradient_is_left_out():
    x, y = labels(noise=True)
    net = network()
    net[0].weight.requires_grad_(False).grad = torch.ones_like(net[0].weight)
    opt = ba.BayesAdam(net.named_parameters(), num_data=ROWS, batch_size=BATCH, total_steps=2 * STEPS)
    opt.train()
    for rows in torch.arange(ROWS).split(BATCH):
        opt.step(lambda rows=rows: _loss_at(opt, net, x[rows], y[rows]))
    assert opt.param_groups[0]["overlaps"]["unseen"][0] == STEPS // 2


def _loss_at(opt, net, x, y):
    for parameter in net.parameters():
        if parameter.requires_grad:
            parameter.grad = None
    loss = binary_cross_entropy_with_logits(net(x), y, reduction="sum").div(len(x))
    loss.backward()
    return loss
