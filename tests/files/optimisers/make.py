"""Checkpoints, posteriors and what follows them, as the installed version of bayesadam writes them.

``python make.py FOLDER`` was run at commit e90ff95, the last before the engine was rewritten;
``tests/optim/test_earlier_files.py`` loads the files with today's and goes on.
"""

import copy
import sys
import warnings
from pathlib import Path

import torch

import bayesadam as ba

METHODS = {
    "vadam": (ba.Vadam, {"lr": 0.01}),
    "ivon": (ba.IVON, {"lr": 0.1}),
    "vogn": (ba.VOGN, {"lr": 0.05}),
    "von full": (ba.VON, {"lr": 0.05, "covariance": "full"}),
    "ngvi": (ba.NGVI, {"lr": 0.05}),
    "vadagrad": (ba.VadaGrad, {"lr": 0.1, "initial_precision": 50.0}),
}


def make(name, samples):
    """A small network and its optimiser."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1))
    cls, options = METHODS[name]
    if name == "vogn":
        options = {**options, "curvature": ba.PerExampleSquares(net)}
    return net, cls(net.named_parameters(), num_data=50, mc_samples=samples, seed=3, **options)


def loss_of(net, step):
    """The same numbers in every version of PyTorch."""
    x = torch.linspace(-1, 1, 16).reshape(8, 2) * (1 + step)
    return torch.nn.functional.mse_loss(net(x), torch.sin(x.sum(1, keepdim=True)))


def go_on(net, opt, steps):
    """As the weights ask for: by blocks or in drop-in training."""
    for step in steps:
        if opt.param_groups[0]["weights"] == "mean":
            for _ in range(opt.param_groups[0]["mc_samples"]):
                with opt.sampled_params():
                    loss_of(net, step).backward()
        else:
            opt.zero_grad()
            loss_of(net, step).backward()
        opt.step()


def saved(net, opt):
    """What a user saves."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the weights may hold a sample
        return {"model": copy.deepcopy(net.state_dict()), "optimizer": copy.deepcopy(opt.state_dict())}


def main(folder):
    """Write one file of checkpoints for every method, and one posterior."""
    for name in METHODS:
        file = {}
        for way, samples in {"blocks": 2, "drop_in": 1}.items():
            net, opt = make(name, samples)
            go_on(net, opt, range(1))
            if way == "drop_in":
                opt.train()
            go_on(net, opt, range(1, 4))
            checkpoint = saved(net, opt)
            go_on(net, opt, range(4, 7))
            opt.eval()
            file[way] = {**checkpoint, "expected": copy.deepcopy(net.state_dict())}
        posterior = opt.posterior()
        posterior.save(folder / f"{name.replace(' ', '_')}_posterior.pt")
        file["mean"] = {n: value.clone() for n, value in posterior.mean.items()}
        file["sample"] = posterior.sample(2, seed=1)
        torch.save(file, folder / f"{name.replace(' ', '_')}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
