"""Hugging Face's Trainer with the callback: as the plain loop, and evaluated, saved and ended at the mean."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from integrations.comparison import WAYS, Watch, assert_as_plain, means, spoil, weights
from integrations.tasks import BATCH, EPOCHS, dataset, decay, network, optimizer

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate is not installed, which Hugging Face's Trainer needs")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning:torch.utils.data"),
    pytest.mark.filterwarnings("ignore:'pin_memory'"),
]


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


class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def make(folder, *, epochs=EPOCHS, schedule=False, callbacks=(), mc_samples=1, opt=None, **options):
    from bayesadam.integrations.transformers import PosteriorCallback

    model = Model()
    opt = optimizer(model, mc_samples=mc_samples) if opt is None else opt(model)
    quiet = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
    arguments = transformers.TrainingArguments(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        **{"save_strategy": "no", "max_grad_norm": 0.0, **quiet, **options},
    )
    trainer = InOrder(
        model,
        arguments,
        train_dataset=Rows(),
        eval_dataset=Rows(),
        optimizers=(opt, decay(opt, schedule)),
        callbacks=[PosteriorCallback(), *callbacks],
    )
    return trainer, model, opt


def test_evaluation(tmp_path):
    trainer, model, opt = make(tmp_path, eval_strategy="epoch", per_device_eval_batch_size=BATCH)
    watch = Watch()
    model.watch = lambda: watch(model, opt)
    trainer.train()
    trainer.evaluate()
    watch.assert_mean((EPOCHS + 1) * len(Rows()) // BATCH)
    model.watch = None
    assert_as_plain(model, opt)


def saved_in(folder):
    from safetensors.torch import load_file

    return torch.cat([value.flatten() for value in load_file(folder / "model.safetensors").values()])


def test_saved(tmp_path):
    """At any step, where the weights hold a sample, and at the end."""
    seen = {}

    class Look(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            seen[state.global_step] = weights(model).clone(), means(opt).clone()

    trainer, model, opt = make(tmp_path, save_strategy="steps", save_steps=3, callbacks=[Look()])
    trainer.train()
    trainer.save_model(tmp_path / "end")
    names = sorted(dict(model.named_parameters()))
    order = torch.cat([dict(model.named_parameters())[name].detach().flatten() for name in names])
    assert torch.equal(saved_in(tmp_path / "end").sort().values, order.sort().values)
    held, mean = seen[3]
    found = saved_in(tmp_path / "checkpoint-3").sort().values
    assert torch.equal(found, mean.sort().values)
    assert not torch.equal(found, held.sort().values)
    assert torch.equal(weights(model), means(opt))


def test_resume(tmp_path):
    whole, expected, _ = make(tmp_path / "whole")
    whole.train()
    first, *_ = make(tmp_path / "parts", save_strategy="steps", save_steps=5)
    first.train()
    second, model, opt = make(tmp_path / "parts")
    spoil(model)
    second.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-5"))
    assert torch.equal(weights(model), weights(expected))
    assert_as_plain(model, opt)


@pytest.mark.parametrize("way", WAYS)
def test_as_the_plain_loop(way, tmp_path):
    options = {"gradient_accumulation_steps": 4, "max_grad_norm": 0.1, "schedule": True}
    trainer, model, opt = make(tmp_path, **({"bf16": True} if way == "AMP" else options))
    trainer.train()
    assert_as_plain(model, opt, **WAYS[way])


def test_the_best_model_is_loaded_as_the_mean(tmp_path):
    options = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    trainer, model, opt = make(tmp_path, **options, epochs=3)
    trainer.train()
    best = saved_in(tmp_path / f"checkpoint-{trainer.state.best_global_step}")
    assert torch.equal(weights(model).sort().values, best.sort().values)
    assert torch.equal(weights(model), means(opt))


def test_refusals(tmp_path):
    trainer, *_ = make(tmp_path, opt=lambda model: torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match="must have a perturbed optimiser of bayesadam .* got none"):
        trainer.train()
    trainer, *_ = make(tmp_path, mc_samples=2)
    with pytest.raises(RuntimeError, match=r"mc_samples must be 1 to use train\(\), got 2"):
        trainer.train()
