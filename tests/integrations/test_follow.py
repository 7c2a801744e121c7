"""Loops that know nothing of the optimiser but ``step()``, and call the model's ``train()`` and ``eval()``.

They are one's own or Accelerate's; as the plain loop, and evaluated, saved and ended at the mean.
"""

import copy
import gc
import pickle
from contextlib import nullcontext

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import bayesadam as ba
from integrations.comparison import WAYS, Watch, assert_as_plain, means, spoil, weights
from integrations.tasks import EPOCHS, decay, loader, network, optimizer

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:accelerate"
)


@pytest.fixture(autouse=True)
def alone():
    """Accelerate's settings are global."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def followed(**options):
    model = network()
    opt = optimizer(model, **options)
    opt.follow(model)
    return model, opt


class Script:
    """As timm's: trains, validates, and saves, for any optimiser of PyTorch."""

    def __init__(self, *, accumulate=1, clip=None, amp=None, schedule=False):
        self.model, self.opt = followed()
        self.accumulate, self.clip, self.amp = accumulate, clip, amp
        self.loader, self.scheduler = loader(), decay(self.opt, schedule)

    def train(self, *, epochs=EPOCHS, first=0, watch=None):
        for _ in range(first, epochs):
            self.model.train()
            for number, batch in enumerate(self.loader, 1):
                self.train_on(batch, number)
            self.model.eval()
            with torch.no_grad():
                for x, _ in self.loader:
                    self.model(x)
                    if watch is not None:
                        watch(self.model, self.opt)
        return self

    def train_on(self, batch, number):
        x, y = batch
        with torch.autocast("cpu", dtype=self.amp) if self.amp else nullcontext():
            loss = F.mse_loss(self.model(x), y) / self.accumulate
        loss.backward()
        if number % self.accumulate == 0:
            if self.clip is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
            self.opt.step()
            self.scheduler.step()
            self.opt.zero_grad()

    def save(self, folder):
        """Write a checkpoint; return the weights in it."""
        torch.save({"model": self.model.state_dict(), "opt": self.opt.state_dict()}, folder / "checkpoint.pt")
        return self.model.state_dict()

    def load(self, folder):
        saved = torch.load(folder / "checkpoint.pt", weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.opt.load_state_dict(saved["opt"])


class Accelerated(Script):
    def __init__(self, *, accumulate=1, amp=None, **options):
        super().__init__(**options)
        precision = {None: "no", torch.bfloat16: "bf16"}[amp]
        self.accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision
        )
        prepared = self.accelerator.prepare(self.model, self.opt, self.loader, self.scheduler)
        self.prepared, self.wrapped, self.loader, self.scheduler = prepared

    def train_on(self, batch, number):
        x, y = batch
        with self.accelerator.accumulate(self.prepared):
            self.accelerator.backward(F.mse_loss(self.prepared(x), y))
            if self.accelerator.sync_gradients and self.clip is not None:
                self.accelerator.clip_grad_norm_(self.prepared.parameters(), self.clip)
            self.wrapped.step()
            self.scheduler.step()
            self.wrapped.zero_grad()

    def save(self, folder):
        self.accelerator.save_state(folder / "state")
        self.accelerator.save_model(self.prepared, folder)
        return load_file(folder / "model.safetensors")

    def load(self, folder):
        self.accelerator.load_state(folder / "state")


LOOPS = pytest.mark.parametrize("loop", [Script, Accelerated])


@LOOPS
def test_evaluation(loop):
    watch = Watch()
    run = loop().train(watch=watch)
    watch.assert_mean(EPOCHS * len(loader()))
    assert_as_plain(run.model, run.opt)


@LOOPS
def test_saved(loop, tmp_path):
    run = loop().train(epochs=1)
    run.model.train()
    saved = run.save(tmp_path)
    found = torch.cat([saved[name].flatten() for name, _ in run.model.named_parameters()])
    assert torch.equal(found, means(run.opt))
    assert not torch.equal(found, weights(run.model))


@LOOPS
def test_resume(loop, tmp_path):
    run = loop().train(epochs=1)
    run.model.train()  # the weights hold a sample
    run.save(tmp_path)
    run.train(first=1)
    other = loop()
    spoil(other.model)
    other.load(tmp_path)
    other.train(first=1)
    assert torch.equal(weights(other.model), weights(run.model))
    assert_as_plain(other.model, other.opt)


@LOOPS
@pytest.mark.parametrize("way", WAYS)
def test_as_the_plain_loop(loop, way):
    run = loop(**WAYS[way]).train()
    assert_as_plain(run.model, run.opt, **WAYS[way])


# What follows a mode


def test_wrappers_are_followed_and_prediction_is_at_the_mean():
    model, opt = followed()
    wrapper = nn.Module()
    wrapper.module, wrapper.forward = model, lambda x: model(x)
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


def test_tied_weights_are_saved_once():
    model = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    model["head"].weight = model["embedding"].weight
    opt = optimizer(model)
    opt.follow(model)
    model.train()
    first, second = model.state_dict().values()
    assert first.data_ptr() == second.data_ptr()
    assert torch.equal(first.flatten(), means(opt))


def test_a_second_optimiser_begins_at_the_mean_of_one_that_was_stopped():
    model, stopped = followed()
    model.train()
    second = optimizer(model)
    second.follow(model)
    assert torch.equal(weights(model), means(stopped))
    assert torch.equal(means(second), means(stopped))
    model.train()
    second.eval()  # leaves no noise of the first
    assert torch.equal(weights(model), means(stopped))
