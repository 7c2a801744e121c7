"""Methods that return an optimiser's posterior and report how much of it was learned from the data."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from bayesadam.engine.store import Slot
from bayesadam.optim import attachment, epochs, start
from bayesadam.optim.checkpoints import Checkpointed
from bayesadam.optim.continuation import ONE_MODULE, repeated
from bayesadam.posterior import DiagonalGaussian
from bayesadam.posterior.report import PER_TENSOR, PosteriorReport, overall_share
from bayesadam.sharding import full


class Readable(Checkpointed):
    """The part of an optimiser that returns its posterior and a report on it."""

    _warned = False

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> DiagonalGaussian:
        """Return the current posterior, with copies of means and variances of the full tensors in float32 or wider.

        Args:
            model: Module from which the parameters' names are taken. It is needed only if the optimiser was not
                constructed from ``named_parameters()`` and :meth:`attach` was not called. Parameters that do not belong
                to it are left out; only groups with ``perturb=False`` may have them (a learned noise level).

        Returns:
            The posterior; with ``covariance="full"`` a :class:`DenseGaussian`.

        Raises:
            RuntimeError: The names of the parameters are not known, or two parameters have the same name.
            ValueError: A perturbed parameter does not belong to the model.

        Warns:
            UserWarning: ``num_data`` is far too small, as far as the minibatches tell (at most the number of
                minibatches of an epoch, or less than a quarter of ``batch_size``). Or after 100 steps or more, more
                than half of the precision still comes from the initial precision, or the width depends on a
                ``batch_size`` that was not given. It is issued once for every optimiser; :meth:`report` has the
                numbers.
        """
        q, share, steps = self._posterior(model)
        if not self._warned and steps:
            self._warned = self._warn(share, steps)
        return q

    def _warn(self, share: float | None, steps: int) -> bool:
        """Issue the most important warning about the widths, and tell whether there was one."""
        doubt = self._doubt()
        if doubt is not None:
            warnings.warn(doubt, UserWarning, stacklevel=4)
        elif steps < start.ENOUGH:
            return False
        elif share is not None and share > start.DOMINATES:
            start.warn_of_start(share, self.param_groups[0], steps, stacklevel=5)
        elif any(start.lacks_batch_size(self.rule, group) for group in self.param_groups):
            start.warn_of_batch_size(stacklevel=5)
        else:
            return False
        return True

    def _doubt(self) -> str | None:
        """Why ``num_data`` is far too small; None if there is no certain reason."""
        epoch = None if self._counted is None else self._counted.epochs.latest()
        return epochs.doubt(self.param_groups[0], epoch)

    @torch.no_grad()
    def report(self, model: nn.Module | None = None) -> PosteriorReport:
        """Report what the posterior has learned, for each tensor.

        The report has the widths, the share of the precision that still comes from the start, and the number of weights
        that the data determined. It is ``posterior(model).report()`` with the number of steps made so far, the number
        of passes through the data that these are according to ``batch_size`` and ``num_data``, and a sentence if
        ``num_data`` is far too small; arguments and errors are those of :meth:`posterior`.
        """
        q, _, steps = self._posterior(model)
        passes = epochs.passes(self.param_groups[0], steps)
        return replace(q.report(), steps=steps, passes=passes, doubt=self._doubt() if steps else None)

    def _posterior(self, model: nn.Module | None) -> tuple[DiagonalGaussian, float | None, int]:
        """The posterior, the share of its precision that comes from the start (None if unknown), and the steps made."""
        covered = list(self._covered(model))
        twice = repeated(name for name, _, _ in covered)
        if twice is not None:
            raise RuntimeError(
                f"posterior() must know parameters by different names, got {twice!r} twice: {ONE_MODULE}, or give it "
                "the model"
            )
        q = self._gaussian(covered)
        random = {name: (slot, state, q.variance[name]) for name, slot, state in covered if slot.group["perturb"]}
        shares = {name: self._start_share(*at) for name, at in random.items()}
        priors = {name: start.prior_of(*at) for name, at in random.items()}
        told = {name: {"start_share": shares[name], "prior_precision": priors[name]} for name in random}
        q.hyperparameters[PER_TENSOR] = told
        share = overall_share([(shares[name], q.mean[name].numel()) for name in random])
        return q, share, max((int(state["step"]) for _, _, state in covered), default=0)

    def _gaussian(self, covered: Sequence[tuple[str, Slot, dict[str, Any]]]) -> DiagonalGaussian:
        """The posterior over the parameters that :meth:`_covered` yields."""
        mean, variance = {}, {}
        for name, slot, state in covered:
            mean[name] = self._center(slot, state)
            variance[name] = full(self._engine.store.variance(slot, state))
        return DiagonalGaussian(mean, variance, hyperparameters=self._hyperparameters())

    def _start_share(self, slot: Slot, state: dict[str, Any], variance: Tensor) -> float | None:
        """Share of a tensor's posterior precision that still comes from the initial precision; None if unknown."""
        return start.share_of_start(slot, state, variance)

    def _covered(self, model: nn.Module | None) -> Iterator[tuple[str, Slot, dict[str, Any]]]:
        """Name, slot and state of every parameter that the posterior covers."""
        store = self._engine.store
        names = store.names() if model is None else attachment.names_of(store, model)
        for slot in store.slots():
            if not slot.parameter.requires_grad and slot.parameter not in self.state:
                continue
            if slot.parameter in names:
                yield names[slot.parameter], slot, self.state.get(slot.parameter) or store.new_state(slot)
            elif slot.group["perturb"]:
                raise RuntimeError(
                    "posterior() must know the parameters' names: give it the model, construct the optimiser from "
                    "model.named_parameters(), or call attach(model)"
                )

    def _center(self, slot: Slot, state: dict[str, Any]) -> Tensor:
        if self._engine.weights.holds_sample(slot.parameter):
            return full(self._engine.weights.mean_of(slot.parameter)).clone()
        return full(self._engine.store.center(slot, state))

    def _hyperparameters(self) -> dict[str, Any]:
        first = self.param_groups[0]
        reported = ("num_data", "prior_precision", "temperature", "seed")
        return {"method": type(self).__name__, **{k: first[k] for k in reported if k in first}}
