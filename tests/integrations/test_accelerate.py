"""Accelerate: a loop of one's own with ``follow``; as the plain loop, and evaluated, saved and ended at the mean."""

import pytest
import torch
from torch.nn import functional as F

from integrations.tasks import EPOCHS, WAYS, Watch, assert_as_plain, decay, loader, means, network, optimizer, weights

accelerate = pytest.importorskip("accelerate", reason="accelerate is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:accelerate"),
]


@pytest.fixture(autouse=True)
def alone():
    """Accelerate's settings are global."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


class Run:
    def __init__(self, *, accumulate=1, clip=None, amp=None, schedule=False):
        self.clip = clip
        precision = {None: "no", torch.bfloat16: "bf16"}[amp]
        self.accelerator = accelerate.Accelerator(
            cpu=True, gradient_accumulation_steps=accumulate, mixed_precision=precision
        )
        self.plain = network()
        self.opt = optimizer(self.plain)
        self.opt.follow(self.plain)
        prepared = self.accelerator.prepare(self.plain, self.opt, loader(), decay(self.opt, schedule))
        self.model, self.wrapped, self.loader, self.scheduler = prepared

    def train(self, *, epochs=EPOCHS, first=0, watch=None):
        for _ in range(first, epochs):
            self.model.train()
            for x, y in self.loader:
                with self.accelerator.accumulate(self.model):
                    self.accelerator.backward(F.mse_loss(self.model(x), y))
                    if self.accelerator.sync_gradients and self.clip is not None:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), self.clip)
                    self.wrapped.step()
                    self.scheduler.step()
                    self.wrapped.zero_grad()
            self.model.eval()
            for x, _ in self.loader:
                self.model(x)
                if watch is not None:
                    watch(self.plain, self.opt)
        return self

    def assert_as_plain(self, **options):
        assert_as_plain(self.plain, self.opt, **options)


def test_evaluation():
    watch = Watch()
    Run().train(watch=watch).assert_as_plain()
    watch.assert_mean(EPOCHS * len(loader()))


def test_saved(tmp_path):
    from safetensors.torch import load_file

    run = Run().train(epochs=1)
    run.model.train()
    run.accelerator.save_model(run.model, tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    found = torch.cat([saved[name].flatten() for name, _ in run.plain.named_parameters()])
    assert torch.equal(found, means(run.opt))
    assert not torch.equal(found, weights(run.plain))


def test_resume(tmp_path):
    run = Run().train(epochs=1)
    run.model.train()  # the weights hold a sample
    run.accelerator.save_state(tmp_path)
    run.train(first=1)
    other = Run()
    with torch.no_grad():
        for parameter in other.plain.parameters():
            parameter.normal_()
    other.accelerator.load_state(tmp_path)
    other.train(first=1)
    assert torch.equal(weights(other.plain), weights(run.plain))
    other.assert_as_plain()


@pytest.mark.parametrize("way", WAYS)
def test_as_the_plain_loop(way):
    Run(**WAYS[way]).train().assert_as_plain(**WAYS[way])
