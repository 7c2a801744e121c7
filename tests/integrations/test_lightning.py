"""Lightning's Trainer with the callback: as the plain loop, and evaluated, saved and ended at the mean."""

import warnings
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from integrations.comparison import WAYS, Watch, assert_as_plain, means, spoil, weights
from integrations.tasks import BATCH, EPOCHS, ROWS, decay, loader, network, optimizer

L = pytest.importorskip("lightning", reason="lightning is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.rank_zero.LightningDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


class Module(L.LightningModule):
    def __init__(self, schedule=False, **options):
        super().__init__()
        self.net, self.schedule, self.options, self.watch = network(), schedule, options, Watch()

    def training_step(self, batch, number):
        x, y = batch
        return F.mse_loss(self.net(x), y)

    def validation_step(self, batch, number):
        self.watch(self.net, self.optimizers(use_pl_optimizer=False))

    def test_step(self, batch, number):
        self.validation_step(batch, number)

    def configure_optimizers(self):
        opt = optimizer(self.net, **self.options)
        return [opt], [{"scheduler": decay(opt, self.schedule), "interval": "step"}]


def fit(module, folder, *, epochs=EPOCHS, resume=None, callbacks=(), loaders=True, **options):
    from bayesadam.integrations.lightning import PosteriorCallback

    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
    trainer = L.Trainer(
        max_epochs=epochs,
        default_root_dir=folder,
        callbacks=[PosteriorCallback(), *callbacks],
        **{"enable_checkpointing": False, **quiet, **options},
    )
    trainer.fit(module, *([loader(), loader()] if loaders else []), ckpt_path=resume)
    return trainer


def test_evaluation(tmp_path):
    module = Module()
    trainer = fit(module, tmp_path)
    trainer.test(module, loader(), verbose=False)
    module.watch.assert_mean(2 + (EPOCHS + 1) * (ROWS // BATCH))  # two batches before training
    assert_as_plain(module.net, trainer.optimizers[0])


class Pixels(Module):
    """Every row has one class for each of its four pixels."""

    def training_step(self, batch, number):
        x, y = batch
        return F.cross_entropy(self.net(x).unsqueeze(-1).expand(-1, -1, 4), y)

    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(ROWS, 3), torch.zeros(ROWS, 4, dtype=torch.long)), BATCH)


@pytest.mark.parametrize("counted", ["rows", "pixels"])
def test_the_unit_of_num_data(counted, tmp_path):
    factor = 1 if counted == "rows" else 4
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(Pixels(num_data=factor * ROWS, batch_size=factor * BATCH), tmp_path, loaders=False)
    told = [str(warning.message) for warning in caught if "num_data must count" in str(warning.message)]
    assert len(told) == (counted == "rows")
    assert all(f"got {ROWS} for about {ROWS} rows with 4 labels each" in text for text in told)


def test_rows_of_all_processes_count():
    from bayesadam.integrations.lightning import PosteriorCallback

    opt = optimizer(network(), num_data=ROWS, batch_size=BATCH)
    half = SimpleNamespace(global_step=0, num_training_batches=ROWS // BATCH // 2, world_size=2, optimizers=[opt])
    batch = torch.zeros(BATCH, 3), torch.zeros(BATCH, 4, dtype=torch.long)
    with pytest.warns(UserWarning, match=f"got {ROWS} for about {ROWS} rows with 4 labels each"):
        PosteriorCallback().on_train_batch_start(half, None, batch, 0)


def test_saved(tmp_path):
    """In the middle of an epoch, where the weights hold a sample."""
    module = Module()
    checkpoint = L.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=5, save_top_k=-1)
    seen = []

    class Look(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, *args):
            opt = trainer.optimizers[0]
            if trainer.global_step == 5:
                seen.append((weights(pl_module.net).clone(), means(opt).clone()))

    fit(module, tmp_path, callbacks=[checkpoint, Look()], enable_checkpointing=True)
    [path] = tmp_path.glob("*step=5.ckpt")
    saved = torch.load(path, weights_only=False)["state_dict"]
    (held, mean), *_ = seen
    found = torch.cat([value.flatten() for value in saved.values()])
    assert torch.equal(found, mean)
    assert not torch.equal(found, held)


def test_resume(tmp_path):
    """From a checkpoint that was written while the weights held a sample."""
    whole = Module()
    fit(whole, tmp_path)
    checkpoint = L.pytorch.callbacks.ModelCheckpoint(tmp_path, every_n_train_steps=8, save_top_k=-1)
    first = Module()
    fit(first, tmp_path, epochs=1, callbacks=[checkpoint], enable_checkpointing=True)
    [path] = tmp_path.glob("*step=8.ckpt")
    second = Module()
    spoil(second)
    fit(second, tmp_path, resume=path)
    assert torch.equal(weights(second.net), weights(whole.net))


@pytest.mark.parametrize("way", WAYS)
def test_as_the_plain_loop(way, tmp_path):
    options = {"accumulate_grad_batches": 4, "gradient_clip_val": 0.1}
    module = Module(schedule=way != "AMP")
    trainer = fit(module, tmp_path, **({"precision": "bf16-mixed"} if way == "AMP" else options))
    assert_as_plain(module.net, trainer.optimizers[0], **WAYS[way])


def test_a_gradient_scaler(tmp_path):
    from lightning.pytorch.plugins.precision import MixedPrecision

    plugin = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu"))
    module = Module()
    trainer = fit(module, tmp_path, plugins=[plugin], gradient_clip_val=0.1, accumulate_grad_batches=2)
    assert_as_plain(module.net, trainer.optimizers[0], amp=torch.float16, scaled=True, clip=0.1, accumulate=2)


def test_several_samples_by_closures(tmp_path):
    """Lightning calls ``step(closure)``; the closure is called once for each sample, and the mean is left."""
    module = Module(mc_samples=2)
    trainer = fit(module, tmp_path)
    module.watch.assert_mean(2 + EPOCHS * (ROWS // BATCH))
    model = network()
    opt = optimizer(model, mc_samples=2)
    for _ in range(EPOCHS):
        for x, y in loader():
            for _ in range(2):
                with opt.sampled_params():
                    F.mse_loss(model(x), y).backward()
            opt.step()
            opt.zero_grad()
    torch.testing.assert_close(weights(module.net), weights(model), rtol=1e-5, atol=1e-6)
    assert trainer.optimizers[0].param_groups[0]["weights"] == "mean"


def test_an_exception_leaves_the_mean(tmp_path):
    class Stop(L.Callback):
        def on_train_batch_end(self, trainer, *args):
            if trainer.global_step == 3:
                raise OverflowError("stop")

    module = Module()
    with pytest.raises(OverflowError, match="stop"):
        fit(module, tmp_path, callbacks=[Stop()])
    opt = module.optimizers(use_pl_optimizer=False)
    assert torch.equal(weights(module.net), means(opt))


def test_refusals(tmp_path):
    class Adam(Module):
        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters())

    with pytest.raises(ValueError, match="must have a perturbed optimiser of bayesadam .* got none"):
        fit(Adam(), tmp_path)
    with pytest.raises(ValueError, match="accumulate_grad_batches must be 1 with mc_samples=2, got 4"):
        fit(Module(mc_samples=2), tmp_path, accumulate_grad_batches=4)
    later = L.pytorch.callbacks.GradientAccumulationScheduler({1: 3})
    with pytest.raises(ValueError, match="accumulate_grad_batches must be 1 with mc_samples=2, got 3"):
        fit(Module(mc_samples=2), tmp_path, callbacks=[later])
    manual = Module(mc_samples=2)
    manual.automatic_optimization = False
    with pytest.raises(ValueError, match="automatic_optimization must be True with mc_samples=2, got False"):
        fit(manual, tmp_path)

    class Two(Module):
        def configure_optimizers(self):
            return [optimizer(self.net[number], seed=3) for number in (0, 2)]

    two = Two()
    two.automatic_optimization = False
    with pytest.raises(ValueError, match=r"seed must be different in each optimiser of a module, got \[3, 3\]"):
        fit(two, tmp_path)
