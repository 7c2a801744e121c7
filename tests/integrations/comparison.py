"""What every trainer is compared in, and with: the plain loop, and the mean of the posterior."""

import torch

from integrations.tasks import plain

WAYS = {
    "accumulation, clipping, schedulers": {"accumulate": 4, "clip": 0.1, "schedule": True},
    "AMP": {"amp": torch.bfloat16},
}
"""How else every trainer is compared with the plain loop, by the columns of the guide's table."""


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def means(opt):
    """What the optimiser has as the mean, in the order of its parameters; before its first sample, the weights."""
    parameters = [p for group in opt.param_groups for p in group["params"]]
    return torch.cat([opt.state.get(p, {"mean": p.detach()})["mean"].flatten() for p in parameters])


def assert_as_plain(model, opt, plain=plain, tolerance=1e-5, **options):
    """The weights hold the mean, and that is the plain loop's."""
    expected, reference = plain(**options)
    assert opt.param_groups[0]["weights"] == "mean"
    torch.testing.assert_close(weights(model), weights(expected), rtol=tolerance, atol=0.1 * tolerance)
    variances = (torch.cat([v.flatten() for v in o.posterior().variance.values()]) for o in (opt, reference))
    torch.testing.assert_close(*variances, rtol=10 * tolerance, atol=1e-9)


class Watch:
    """Remembers what the weights held at each of the evaluations: the mean, or something else."""

    def __init__(self):
        self.at_mean = []

    def __call__(self, model, opt):
        self.at_mean.append(bool(torch.equal(weights(model), means(opt))))

    def assert_mean(self, times):
        assert self.at_mean == [True] * times


def spoil(model):
    """Give a model other weights, which a checkpoint must replace."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
