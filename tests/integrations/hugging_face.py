"""What the tests of Hugging Face's trainers share: rows in order, and what is saved and resumed, which is the mean.

``make(folder, **options)`` gives a trainer, its model and its optimiser.
"""

import pytest
import torch

from integrations.comparison import WAYS, means, spoil, weights

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


QUIET = {"report_to": [], "disable_tqdm": True, "logging_strategy": "no", "use_cpu": True}
QUIET |= {"save_strategy": "no", "max_grad_norm": 0.0}


def in_order(kind, model, arguments, rows, optimizers, callbacks, **options):
    """A trainer of this class with the callback, whose rows are not shuffled."""
    from bayesadam.integrations.transformers import PosteriorCallback

    class InOrder(kind):
        def _get_train_sampler(self, *args):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    callbacks = [PosteriorCallback(), *callbacks]
    data = {"train_dataset": rows, "eval_dataset": rows}
    return InOrder(model, arguments, optimizers=optimizers, callbacks=callbacks, **data, **options)


class Look(transformers.TrainerCallback):
    """Remembers the weights and the means after every step."""

    def __init__(self):
        self.seen = {}

    def on_step_end(self, args, state, control, model, optimizer, **kwargs):
        self.seen[state.global_step] = weights(model), means(optimizer).clone()


def saved_in(folder, model):
    from safetensors.torch import load_file

    saved = load_file(folder / "model.safetensors")
    return torch.cat([saved[name].flatten() for name, _ in model.named_parameters()])


def check_saved(make, folder):
    """At any step, where the weights hold a sample, and at the end."""
    look = Look()
    trainer, model, opt = make(folder, save_strategy="steps", save_steps=3, callbacks=[look])
    trainer.train()
    trainer.save_model(folder / "end")
    assert torch.equal(saved_in(folder / "end", model), weights(model))
    assert torch.equal(weights(model), means(opt))
    held, mean = look.seen[3]
    found = saved_in(folder / "checkpoint-3", model)
    assert torch.equal(found, mean)
    assert not torch.equal(found, held)


def check_as_the_plain_loop(make, folder, way, assert_as_plain, **options):
    """Gives the model."""
    several = {"gradient_accumulation_steps": 4, "max_grad_norm": 0.1, "schedule": True}
    trainer, model, opt = make(folder, **({"bf16": True} if way == "AMP" else several))
    trainer.train()
    assert_as_plain(model, opt, **WAYS[way], **options)
    return model


def check_resume(make, folder, assert_as_plain):
    first, expected, _ = make(folder, save_strategy="steps", save_steps=5)
    first.train()
    second, model, opt = make(folder)
    spoil(model)
    second.train(resume_from_checkpoint=str(folder / "checkpoint-5"))
    assert torch.equal(weights(model), weights(expected))
    assert_as_plain(model, opt)
