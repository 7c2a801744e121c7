"""One small training that every trainer does, and the plain loop that it is compared with."""

from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import bayesadam as ba

EPOCHS, ROWS, BATCH = 2, 64, 8
OPTIONS = {"num_data": ROWS, "batch_size": BATCH, "lr": 0.01}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))


def dataset():
    generator = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(ROWS, 3, generator=generator), torch.randn(ROWS, 2, generator=generator))


def loader():
    return DataLoader(dataset(), batch_size=BATCH)


def optimizer(model, **options):
    opt = ba.BayesAdam(model.named_parameters(), **{**OPTIONS, "total_steps": 100, **options})
    for group in opt.param_groups:
        group["initial_lr"] = group["lr"]  # as with a scheduler: the rate of a trainer without one is constant, too
    return opt


def decay(opt, schedule=True):
    """A learning rate that falls with every step, or one that does not."""
    return torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.9**step if schedule else 1.0)


def mean_squared_error(model, batch):
    x, y = batch
    return F.mse_loss(model(x), y)


def plain(
    make=network, optimizer=optimizer, loss_of=mean_squared_error, batches=None, *, follow=False,
    epochs=EPOCHS, accumulate=1, clip=None, amp=None, scaled=False, schedule=False,
):  # fmt: skip
    """The trained model, and the optimiser, of a loop in PyTorch with ``train()`` and ``eval()``.

    They are called on the optimiser, or on the model, which it may follow.
    """
    model = make()
    opt = optimizer(model)
    if follow:
        opt.follow(model)
    switched = model if follow else opt
    scheduler = decay(opt, schedule)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for _ in range(epochs):
        switched.train()
        for number, batch in enumerate(batches or loader(), 1):
            with torch.autocast("cpu", dtype=amp) if amp else nullcontext():
                loss = loss_of(model, batch) / accumulate
            scaler.scale(loss).backward()
            if number % accumulate == 0:
                if clip is not None:
                    scaler.unscale_(opt)
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(opt)
                scaler.update()
                scheduler.step()
                opt.zero_grad()
        switched.eval()
    return model, opt
