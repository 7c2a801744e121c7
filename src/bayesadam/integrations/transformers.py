"""Hugging Face's ``Trainer``: a callback that trains at samples, and evaluates, saves and ends at the mean.

::

    trainer = Trainer(model, args, train_dataset=data, optimizers=(opt, None), callbacks=[PosteriorCallback()])
"""

from __future__ import annotations

from typing import Any

from bayesadam.integrations.optimizers import none_found, perturbed

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "transformers must be installed for this, got none: pip install 'bayesadam[integrations]'"
    ) from error


class PosteriorCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """For a ``Trainer`` that is given an optimiser of this library, and for trainers that are made of it (trl's).

    The ``Trainer`` itself sets the optimiser to training before every batch and to evaluation before it evaluates. The
    callback sees to the rest: what is saved at any time, what ``model.eval()`` and ``model.generate()`` meet, and the
    weights at the end of training are the mean. Accumulated gradients, clipping, ``bf16`` and schedulers work as with
    Adam; ``mc_samples`` must be 1, as the ``Trainer`` calls no closure.

    Raises:
        ValueError: At the start of training: no optimiser of this library.
        RuntimeError: At the start of training: ``mc_samples`` is not 1.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Let the optimiser follow the model's mode."""
        optimizers = perturbed([kwargs.get("optimizer")])
        if not optimizers:
            raise none_found()
        optimizers[0].follow(kwargs["model"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The mean."""
        for optimizer in perturbed([kwargs.get("optimizer")]):
            optimizer.eval()
