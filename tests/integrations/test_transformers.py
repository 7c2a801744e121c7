"""Hugging Face's Trainer with the callback: as the plain loop, and evaluated, saved and ended at the mean."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from integrations.comparison import WAYS, Watch, assert_as_plain, means, weights
from integrations.hugging_face import (
    QUIET,
    check_as_the_plain_loop,
    check_resume,
    check_saved,
    in_order,
    saved_in,
    transformers,
)
from integrations.tasks import BATCH, EPOCHS, dataset, decay, network, optimizer

pytest.importorskip("accelerate", reason="accelerate is not installed, which Hugging Face's Trainer needs")
pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:torch.utils.data", "ignore:'pin_memory'"
)


class Model(nn.Module):
    """Returns its loss, as models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.net, self.watch = network(), None

    def forward(self, x, labels=None):
        if self.watch is not None and not self.training:
            self.watch()
        output = self.net(x)
        return {"loss": F.mse_loss(output, labels), "logits": output}


class Rows(torch.utils.data.Dataset):
    def __init__(self):
        self.data = dataset()

    def __len__(self):
        return len(self.data)

    def __getitem__(self, number):
        x, y = self.data[number]
        return {"x": x, "labels": y}


def make(folder, *, epochs=EPOCHS, schedule=False, callbacks=(), mc_samples=1, opt=None, **options):
    model = Model()
    opt = optimizer(model, mc_samples=mc_samples) if opt is None else opt(model)
    sizes = {"num_train_epochs": epochs, "per_device_train_batch_size": BATCH}
    arguments = transformers.TrainingArguments(folder, **{**QUIET, **sizes, **options})
    optimizers = opt, decay(opt, schedule)
    return in_order(transformers.Trainer, model, arguments, Rows(), optimizers, callbacks), model, opt


def test_evaluation(tmp_path):
    trainer, model, opt = make(tmp_path, eval_strategy="epoch", per_device_eval_batch_size=BATCH)
    watch = Watch()
    model.watch = lambda: watch(model, opt)
    trainer.train()
    trainer.evaluate()
    watch.assert_mean((EPOCHS + 1) * len(Rows()) // BATCH)
    model.watch = None
    assert_as_plain(model, opt)


def test_saved(tmp_path):
    check_saved(make, tmp_path)


def test_resume(tmp_path):
    check_resume(make, tmp_path, assert_as_plain)


@pytest.mark.parametrize("way", WAYS)
def test_as_the_plain_loop(way, tmp_path):
    check_as_the_plain_loop(make, tmp_path, way, assert_as_plain)


def test_the_best_model_is_loaded_as_the_mean(tmp_path):
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainer, model, opt = make(tmp_path, **options, epochs=3)
    trainer.train()
    assert torch.equal(weights(model), saved_in(tmp_path / f"checkpoint-{trainer.state.best_global_step}", model))
    assert torch.equal(weights(model), means(opt))


def test_another_optimiser_trains_next(tmp_path):
    trainer, model, opt = make(tmp_path)
    trainer.train()
    mean = weights(model).clone()
    model.train()
    torch.optim.Adam(model.parameters(), lr=0.0).step()
    assert torch.equal(weights(model), mean)
    assert torch.equal(weights(model), means(opt))
    opt.follow(model)
    model.train()
    assert not torch.equal(weights(model), mean)
    opt.unfollow(model)
    assert torch.equal(weights(model.train()), mean)


def test_refusals(tmp_path):
    trainer, *_ = make(tmp_path, opt=lambda model: torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match="must have a perturbed optimiser of bayesadam .* got none"):
        trainer.train()
    trainer, *_ = make(tmp_path, mc_samples=2)
    with pytest.raises(RuntimeError, match=r"mc_samples must be 1 to use train\(\), got 2"):
        trainer.train()
