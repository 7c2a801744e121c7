"""The perturbed optimiser: three ways to train, the posterior, checkpoints and copies, once for all methods.

A subclass is a rule (:mod:`bayesadam.engine.rule`) and its argument checks. Everything that must survive a copy or a
checkpoint is in ``param_groups`` or ``state``: the hyper-parameters, the number of the next noise draw, whether the
weights hold the mean or a sample, and the mean itself. What belongs to one unfinished step is in the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesadam.engine.graph_breaks import uncompiled
from bayesadam.engine.rule import options_of
from bayesadam.engine.weights import MEAN, TRAIN
from bayesadam.optim import attachment
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
from bayesadam.optim.readable import Readable
from bayesadam.optim.recipes import PAPER, Recipes, longer_training, recipe_of
from bayesadam.optim.signatures import show_signature
from bayesadam.optim.translations import check_foreign
from bayesadam.posterior import DiagonalGaussian, modes
from bayesadam.sharding import is_sharded


class PerturbedOptimizer(Readable):
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
    so gradients are averaged at one and the same sample; but see ``rank_samples``.

    Args:
        params: Parameters, named parameters, or groups of either. A group may set any of the hyper-parameters below,
            and ``perturb=False`` for parameters that are trained without noise (norm layers, a learned noise level):
            those keep the prior of their group and have posterior variance 0.
        lr: Learning rate, a number or a 1-element tensor. Where it, ``betas``, ``prior_precision``, ``temperature`` or
            an option of the rule is not given, it is the recipe's.
        num_data: Number of training examples ``N``, or a chosen effective number.
        betas: Decay rates of the gradient's and of the curvature's running averages, in [0, 1).
        prior_precision: Of the prior ``N(0, 1 / prior_precision)``: a number, or ``"init"``, where each parameter
            gets a prior of its own, with ten times the variance of its values at the start (rounded to a power of two;
            equal values count as of variance 1).
        prior: Instead of ``prior_precision``: a posterior to continue from (needs named parameters; the mean starts at
            the prior's), or a number, which is the same as ``prior_precision``.
        initial_precision: Posterior precision at the start, at least ``prior_precision`` (Bayes by Backprop, which
            trains the widths like the means, may start wider); default ``max(num_data, prior_precision)``, or without
            the bridge ``prior_precision + 0.1 num_data / temperature``. Started at the prior an ordinary network
            hardly trains.
        temperature: Multiplies the KL divergence in the objective, in [0, 1]: 1 is variational inference, 0
            variational optimisation (Khan et al. 2018, eq. 22). The default of the recipe ``"learned"`` is higher in
            a training of more than 30 epochs, if ``batch_size`` and ``total_steps`` are given
            (``longer_training`` in :mod:`bayesadam.optim.recipes`).
        mc_samples: Posterior samples per step. The same in all groups.
        antithetic: Draw samples in pairs ``+eps, -eps``; ``mc_samples`` must be even.
        rank_samples: Every rank of a data-parallel job draws a sample of its own, so that ``world_size`` ranks make a
            step of ``world_size * mc_samples`` samples for the price of ``mc_samples``: the same, up to rounding, as in
            one process in which each sample has the data of its rank. Gradients are averaged by
            ``DistributedDataParallel``, and what a rule reads off the gradient of one sample is averaged beside
            them, which takes 8 more bytes per parameter. Not for sharded parameters, whose gradients are never those of
            one rank, nor with ``hessian="exact"`` or a full covariance. The same in all groups.
        low_memory: Keep no copy of the mean while the weights hold a sample: it is made of the sample and its noise, so
            that the state takes 4 bytes less per parameter (Vadam's is Adam's 8). Each time costs a rounding error of
            the weights, about ``1e-7 |theta|`` in float32, of no preferred sign; parameters of fewer bits keep their
            mean in float32. Writing to the weights while they hold a sample, other than by loading a state dict into an
            attached model, is seen by a few of their elements only. The same in all groups; a run that is loaded goes
            on with its own choice.
        seed: Of the noise; it depends on nothing else but the step, the sample and the position of the parameter.
        maximize: The loss is to be maximised (a mean log-likelihood).
        nonfinite: ``"raise"`` a ``FloatingPointError`` that names the parameter on a gradient that is not finite, and
            change nothing; or ``"skip"`` the step and count it in the groups' ``skipped_steps``.
        compile: Sample and update by one compiled kernel for all parameters on a CPU, several times faster and the
            same up to rounding. It takes a C++ compiler, and a second once on a machine for every kernel. ``None``,
            the default: wherever that can be had. ``True``: the same, with a warning where it cannot. ``False``:
            never.
        recipe: Which settings are taken where none are given: ``"learned"``, the default of Vadam, Vprop, IVON and
            VOGN, or ``"paper"``; :mod:`bayesadam.optim.recipes` says how they differ.
        **options: Those that the rule declares. Of the four that have the recipe ``"learned"``: ``batch_size``, the
            number of examples in the loss of one step, in the unit of ``num_data`` (groups may be given another for a
            smaller last batch; VOGN counts them, and needs it for the default of the temperature alone),
            ``total_steps``, over which the learning rate falls to a hundredth of itself by half a cosine if no
            scheduler does it, ``initial_steps``, the number of steps that the start counts as, and ``bridge``, which
            ties the forgetting of the start to the temperature.

    Raises:
        ValueError: A hyper-parameter out of its range, a recipe that the method does not have, both ``prior`` and
            ``prior_precision``, a trainable complex parameter, or a set of parameters, which has no order.
        TypeError: An option that the method does not have; for the names of other libraries, how it is given here.
    """

    recipes: ClassVar[Recipes] = {"paper": PAPER}
    _shared: ClassVar[tuple[str, ...]] = SHARED

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Show every argument by name, those of this class and of the rule among them."""
        super().__init_subclass__(**kwargs)
        show_signature(cls)

    def __init__(
        self,
        params: Any,
        lr: float | Tensor | None = None,
        *,
        num_data: float,
        betas: tuple[float, float] | None = None,
        prior_precision: float | str | None = None,
        prior: float | DiagonalGaussian | None = None,
        initial_precision: float | None = None,
        temperature: float | None = None,
        mc_samples: int = 1,
        antithetic: bool = False,
        rank_samples: bool = False,
        low_memory: bool = False,
        seed: int = 0,
        maximize: bool = False,
        nonfinite: str = "raise",
        compile: bool | None = None,
        recipe: str | None = None,
        **options: Any,
    ) -> None:
        check_ordered(params)
        check_options(type(self).__name__, self.rule, options)
        own = recipe_of(self.recipes, recipe)
        prior, own["prior_precision"] = prior_of(prior, prior_precision, own["prior_precision"])
        chosen: dict[str, Any] = {"lr": lr, "betas": betas, "temperature": temperature}
        own |= {name: value for name, value in chosen.items() if value is not None}
        given: dict[str, Any] = {"num_data": num_data, "initial_precision": initial_precision, "mc_samples": mc_samples}
        given |= {
            "antithetic": antithetic,
            "rank_samples": rank_samples,
            "low_memory": low_memory,
            "seed": seed,
            "maximize": maximize,
            "nonfinite": nonfinite,
        }
        declared = {option.name: option.default for option in options_of(self.rule)}
        given |= {"compile": compile, **DEFAULTS, "method": type(self).__name__}
        self.defaults = settled({**given, **declared, **own, **options})
        if temperature is None:
            self.defaults |= longer_training(self.defaults)
        if not self.has_prior:
            del self.defaults["prior_precision"]
        self._reset()
        super().__init__(params, self.defaults)
        if prior is not None:
            start_from(self._engine.store, prior)

    def check_group(self, group: dict[str, Any]) -> None:
        """Check a new group's hyper-parameters; a subclass adds its own."""
        check_common(group)
        if self.has_prior:
            check_prior(group, start_wider=self.may_start_wider)
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
            if group["rank_samples"] and is_sharded(parameter):
                self.param_groups.pop()
                raise ValueError(f"rank_samples must be False for sharded parameters, got one, number {position}")
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

    def follow(self, model: nn.Module) -> None:
        """For loops that call ``model.train()`` and ``model.eval()`` and nothing of the optimiser but ``step``.

        It is :meth:`attach`, and from now on ``model.train()`` calls :meth:`train` of this optimiser, too, and
        ``model.eval()`` calls :meth:`eval`: evaluation and prediction are at the mean. The end of the training loop is
        an ``eval()`` of either. Until the model is next set to training mode, nothing changes.

        Args:
            model: Whose parameters these are; wrappers (``DistributedDataParallel``, ``torch.compile``) may be put
                around it before or after.

        Raises:
            RuntimeError: ``mc_samples`` is not 1.
            ValueError: A perturbed parameter of this optimiser that is not the model's.
        """
        self._engine.check_drop_in()
        self.attach(model)
        modes.follow(self, model)

    def follow_mode(self, training: bool) -> None:
        """Called when a model that is followed changes its mode. Inside a sampling block it is left to the block."""
        if not self._engine.open:
            self.train(training)

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
