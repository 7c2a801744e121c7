"""A callback for Hugging Face's ``Trainer`` that trains at posterior samples, and evaluates, saves and ends at the
mean.

::

    trainer = Trainer(model, args, train_dataset=data, optimizers=(opt, None), callbacks=[PosteriorCallback()])
"""

from __future__ import annotations

import math
from typing import Any

from bayesadam.integrations.optimizers import labels_of, none_found, perturbed, plan, warn_of_rows

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "transformers must be installed for this, got none: pip install 'bayesadam[integrations]'"
    ) from error

__all__ = ["PosteriorCallback"]


class PosteriorCallback(TrainerCallback):  # type: ignore[misc,unused-ignore]
    """Callback for a ``Trainer`` with an optimiser of this library, and for trainers that derive from it (trl's).

    The ``Trainer`` itself sets the optimiser to training before every batch and to evaluation before it evaluates. The
    callback makes sure that the mean is saved at any time, that ``model.eval()`` and ``model.generate()`` use the mean,
    and that the weights at the end of training are the mean; from then on the optimiser no longer follows the model.
    Accumulated gradients, clipping, ``bf16`` and schedulers work as with Adam. ``mc_samples`` must be 1, since the
    ``Trainer`` calls no closure. It fills in ``total_steps=None`` of :class:`bayesadam.BayesAdam`.

    It warns if ``num_data`` is at most the number of rows while the first batch has labels of many elements in every
    row: the loss of a language model is a mean over tokens, so that ``num_data`` is the number of tokens.

    Raises:
        ValueError: Raised at the start of training if there is no optimiser of this library.
        RuntimeError: Raised at the start of training if ``mc_samples`` is not 1.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Make the optimiser follow the model's mode."""
        optimizers = perturbed([kwargs.get("optimizer")])
        if not optimizers:
            raise none_found()
        plan(optimizers, state.max_steps)
        optimizers[0].follow(kwargs["model"])
        self._check_first_batch(args, kwargs["model"], optimizers, kwargs.get("train_dataloader"))

    def _check_first_batch(self, args: Any, model: Any, optimizers: list[Any], loader: Any) -> None:
        """Check the unit of ``num_data`` by the first batch, which callbacks do not see: the model does."""

        def check(module: Any, inputs: Any, named: dict[str, Any]) -> None:
            handle.remove()
            batches = args.world_size * len(loader) if hasattr(loader, "__len__") else math.inf
            warn_of_rows(optimizers, labels_of(named), batches)

        handle = model.register_forward_pre_hook(check, with_kwargs=True)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the mean into the weights; another optimiser may train the model next."""
        for optimizer in perturbed([kwargs.get("optimizer")]):
            optimizer.unfollow(kwargs["model"])
