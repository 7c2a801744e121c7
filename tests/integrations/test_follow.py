"""Loops that know nothing of the optimiser but ``step()``, and call the model's ``train()`` and ``eval()``."""

import copy
import gc
import io
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bayesadam as ba
from integrations.tasks import EPOCHS, WAYS, Watch, assert_as_plain, decay, loader, means, network, optimizer, weights


def script(model, opt, *, epochs=EPOCHS, accumulate=1, clip=None, amp=None, schedule=False, watch=None, first=0):
    """As timm's: trains, validates, and saves, for any optimiser of PyTorch."""
    scheduler = decay(opt, schedule)
    for _ in range(first, epochs):
        model.train()
        for number, (x, y) in enumerate(loader(), 1):
            with torch.autocast("cpu", dtype=amp) if amp else nullcontext():
                loss = F.mse_loss(model(x), y) / accumulate
            loss.backward()
            if number % accumulate == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(model.parameters(), clip)
                opt.step()
                scheduler.step()
                opt.zero_grad()
        model.eval()
        with torch.no_grad():
            for x, _ in loader():
                model(x)
                if watch is not None:
                    watch(model, opt)


def followed(**options):
    model = network()
    opt = optimizer(model, **options)
    opt.follow(model)
    return model, opt


def test_evaluation():
    model, opt = followed()
    watch = Watch()
    script(model, opt, watch=watch)
    watch.assert_mean(EPOCHS * len(loader()))
    assert_as_plain(model, opt)


def test_saved():
    model, opt = followed()
    model.train()
    x, y = next(iter(loader()))
    F.mse_loss(model(x), y).backward()
    opt.step()
    saved = torch.cat([value.flatten() for value in model.state_dict().values()])
    assert torch.equal(saved, means(opt))
    assert not torch.equal(saved, weights(model))


def test_resume():
    model, opt = followed()
    script(model, opt, epochs=1)
    model.train()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    other, resumed = followed()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    saved = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["opt"])
    script(other, resumed, first=1)
    script(model, opt, first=1)
    assert torch.equal(weights(other), weights(model))
    assert_as_plain(other, resumed)


@pytest.mark.parametrize("way", WAYS)
def test_as_the_plain_loop(way):
    model, opt = followed()
    script(model, opt, **WAYS[way])
    assert_as_plain(model, opt, **WAYS[way])


# What follows a mode


def test_wrappers_are_followed_and_prediction_is_at_the_mean():
    model, opt = followed()

    class Wrapper(nn.Module):
        def __init__(self):
            super().__init__()
            self.module = model

        def forward(self, x):
            return self.module(x)

    wrapper = Wrapper()
    wrapper.train()
    assert opt.param_groups[0]["weights"] == "train"
    x, _ = next(iter(loader()))
    held = weights(model).clone()
    pred = ba.predict(wrapper, opt.posterior(), x, likelihood=ba.Gaussian(1.0), mc_samples=4)
    assert pred.epistemic.min() > 0
    assert opt.param_groups[0]["weights"] == "train"
    assert torch.equal(weights(model), held)
    wrapper.eval()
    assert torch.equal(weights(model), means(opt))
    reference = network()
    opt.follow(wrapper)  # a second time: nothing changes
    torch.testing.assert_close(weights(model), weights(reference))


def test_a_mode_that_changes_while_a_sample_is_applied_is_followed_afterwards():
    model, opt = followed()
    model.train()
    q = opt.posterior()
    with q.applied(model, sample=1):
        model.eval()
        assert opt.param_groups[0]["weights"] == "train"
    assert opt.param_groups[0]["weights"] == "mean"
    assert torch.equal(weights(model), torch.cat([value.flatten() for value in q.mean.values()]))


def test_two_optimisers_follow_one_model():
    model = network()
    opts = [
        ba.Vadam([("0.weight", model[0].weight)], num_data=8, seed=0),
        ba.IVON([("2.weight", model[2].weight)], num_data=8, seed=1),
    ]
    for opt in opts:
        opt.follow(model)
    model.train()
    assert [opt.param_groups[0]["weights"] for opt in opts] == ["train", "train"]
    model.eval()
    assert [opt.param_groups[0]["weights"] for opt in opts] == ["mean", "mean"]


def test_a_copy_tells_nobody_and_an_optimiser_that_is_gone_is_told_nothing():
    model, opt = followed()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other.train()
        assert other.training
        assert other.train.module is other
        assert opt.param_groups[0]["weights"] == "mean"
    del opt
    gc.collect()
    before = weights(model).clone()
    assert model.train() is model
    assert torch.equal(weights(model), before)


def test_inside_a_block_the_mode_is_left_to_it():
    """A closure may set the mode, as skorch's does."""
    model, opt = followed()
    x, y = next(iter(loader()))

    def closure():
        model.train()
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    opt.step(closure)
    assert opt.param_groups[0]["weights"] == "mean"
    assert opt.state[model[0].weight]["step"] == 1


def test_weights_are_merged_at_the_mean():
    """A module that merges weights when it goes into eval mode, and splits them again, has the mean there."""

    class Merging(nn.Linear):
        def train(self, mode=True):
            self.merged = None if mode else self.weight.detach() * 2.0
            return super().train(mode)

    model = nn.Sequential(Merging(3, 2))
    opt = ba.Vadam(model.named_parameters(), num_data=8)
    mean = model[0].weight.detach().clone()
    opt.follow(model)
    model.train()
    assert not torch.equal(model[0].weight, mean)
    model.eval()
    assert torch.equal(model[0].merged, mean * 2.0)


def test_refusals():
    model = network()
    with pytest.raises(RuntimeError, match=r"mc_samples must be 1 to use train\(\), got 2"):
        optimizer(model, mc_samples=2).follow(model)
    with pytest.raises(ValueError, match="model must have all perturbed parameters"):
        optimizer(model).follow(model[0])
    assert "train" not in vars(model)
    assert "train" not in vars(model[0])
