"""The perturbed optimiser: three ways to train, the posterior, checkpoints and copies, once for all methods.

A subclass is a rule (:mod:`bayesadam.engine.rule`) and its argument checks. Everything that must survive a copy or a
checkpoint is in ``param_groups`` or ``state``: the hyper-parameters, the number of the next noise draw, whether the
weights hold the mean or a sample, and the mean itself. What belongs to one unfinished step is in the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesadam.engine.graph_breaks import uncompiled
from bayesadam.engine.rule import options_of
from bayesadam.engine.store import Slot, full
from bayesadam.engine.weights import MEAN, TRAIN
from bayesadam.optim import attachment, start
from bayesadam.optim.checkpoints import Checkpointed
from bayesadam.optim.continuation import start_from
from bayesadam.optim.hyperparameters import (
    DEFAULTS,
    SHARED,
    check_common,
    check_options,
    check_ordered,
    check_prior,
    prior_of,
    settled,
)
from bayesadam.optim.translations import check_foreign
from bayesadam.posterior import DiagonalGaussian
from bayesadam.posterior.report import PER_TENSOR, PosteriorReport, overall_share


class PerturbedOptimizer(Checkpointed):
    """Optimises the mean and the precision of a Gaussian posterior over the weights.

    The loss that is backpropagated is the *mean* negative log-likelihood over the minibatch; the prior enters through
    the rule, never through the loss. There are three ways to train, with the same result for the same seed::

        for _ in range(mc_samples):                       # 1. explicit blocks
            with opt.sampled_params():                    #    inside, the weights are one posterior sample
                loss_fn(model(x), y).backward()
        opt.step()

        opt.step(closure)                                 # 2. the closure is called once per sample

        opt.train()                                       # 3. drop-in: the weights hold a sample while training,
        ...                                               #    and any training loop runs unchanged
        opt.eval()                                        #    the weights hold the mean again

    All ranks of a data-parallel job draw the same noise, and a sharded parameter draws its slice of the full tensor's,
    so gradients are averaged at one and the same sample.

    Args:
        params: Parameters, named parameters, or groups of either. A group may set any of the hyper-parameters below,
            and ``perturb=False`` for parameters that are trained without noise (norm layers, a learned noise level):
            those keep the prior of their group and have posterior variance 0.
        lr: Learning rate, a number or a 1-element tensor.
        num_data: Number of training examples ``N``, or a chosen effective number.
        betas: Decay rates of the gradient's and of the curvature's running averages, in [0, 1).
        prior_precision: Of the prior ``N(0, 1 / prior_precision)``; default 1.
        prior: Instead of ``prior_precision``: a posterior to continue from (needs named parameters; the mean starts at
            the prior's), or a number, which is the same as ``prior_precision``.
        initial_precision: Posterior precision at the start, at least ``prior_precision``; default
            ``max(num_data, prior_precision)``. Started at the prior an ordinary network hardly trains.
        temperature: Multiplies the KL divergence in the objective, in [0, 1]: 1 is variational inference, 0
            variational optimisation (Khan et al. 2018, eq. 22).
        mc_samples: Posterior samples per step. The same in all groups.
        antithetic: Draw samples in pairs ``+eps, -eps``; ``mc_samples`` must be even.
        seed: Of the noise; it depends on nothing else but the step, the sample and the position of the parameter.
        maximize: The loss is to be maximised (a mean log-likelihood).
        nonfinite: ``"raise"`` a ``FloatingPointError`` that names the parameter on a gradient that is not finite, and
            change nothing; or ``"skip"`` the step and count it in the groups' ``skipped_steps``.
        compile: Sample and update by one compiled kernel for all parameters on a CPU, several times faster and the
            same up to rounding. It takes a C++ compiler, and a second once on a machine for every kernel. ``None``,
            the default: wherever that can be had. ``True``: the same, with a warning where it cannot. ``False``:
            never.
        **options: Those that the rule declares.

    Raises:
        ValueError: A hyper-parameter out of its range, both ``prior`` and ``prior_precision``, a trainable complex
            parameter, or a set of parameters, which has no order.
        TypeError: An option that the method does not have; for the names of other libraries, how it is given here.
    """

    _shared: ClassVar[tuple[str, ...]] = SHARED
    _warned = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        num_data: float,
        betas: tuple[float, float] = (0.9, 0.999),
        prior_precision: float | None = None,
        prior: float | DiagonalGaussian | None = None,
        initial_precision: float | None = None,
        temperature: float = 1.0,
        mc_samples: int = 1,
        antithetic: bool = False,
        seed: int = 0,
        maximize: bool = False,
        nonfinite: str = "raise",
        compile: bool | None = None,
        **options: Any,
    ) -> None:
        check_ordered(params)
        check_options(type(self).__name__, self.rule, options)
        prior, precision = prior_of(prior, prior_precision)
        given: dict[str, Any] = {"lr": lr, "betas": betas, "num_data": num_data, "initial_precision": initial_precision}
        given |= {"temperature": temperature, "mc_samples": mc_samples, "antithetic": antithetic, "seed": seed}
        given |= {"maximize": maximize, "nonfinite": nonfinite, "compile": compile}
        declared = {option.name: option.default for option in options_of(self.rule)}
        self.defaults = settled({**given, **DEFAULTS, "method": type(self).__name__, **declared, **options})
        if self.has_prior:
            self.defaults["prior_precision"] = precision
        self._reset()
        super().__init__(params, self.defaults)
        if prior is not None:
            start_from(self._engine.store, prior)

    def check_group(self, group: dict[str, Any]) -> None:
        """Check a new group's hyper-parameters; a subclass adds its own."""
        check_common(group)
        if self.has_prior:
            check_prior(group)
        for option in options_of(self.rule):
            option.check(group[option.name])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, at any time but inside a block; they get the noise indices that follow the last ones.

        Raises:
            ValueError: A hyper-parameter out of range, one that must be the same in all groups and is not, or a
                trainable complex parameter, or a set of parameters, which has no order.
            TypeError: A hyper-parameter of another library, such as ``weight_decay``.
            RuntimeError: Called inside a sampling block.
        """
        self._engine.refuse_inside("add_param_group")
        check_ordered(param_group["params"])
        check_foreign(param_group, self.defaults)
        param_group = {**param_group, **settled({k: v for k, v in param_group.items() if k in self.defaults})}
        group = {**self.defaults, **param_group}
        self.check_group(group)
        for name in self._shared:
            if self.param_groups and group[name] != self.param_groups[0][name]:
                raise ValueError(f"{name} must be the same in all groups, got {group[name]!r}")
        super().add_param_group(param_group)
        group, first = self.param_groups[-1], self.param_groups[0]
        for position, parameter in enumerate(group["params"]):
            if parameter.is_complex() and parameter.requires_grad:
                self.param_groups.pop()
                raise ValueError(f"parameter {position} of the group must be real, got dtype {parameter.dtype}")
        group["noise_index"] = sum(len(g["params"]) for g in self.param_groups[:-1])
        if group is not first:
            group["noise_step"], group["skipped_steps"] = first["noise_step"], first["skipped_steps"]
            if first["weights"] == TRAIN:
                self._engine.weights.perturb(0, TRAIN)
            group["weights"] = first["weights"]

    @uncompiled
    def sampled_params(self) -> AbstractContextManager[None]:
        """Inside, the weights are the next posterior sample; outside they are the mean, whatever happens inside.

        Gradients from before are hidden inside; after the block ``p.grad`` is the mean gradient over this step's
        samples so far. An exception inside leaves no trace: the sample does not count.

        Raises:
            RuntimeError: A block inside a block, more blocks than ``mc_samples`` before a step, or a block while the
                weights already hold a sample (after :meth:`train`). At its end: a loss that was backwarded though the
                method takes second derivatives.
        """
        return self._engine.block()

    @uncompiled
    def train(self, mode: bool = True) -> None:
        """Drop-in training: from now on the weights hold a posterior sample, a new one after every step.

        Calling it again changes nothing, but after a checkpoint was loaded it rebuilds the sample if need be.

        Raises:
            RuntimeError: ``mc_samples`` is not 1; called inside a block or between a block and its step; or the
                weights were modified externally while they held a sample.
        """
        if mode:
            self._engine.train()
        else:
            self.eval()

    @uncompiled
    def eval(self) -> None:
        """End of drop-in training: the weights hold the mean. Calling it again changes nothing.

        Raises:
            RuntimeError: Called inside a sampling block.

        Warns:
            UserWarning: Weights were modified externally while they held a sample: what they are now is the mean.
        """
        others = self._engine.eval()
        if others:
            attachment.warn_of_other_values(self._engine.store.name_of(others[0]))

    @uncompiled
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear gradients. Outside a block this also discards the samples collected for the next step."""
        super().zero_grad(set_to_none)
        self._engine.cleared()

    def backward(self, loss: Tensor) -> None:
        """Inside a block: ``loss.backward()``, and whatever else the method wants to know of a mean loss.

        Methods that take second derivatives need it in place of ``loss.backward()``, and give gradients to this
        optimiser's parameters only; for all others it is the same, and where the examples' gradients are squared it
        checks the loss.

        Raises:
            RuntimeError: Called while the weights hold the mean; or the loss was backwarded before, and must not have
                been.
            ValueError: The loss is a sum where a mean was announced, or the reverse.
        """
        if self._engine.weights.held == MEAN:
            raise RuntimeError("backward() must be called inside sampled_params() or after train(), got a call outside")
        with torch.enable_grad():
            if self._engine.source is None:
                loss.backward()  # type: ignore[no-untyped-call]
            else:
                self._engine.source.backward(loss)

    @uncompiled
    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the posterior from the gradients at its samples.

        Once the update has begun it is completed: an exception that comes between (an interrupt, say) is passed on
        when it is done. Before that nothing has changed. Not covered is a second interrupt before the first is passed
        on: it may leave some parameters a step ahead of others, or a block's sample in the weights until the next call.

        Args:
            closure: Clears the gradients, computes the mean loss, calls ``backward`` and returns the loss. It is
                called once for each of ``mc_samples`` samples (once at the current sample after :meth:`train`). For
                methods that take second derivatives it does not call ``backward``. A closure that does not clear
                the gradients adds to those that were there before.

        Returns:
            The closure's loss, for several samples their mean; ``None`` without a closure.

        Raises:
            RuntimeError: No sample was drawn, or not exactly ``mc_samples``; a sparse gradient; a gradient without the
                curvature that the method needs.
            FloatingPointError: A gradient or a curvature that is not finite, or a precision that would not stay
                positive, with ``nonfinite="raise"``; nothing has changed. Samples from blocks are discarded.
            ValueError: The closure's loss is a sum where a mean was announced, or the reverse.
            TypeError: The closure returned no loss to a method that differentiates it.
        """
        self._engine.refuse_inside("step()")
        return self._engine.step(closure)

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None) -> DiagonalGaussian:
        """The posterior as it stands: copies of means and variances, float32 or wider, of the full tensors.

        Args:
            model: Gives the names, if neither ``named_parameters()`` nor :meth:`attach` did. Parameters that are
                not the model's are left out; only ``perturb=False`` groups (a learned noise level) may have such.

        Returns:
            The posterior; of methods with ``covariance="full"`` a :class:`DenseGaussian`.

        Raises:
            RuntimeError: The names are not known.
            ValueError: A perturbed parameter that is not the model's.

        Warns:
            UserWarning: More than half of the precision is still the initial one's after 100 steps or more; once for
                every optimiser. :meth:`report` has the numbers.
        """
        q, share, steps = self._posterior(model)
        if share is not None and share > start.DOMINATES and steps >= start.ENOUGH and not self._warned:
            self._warned = True
            start.warn_of_start(share, self.param_groups[0], steps, stacklevel=4)
        return q

    @torch.no_grad()
    def report(self, model: nn.Module | None = None) -> PosteriorReport:
        """What the posterior knows by now: widths, the share of the start, and what the data determined, by tensor.

        It is ``posterior(model).report()`` with the number of steps that were made. Arguments and errors are those of
        :meth:`posterior`.
        """
        q, _, steps = self._posterior(model)
        return replace(q.report(), steps=steps)

    def _posterior(self, model: nn.Module | None) -> tuple[DiagonalGaussian, float | None, int]:
        """The posterior, the share of its precision that is the start's (None: not known), and the steps made."""
        covered = list(self._covered(model))
        q = self._gaussian(covered)
        random = {name: (slot, state, q.variance[name]) for name, slot, state in covered if slot.group["perturb"]}
        shares = {name: self._start_share(*at) for name, at in random.items()}
        priors = {name: start.prior_of(*at) for name, at in random.items()}
        told = {name: {"start_share": shares[name], "prior_precision": priors[name]} for name in random}
        q.hyperparameters[PER_TENSOR] = told
        share = overall_share([(shares[name], q.mean[name].numel()) for name in random])
        return q, share, max((int(state["step"]) for _, _, state in covered), default=0)

    def _gaussian(self, covered: Sequence[tuple[str, Slot, dict[str, Any]]]) -> DiagonalGaussian:
        """The posterior of what :meth:`_covered` gives."""
        mean, variance = {}, {}
        for name, slot, state in covered:
            mean[name] = self._center(slot, state)
            variance[name] = full(self._engine.store.variance(slot, state))
        return DiagonalGaussian(mean, variance, self._hyperparameters())

    def _start_share(self, slot: Slot, state: dict[str, Any], variance: Tensor) -> float | None:
        """Share of a tensor's posterior precision that is still the initial one's; None where it is not known."""
        return start.share_of_start(slot, state, variance)

    def _covered(self, model: nn.Module | None) -> Iterator[tuple[str, Slot, dict[str, Any]]]:
        """What a posterior covers: name, slot and state of every parameter."""
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
        in_weights = self._engine.weights.held == MEAN or not slot.group["perturb"]
        return full(self._engine.store.center(slot, state, in_weights=in_weights))

    def _hyperparameters(self) -> dict[str, Any]:
        first = self.param_groups[0]
        reported = ("num_data", "prior_precision", "temperature", "seed")
        return {"method": type(self).__name__, **{k: first[k] for k in reported if k in first}}
