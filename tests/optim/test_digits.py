"""Untouched optimisers on a real data set: what a new user tries first."""

import pytest
import torch
from sklearn.datasets import load_digits

import bayesadam as ba


@pytest.mark.parametrize("optimizer", [ba.Vadam, ba.IVON])
def test_untouched_optimiser_learns_the_digits(optimizer):
    """64-64-10 network, 60 epochs of minibatches of 32: at least 96% of the held-out fifth.

    On average over the last ten epochs: from one to the next it changes by a percent, and so it does between machines.
    """
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16.0, dtype=torch.float32), torch.tensor(labels)
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(x), generator=generator)
    train, test = order[:1437], order[1437:]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    opt = optimizer(net.named_parameters(), num_data=len(train), batch_size=32, total_steps=60 * 45)
    loss = ba.Categorical()
    by_mean, by_samples = [], []
    for epoch in range(60):
        for rows in train[torch.randperm(len(train), generator=generator)].split(32):
            with opt.sampled_params():
                loss(net(x[rows]), y[rows]).backward()
            opt.step()
        if epoch >= 50:
            averaged = ba.predict(net, opt.posterior(), x[test], likelihood=loss).probs
            by_mean.append((net(x[test]).argmax(-1) == y[test]).float().mean().item())
            by_samples.append((averaged.argmax(-1) == y[test]).float().mean().item())
    assert sum(by_mean) / 10 >= 0.96
    assert sum(by_samples) / 10 >= 0.96
