"""One small training that every trainer does, and the plain loop that it is compared with."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba

EPOCHS, ROWS, BATCH = 2, 64, 8
OPTIONS = {"num_data": ROWS, "batch_size": BATCH, "lr": 0.01}
WAYS = {
    "accumulation, clipping, schedulers": {"accumulate": 4, "clip": 0.1, "schedule": True},
    "AMP": {"amp": torch.bfloat16},
}
"""How else every trainer is compared with the plain loop, by the columns of the guide's table."""


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def dataset():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(ROWS, 3, generator=generator), torch.randn(ROWS, 2, generator=generator))


def loader():
    return DataLoader(dataset(), batch_size=BATCH)


def optimizer(model, **options):
    return ba.Vadam(model.named_parameters(), **{**OPTIONS, **options})


def decay(opt, schedule=True):
    """A learning rate that falls with every step, or one that does not."""
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.9**step if schedule else 1.0)


def plain(*, epochs=EPOCHS, accumulate=1, clip=None, amp=None, scaled=False, schedule=False):
    """The trained weights, and the optimiser, of a loop in PyTorch with ``train()`` and ``eval()``."""
    model = network()
    opt = optimizer(model)
    scheduler = decay(opt, schedule)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for _ in range(epochs):
        opt.train()
        for number, (x, y) in enumerate(loader(), 1):
            with torch.autocast("cpu", dtype=amp) if amp else nullcontext():
                loss = F.mse_loss(model(x), y) / accumulate
            scaler.scale(loss).backward()
            if number % accumulate == 0:
                if clip is not None:
                    scaler.unscale_(opt)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(opt)
                scaler.update()
                scheduler.step()
                opt.zero_grad()
        opt.eval()
    return weights(model), opt


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def means(opt):
    """What the optimiser has as the mean, in the order of its parameters; before its first sample, the weights."""
    parameters = [p for group in opt.param_groups for p in group["params"]]
    return torch.cat([opt.state.get(p, {"mean": p.detach()})["mean"].flatten() for p in parameters])


def assert_as_plain(model, opt, **options):
    """The weights hold the mean, and that is the plain loop's."""
    expected, reference = plain(**options)
    assert opt.param_groups[0]["weights"] == "mean"
    torch.testing.assert_close(weights(model), expected, rtol=1e-5, atol=1e-6)
    variances = (torch.cat([v.flatten() for v in o.posterior().variance.values()]) for o in (opt, reference))
    torch.testing.assert_close(*variances, rtol=1e-4, atol=1e-9)


class Watch:
    """Remembers what the weights held at each of the evaluations: the mean, or something else."""

    def __init__(self):
        self.at_mean = []

    def __call__(self, model, opt):
        self.at_mean.append(bool(torch.equal(weights(model), means(opt))))

    def assert_mean(self, times):
        assert self.at_mean == [True] * times
