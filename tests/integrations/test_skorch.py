"""skorch calls ``step(closure)`` and needs nothing: as the plain loop, and always at the mean between steps."""

import pytest
import torch
from torch import nn

import bayesadam as ba
from integrations.comparison import Watch, assert_as_plain, means, spoil, weights
from integrations.tasks import BATCH, EPOCHS, OPTIONS, dataset, network

skorch = pytest.importorskip("skorch", reason="skorch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.net, self.watch = network(), None

    def forward(self, x):
        if self.watch is not None and not self.training:
            self.watch()
        return self.net(x)


def make(*, kind=None, callbacks=(), mc_samples=1, epochs=EPOCHS):
    net = (kind or skorch.NeuralNetRegressor)(
        Module,
        optimizer=ba.BayesAdam,
        **{f"optimizer__{name}": value for name, value in OPTIONS.items()},
        lr=OPTIONS["lr"],
        optimizer__mc_samples=mc_samples,
        batch_size=BATCH,
        max_epochs=epochs,
        train_split=None,
        verbose=0,
        callbacks=list(callbacks),
    )
    return net.initialize()


def data():
    x, y = dataset().tensors
    return x.numpy(), y.numpy()


def check(net, **options):
    net.optimizer_.attach(net.module_)
    assert_as_plain(net.module_.net, net.optimizer_, **options)


class DropIn(skorch.callbacks.Callback):
    """For trainings that accumulate gradients: the weights hold a sample while batches are trained on."""

    def on_train_begin(self, net, **kwargs):
        net.optimizer_.attach(net.module_)

    def on_batch_begin(self, net, batch=None, training=False, **kwargs):
        net.optimizer_.train(training)

    def on_train_end(self, net, **kwargs):
        net.optimizer_.eval()


class Accumulating(skorch.NeuralNetRegressor):
    """As skorch's documentation has it."""

    every = 4

    def get_loss(self, *args, **kwargs):
        return super().get_loss(*args, **kwargs) / self.every

    def train_step(self, batch, **fit_params):
        number = len(self.history[-1, "batches"])
        step = self.train_step_single(batch, **fit_params)
        if number % self.every == 0:
            self.optimizer_.step()
            self.optimizer_.zero_grad()
        return step


class Half(skorch.NeuralNetRegressor):
    def infer(self, x, **kwargs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().infer(x, **kwargs)

    def get_loss(self, *args, **kwargs):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().get_loss(*args, **kwargs)


@pytest.mark.parametrize("mc_samples", [1, 2])
def test_evaluation(mc_samples):
    net = make(mc_samples=mc_samples)
    watch = Watch()
    net.module_.watch = lambda: watch(net.module_.net, net.optimizer_)
    x, y = data()
    net.train_split = skorch.dataset.ValidSplit(4)
    net.partial_fit(x, y)
    net.predict(x)
    watch.assert_mean(EPOCHS * 16 // BATCH + 64 // BATCH)


CLIP = skorch.callbacks.GradientNormClipping(gradient_clip_value=0.1)
SCHEDULE = skorch.callbacks.LRScheduler(
    torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: 0.9**step, step_every="batch"
)


@pytest.mark.parametrize(
    ("kind", "callbacks", "way"),
    [
        (Accumulating, [DropIn()], {"accumulate": 4}),
        (skorch.NeuralNetRegressor, [CLIP, SCHEDULE], {"clip": 0.1, "schedule": True}),
        (Half, [], {"amp": torch.bfloat16}),
    ],
)
def test_as_the_plain_loop(kind, callbacks, way):
    """Callbacks clip and change rates after every batch, also those whose gradients are accumulated."""
    check(make(kind=kind, callbacks=callbacks).partial_fit(*data()), **way)


def test_saved(tmp_path):
    net = make().partial_fit(*data())
    net.save_params(f_params=tmp_path / "params.pt")
    saved = torch.load(tmp_path / "params.pt", weights_only=True)
    assert torch.equal(torch.cat([value.flatten() for value in saved.values()]), means(net.optimizer_))
    assert torch.equal(weights(net.module_.net), means(net.optimizer_))


def test_resume(tmp_path):
    net = make(epochs=1).partial_fit(*data())
    files = {"f_params": tmp_path / "params.pt", "f_optimizer": tmp_path / "optimizer.pt"}
    net.save_params(**files)
    net.partial_fit(*data())
    other = make(epochs=1)
    spoil(other.module_)
    other.load_params(**files)
    other.partial_fit(*data())
    assert torch.equal(weights(other.module_), weights(net.module_))
    check(other)
