"""A callback for Lightning that trains at posterior samples, and evaluates, saves and ends at the mean.

::

    trainer = lightning.Trainer(callbacks=[PosteriorCallback()])
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module
from itertools import combinations
from typing import Any

from bayesadam.integrations.optimizers import labels_of, none_found, perturbed, plan, warn_of_rows
from bayesadam.optim.attach import share_noise
from bayesadam.optim.base import PerturbedOptimizer

__all__ = ["PosteriorCallback"]


def _callback_class() -> Any:
    """Lightning's base class of callbacks, from the package under either of its names."""
    for name in ("lightning.pytorch", "pytorch_lightning"):
        with suppress(ImportError):
            return import_module(name).Callback
    raise ImportError("lightning must be installed for this, got none: pip install 'bayesadam[integrations]'")


Callback: Any = _callback_class()
SCHEDULER = "GradientAccumulationScheduler"
"""Name of Lightning's callback that accumulates other numbers of batches in later epochs."""


class PosteriorCallback(Callback):  # type: ignore[misc]
    """Callback for a ``LightningModule`` whose ``configure_optimizers`` returns optimisers of this library.

    With one sample per step the weights hold a sample during training: accumulated gradients, clipping, ``precision``
    and schedulers work as with Adam. They hold the mean while Lightning validates, tests and predicts and after
    ``fit``, and so does every checkpoint. With ``mc_samples`` above 1 the weights hold a sample only inside
    ``optimizer.step(closure)``, which Lightning calls; the loss is computed and clipped once for each sample.

    It fills in ``total_steps=None`` of :class:`bayesadam.BayesAdam`.

    Several such optimisers, together with other optimisers, may train parts of a module. They need different seeds
    (``ba.BayesAdam(..., seed=1)``), since with the same seed their noise is the same.

    It warns if ``num_data`` is at most the number of rows while the first batch has classes of many elements in every
    row, such as tokens: a mean loss over tokens needs the number of tokens.

    Raises:
        ValueError: Raised at the start of ``fit`` if there is no optimiser of this library, if two of them have the
            same ``seed``, or if ``mc_samples`` above 1 is combined with accumulated gradients, a gradient scaler
            (``precision="16-mixed"``) or manual optimisation.
    """

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach the optimisers to the module, so that checkpoints hold the mean."""
        optimizers = perturbed(trainer.optimizers)
        if not optimizers:
            raise none_found()
        if any(share_noise(*pair) for pair in combinations(optimizers, 2)):
            seeds = [optimizer.param_groups[0]["seed"] for optimizer in optimizers]
            raise ValueError(f"seed must be different in each optimiser of a module, got {seeds}")
        plan(optimizers, trainer.estimated_stepping_batches)
        for optimizer in optimizers:
            if not _is_drop_in(optimizer):
                _check_closures(trainer, pl_module, optimizer)
            optimizer.attach(pl_module)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start training at samples."""
        self._train(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Check the unit of ``num_data`` by the first batch."""
        if trainer.global_step == 0 and batch_idx == 0:
            batches = float(trainer.world_size * trainer.num_training_batches)
            warn_of_rows(perturbed(trainer.optimizers), labels_of(batch), batches)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the mean into the weights."""
        self._eval(trainer)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Put samples into the weights again, if training continues."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._train(trainer)

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Put the mean into the weights, also in a resumed run."""
        self._eval(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Put the mean into the weights."""
        self._eval(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Put the mean into the weights when training was interrupted."""
        self._eval(trainer)

    def _train(self, trainer: Any) -> None:
        for optimizer in perturbed(trainer.optimizers):
            if _is_drop_in(optimizer):
                optimizer.train()

    def _eval(self, trainer: Any) -> None:
        for optimizer in perturbed(trainer.optimizers):
            optimizer.eval()


def _is_drop_in(optimizer: PerturbedOptimizer) -> bool:
    """Whether the weights hold a sample between steps, which they cannot with several samples per step."""
    return bool(optimizer.param_groups[0]["mc_samples"] == 1)


def _check_closures(trainer: Any, pl_module: Any, optimizer: PerturbedOptimizer) -> None:
    """Check that the trainer computes the whole gradient of a step inside ``step(closure)``, as several samples
    need.
    """
    what = f"with mc_samples={optimizer.param_groups[0]['mc_samples']}"
    later = [callback.scheduling for callback in trainer.callbacks if type(callback).__name__ == SCHEDULER]
    for batches in (trainer.accumulate_grad_batches, *(number for numbers in later for number in numbers.values())):
        if batches != 1:
            raise ValueError(f"accumulate_grad_batches must be 1 {what}, got {batches!r}")
    if getattr(trainer.precision_plugin, "scaler", None) is not None:
        raise ValueError(f"precision must be one without a gradient scaler {what}, got {trainer.precision!r}")
    if not pl_module.automatic_optimization:
        raise ValueError(f"automatic_optimization must be True {what}, got False")
