"""The reference: a member trained alone by the library's own optimiser in an ordinary loop; and comparisons."""

import copy
import inspect
import re

import torch

import bayesadam as ba
from bayesadam import population
from bayesadam.curvature import PerExampleSquares
from bayesadam.optim import OPTIMIZERS
from population.problems import BATCH, F32, F64, option

TOLERANCE = {F32: {"rtol": 1e-5, "atol": 1e-6}, F64: {"rtol": 1e-10, "atol": 1e-12}}
ROUNDING = {"rtol": 1e-12, "atol": 1e-14}
REQUIRED = {"vadagrad": {"initial_precision": 50.0}}


def exactly(message):
    """A pattern that matches this message alone."""
    return f"^{re.escape(message)}$"


class Alone:
    """Trains copies of a model and its likelihood on the population's minibatches, one closure per step.

    Attributes:
        losses: Mean training loss of every epoch.
    """

    def __init__(
        self,
        model,
        data,
        likelihood,
        *,
        method="vadam",
        epochs,
        batch_size=BATCH,
        seed=0,
        lr_schedule=None,
        beta_schedule=None,
        steps_per_epoch=None,
        **options,
    ):
        self.model, self.likelihood = copy.deepcopy((model, likelihood))
        self.method, self.losses = method, []
        (x, y), weights, learned = data, list(self.model.named_parameters()), list(self.likelihood.named_parameters())
        if method == "adam":
            self.opt = torch.optim.Adam([p for _, p in weights + learned], **options)
        else:
            groups = [{"params": weights}] + ([{"params": learned, "perturb": False}] if learned else [])
            make = {**OPTIMIZERS, "bbb": population.BayesByBackprop}.get(method, method)
            told = {"curvature": PerExampleSquares(self.model)} if method == "vogn" else {}
            if isinstance(method, type) and "batch_size" in inspect.signature(method).parameters:
                told = {"batch_size": batch_size}
            if method == "bayesadam":
                size = batch_size if steps_per_epoch else min(batch_size, len(x))
                told = {"batch_size": size, "total_steps": epochs * (steps_per_epoch or -(-len(x) // batch_size))}
                told["max_memorised"] = None
            self.opt = make(groups, **{"num_data": len(x), "seed": seed, **told, **options})
        steps = steps_per_epoch or -(-len(x) // batch_size)
        schedulers = []
        for make, schedule in ((torch.optim.lr_scheduler.LambdaLR, lr_schedule), (ba.BetaScheduler, beta_schedule)):
            if schedule is not None:
                schedulers.append(make(self.opt, lambda step, own=schedule: own(step / (epochs * steps))))
        drawn = {"size": steps * batch_size} if steps_per_epoch else {}
        for epoch in range(epochs):
            order = torch.from_numpy(population.order(len(x), seed=seed, epoch=epoch, **drawn))
            batches, losses = order.split(batch_size), []
            assert len(batches) == steps
            for rows in batches:
                losses.append(self.opt.step(lambda rows=rows: self._loss(x[rows], y[rows])).item())
                for scheduler in schedulers:
                    scheduler.step()
            self.losses.append(sum(losses) / len(losses))

    def _loss(self, x, y):
        self.opt.zero_grad()
        loss = self.likelihood(self.model(x), y)
        if self.opt.param_groups[0].get("hessian") != "exact":
            loss.backward()
        return loss

    def posterior(self):
        return self.opt.posterior(self.model)


def all_alone(models, data, likelihood, *, method="vadam", seed=0, **options):
    """Every member alone; a list holds one value per member, a number is the first of the seeds."""
    options = {**REQUIRED.get(method, {}), **options}
    seeds = seed if isinstance(seed, list) else [seed + i for i in range(len(models))]
    fits = []
    for i, (model, pair) in enumerate(zip(models, data, strict=True)):
        own = {name: option(value, i) for name, value in options.items()}
        fits.append(Alone(model, pair, option(likelihood, i), method=method, seed=seeds[i], **own))
    return fits


def train(models, data, likelihood, *, method="vadam", batch_size=BATCH, lr=0.02, **options):
    """With arguments of ``train``, and of the method, which go to ``options``."""
    given = {**REQUIRED.get(method, {}), "batch_size": batch_size, "lr": lr, **options}
    named = {name: given.pop(name) for name in {*given} & {*inspect.signature(population.train).parameters}}
    if given:
        named["options"] = {**named.get("options", {}), **given}
    return population.train(models, data, likelihood=likelihood, method=method, progress=False, **named)


def assert_members_are(nets, fits, tolerance):
    """Weights, variances, learned noise, losses and the rule's state of every member."""

    def close(found, expected):
        torch.testing.assert_close(found, expected.detach(), **tolerance)

    for i, fit in enumerate(fits):
        named = {n: p for n, p in fit.model.named_parameters() if p.requires_grad}
        learned = dict(fit.likelihood.named_parameters())
        assert list(nets.mean) == list(nets.variance) == list(named)
        for name, parameter in named.items():
            close(nets.mean[name][i], parameter)
        if fit.method == "adam":
            assert not any(variance[i].any() for variance in nets.variance.values())
        else:
            for name, variance in fit.posterior().variance.items():
                close(nets.variance[name][i], variance)
        for name, parameter in nets.likelihoods[i].named_parameters():
            close(parameter.detach(), learned[name])
        for key, tensors in nets.state.items():
            assert list(tensors) == [*named, *(f"likelihood.{name}" for name in learned)]
            for name, parameter in [*named.items(), *((f"likelihood.{n}", p) for n, p in learned.items())]:
                close(tensors[name][i], fit.opt.state[parameter][key])
        close(nets.history["loss"][i], torch.tensor(fit.losses, dtype=F64))


def compare(models, data, likelihood, tolerance=TOLERANCE[F64], **options):
    """Check that members trained together are those trained alone; returns the former."""
    options = {"epochs": 2, "lr": 0.02, **options}
    nets = train(models, data, likelihood, **options)
    assert_members_are(nets, all_alone(models, data, likelihood, **options), tolerance)
    return nets


def assert_same(first, second, tolerance=None):
    """Two populations with the same results: to the bit, or within a tolerance."""
    tolerance = tolerance or {"rtol": 0, "atol": 0}

    def tensors(nets):
        nested = {"mean": nets.mean, "variance": nets.variance, **nets.state, "history": nets.history}
        flat = {(kind, name): value for kind, part in nested.items() for name, value in part.items()}
        own = [{n: t.detach() for n, t in lik.state_dict().items()} for lik in nets.likelihoods]
        return flat | {(i, name): value for i, part in enumerate(own) for name, value in part.items()}

    assert first.epochs.tolist() == second.epochs.tolist()
    assert first.stopped == second.stopped
    torch.testing.assert_close(tensors(first), tensors(second), equal_nan=True, **tolerance)


def rows_of(nets, members):
    """Weights, variances and the rule's state of some members, by kind and name."""
    parts = {"mean": nets.mean, "variance": nets.variance, **nets.state}
    return {(kind, name): value[members] for kind, part in parts.items() for name, value in part.items()}
