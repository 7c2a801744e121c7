"""The base class of all weight-perturbed optimisers, with the three ways to train, the posterior and checkpoints.

A subclass adds a rule (:mod:`bayesadam.engine.rule`) and the checks of its own arguments. Everything that must survive
a copy or a checkpoint is in ``param_groups`` or ``state``; the engine holds the data of an unfinished step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesadam.engine.graph_breaks import uncompiled
from bayesadam.engine.rule import options_of
from bayesadam.optim import attachment, hyperparameters
from bayesadam.optim.continuation import continued
from bayesadam.optim.correlated_prior import correlated
from bayesadam.optim.hyperparameters import SHARED, Continued
from bayesadam.optim.readable import Readable
from bayesadam.optim.recipes import PAPER, Recipes, Sizes, recipe_of
from bayesadam.optim.signatures import show_signature
from bayesadam.optim.translations import check_foreign
from bayesadam.posterior import DiagonalGaussian


class PerturbedOptimizer(Readable):
    """Base class of the optimisers that learn the mean and the precision of a Gaussian posterior over the weights.

    The loss is the *mean* negative log-likelihood over the minibatch. The update rule adds the prior, so the loss must
    not contain it. There are three ways to train; for the same seed they give the same result::

        for _ in range(mc_samples):                       # 1. explicit blocks
            with opt.sampled_params():                    #    inside, the weights are one posterior sample
                loss_fn(model(x), y).backward()
        opt.step()

        opt.step(closure)                                 # 2. the closure is called once per sample

        opt.train()                                       # 3. drop-in: the weights hold a sample while training,
        ...                                               #    and any training loop runs unchanged
        opt.eval()                                        #    the weights hold the mean again

    Args:
        params: Parameters, named parameters, or groups of either. A group may set hyper-parameters of its own, and
            ``perturb=False`` for parameters that are trained without noise (norm layers, a learned noise level): those
            keep the prior of their group and have posterior variance 0.
        lr: Learning rate, a number or a 1-element tensor. The recipe gives the default, as it does for ``betas``,
            ``prior_precision``, ``temperature`` and the options of the rule.
        num_data: Number of training examples ``N``, or a chosen effective number.
        betas: Decay rates of the running averages of the gradient and of the curvature, each in [0, 1).
        prior_precision: Precision of the prior ``N(0, 1 / prior_precision)``. With ``"init"`` each parameter tensor
            has its own prior, with ten times the variance of its initial values (rounded to a power of two; if the
            values are all equal, their variance is taken as 1). Groups may change it; from a number to ``"init"`` only
            before training begins.
        prior: A posterior to continue from, instead of ``prior_precision``; it becomes the prior, and the mean starts
            at its mean, also for frozen parameters and for groups that are added later. It needs named parameters. It
            may be a :class:`DiagonalGaussian`, or a :class:`KroneckerGaussian` or :class:`DenseGaussian`: then its
            correlations count in the gradient of the prior, and its conditional precisions in that of the widths. (A
            checkpoint does not hold such a prior; give it again.) A number is the same as ``prior_precision``.
        initial_precision: Posterior precision at the start, at least ``prior_precision`` (for Bayes by Backprop,
            which trains the widths like the means, it may be smaller). The default is
            ``max(num_data, prior_precision)``, or with ``bridge=False`` ``prior_precision + 0.1 num_data /
            temperature``. A network that starts at the prior's precision hardly trains.
        temperature: Factor of the KL divergence in the objective, in [0, 1]: 1 is variational inference, 0
            variational optimisation (Khan et al. 2018, eq. 22). With the recipe ``"learned"``, if ``batch_size`` and
            ``total_steps`` are given, the default is higher for more than 30 epochs (:mod:`bayesadam.optim.recipes`).
        mc_samples: Number of posterior samples per step. It must be the same in all groups, as must ``antithetic``,
            ``rank_samples``, ``low_memory``, ``seed``, ``nonfinite`` and ``compile``.
        antithetic: Whether to draw samples in pairs ``+eps, -eps``; ``mc_samples`` must then be even.
        rank_samples: Whether every rank of a data-parallel job draws its own sample. By default all ranks draw the same
            one, and shards their slices of it. With it, ``world_size`` ranks make a step of ``world_size * mc_samples``
            samples at the cost of ``mc_samples``; up to rounding, the result is that of one process in which each
            sample sees the data of its rank. This takes 8 more bytes per parameter for the curvature. It is refused
            for sharded parameters, ``hessian="exact"`` and a full covariance.
        low_memory: Whether to keep no copy of the mean while the weights hold a sample. The mean is then recomputed
            from the sample and its noise, and the state takes 4 bytes less per parameter (Vadam then needs 8, as Adam
            does). Each recomputation adds a rounding error of about ``1e-7 |theta|`` in float32, without bias;
            parameters with fewer bits keep their mean in float32. If the weights are modified while they hold a
            sample, other than by loading a state dict into an attached model, the change may go unnoticed, since only
            a few elements are checked. Loading a checkpoint does not change it.
        seed: Seed of the noise, which otherwise depends only on the step, the sample and the position of the
            parameter. Two optimisers of one model need different seeds, or their samples are correlated.
        maximize: Whether the loss is to be maximised (a mean log-likelihood).
        nonfinite: What to do when a gradient is not finite: ``"raise"`` a ``FloatingPointError`` that names the
            parameter and change nothing, or ``"skip"`` the step and count it in ``skipped_steps`` of the groups.
        compile: Whether to sample and update all parameters on a CPU in one compiled kernel, which is several times
            faster, equal up to rounding, and compiled once per machine in about a second. ``None``, the default, does
            so if there is a C++ compiler; ``True`` does the same and warns if there is none; ``False`` never compiles.
        recipe: Name of the default settings: ``"learned"``, the default of Vadam, Vprop, IVON and VOGN, or
            ``"paper"``. :mod:`bayesadam.optim.recipes` says how they differ.
        **options: Options that the rule declares. The methods that have the recipe ``"learned"`` share four:
            ``batch_size``, the number of examples in the loss of one step, in the unit of ``num_data`` (groups may
            change it for a smaller last batch; VOGN uses it only for the default temperature); ``total_steps``, the
            number of steps over which the learning rate falls to a hundredth by half a cosine, until something else
            changes ``lr`` (with ``ReduceLROnPlateau``, which does so late, leave it out); ``initial_steps``, the number
            of steps that the initial precision counts as; and ``bridge``, which ties the rate at which the initial
            precision is forgotten to the temperature.

    Raises:
        ValueError: A hyper-parameter is out of its range, the method does not have the recipe, both ``prior`` and
            ``prior_precision`` are given, a trainable parameter is complex, or the parameters are a set, which has no
            order.
        TypeError: The method does not have an option; for other libraries' names the message says what to use here.
    """

    recipes: ClassVar[Recipes] = {"paper": PAPER}
    _shared: ClassVar[tuple[str, ...]] = SHARED

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give the subclass a signature that names every argument, with those of its bases and of its rule."""
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
        prior: float | Continued | None = None,
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
        params = hyperparameters.listed(params)
        hyperparameters.check_options(type(self).__name__, self.rule, options)
        prior, prior_precision = hyperparameters.prior_of(prior, prior_precision)
        from_recipe = {"lr": lr, "betas": betas, "prior_precision": prior_precision, "temperature": temperature}
        given: dict[str, Any] = {"num_data": num_data, "initial_precision": initial_precision, "mc_samples": mc_samples}
        given |= {"antithetic": antithetic, "rank_samples": rank_samples, "low_memory": low_memory, "seed": seed}
        given |= {"maximize": maximize, "nonfinite": nonfinite, "compile": compile, "method": type(self).__name__}
        sizes = Sizes(hyperparameters.count_weights(params), num_data, options.get("batch_size"))
        own = recipe_of(self.recipes, recipe, sizes)
        self.defaults = hyperparameters.defaults_of(self.rule, own, from_recipe, given, options)
        if not self.has_prior:
            del self.defaults["prior_precision"]
        if not isinstance(prior, DiagonalGaussian | None):
            self.defaults |= correlated(options)
        self._reset()
        super().__init__(params, self.defaults)
        if prior is not None:
            self._prior, self._continuation = continued(self._engine.store, prior)

    def check_group(self, group: dict[str, Any]) -> None:
        """Check the hyper-parameters of a new group; subclasses add checks of their own."""
        hyperparameters.check_common(group)
        if self.has_prior:
            hyperparameters.check_prior(group, start_wider=self.may_start_wider)
        for option in options_of(self.rule):
            option.check(group[option.name])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, at any time except inside a sampling block.

        The noise indices of the new parameters follow those of the parameters that the optimiser already has.

        Raises:
            ValueError: A hyper-parameter is out of its range or differs from the other groups though it must not, a
                trainable parameter is complex, or the parameters are a set, which has no order.
            TypeError: The group has a hyper-parameter of another library, such as ``weight_decay``.
            RuntimeError: The method was called inside a sampling block.
        """
        self._engine.refuse_inside("add_param_group")
        hyperparameters.check_ordered(param_group["params"])
        check_foreign(param_group, self.defaults)
        known = {name: value for name, value in param_group.items() if name in self.defaults}
        param_group = {**param_group, **hyperparameters.settled(known)}
        group = {**self.defaults, **param_group}
        self.check_group(group)
        hyperparameters.check_shared(group, self.param_groups, self._shared)
        super().add_param_group(param_group)
        try:
            hyperparameters.check_parameters(self.param_groups[-1])
            if self._continuation is not None:
                self._continuation.take_group(self.param_groups[-1])
        except ValueError:
            self.param_groups.pop()
            raise
        self._engine.take_group()

    @uncompiled
    def sampled_params(self) -> AbstractContextManager[None]:
        """Return a context in which the weights hold the next posterior sample; afterwards they hold the mean again.

        Earlier gradients are hidden inside the block. After it, ``p.grad`` is the mean gradient over the samples of
        this step so far. If an exception is raised inside, the mean is restored and the sample does not count.

        Raises:
            RuntimeError: Blocks are nested, there are more than ``mc_samples`` blocks before a step, or the weights
                already hold a sample (after :meth:`train`). At the end of the block: ``loss.backward()`` was called
                though the method takes second derivatives.
        """
        if self._counted is not None and self._engine.gradients.collected in (0, self.param_groups[0]["mc_samples"]):
            self._counted.discard()  # the passes of a step that was skipped, or of a block that failed
        return self._engine.block()

    @uncompiled
    def train(self, mode: bool = True) -> None:
        """Start drop-in training: from now on the weights hold a posterior sample, a new one after every step.

        Calling it again changes nothing, except that it rebuilds the sample if a checkpoint was loaded in between.

        Raises:
            RuntimeError: ``mc_samples`` is not 1, the method was called inside a block or between a block and its
                step, or the weights were modified externally while they held a sample.
        """
        if mode:
            self._engine.train()
        else:
            self.eval()

    @uncompiled
    def eval(self) -> None:
        """End drop-in training, so that the weights hold the mean. Calling it again changes nothing.

        Raises:
            RuntimeError: The method was called inside a sampling block.

        Warns:
            UserWarning: Weights that held a sample were modified externally; their present values become the mean.
        """
        others = self._engine.eval()
        if others:
            attachment.warn_of_other_values(self._engine.store.name_of(others[0]))

    @uncompiled
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Outside a block this also discards the samples collected for the next step."""
        super().zero_grad(set_to_none)
        if self._counted is not None and not self._engine.open:
            self._counted.discard()
        self._engine.cleared()

    def backward(self, loss: Tensor) -> None:
        """Backpropagate a loss inside a sampling block, with the second derivatives that the method needs.

        Methods that take second derivatives need this call in place of ``loss.backward()``; they then give gradients
        to the parameters of this optimiser only. For all other methods it is the same as ``loss.backward()``. VOGN
        also checks that the loss is a mean or a sum over examples, as its ``curvature`` was told.

        Raises:
            RuntimeError: The weights hold the mean, or ``loss.backward()`` was called before though the method takes
                second derivatives.
            ValueError: The loss is a sum where a mean was announced, or the reverse.
        """
        self._engine.backward(loss)

    @uncompiled
    @torch.inference_mode(False)
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update the posterior from the gradients at its samples.

        An update that has begun is completed: an exception in between, such as an interrupt, is raised again when the
        update is done. An exception before the update changes nothing. Only after a second interrupt, before the first
        is raised again, may parameters be a step apart, or the weights hold a block's sample until the next call.

        Args:
            closure: Function that clears the gradients, computes the mean loss, calls ``backward`` and returns the
                loss. It is called once for each of ``mc_samples`` samples (after :meth:`train`, once at the current
                sample). For methods that take second derivatives it must not call ``backward``. If it does not clear
                the gradients, new gradients are added to the old ones.

        Returns:
            The loss that the closure returned, averaged over the samples, or ``None`` without a closure.

        Raises:
            RuntimeError: The number of samples drawn is not ``mc_samples``, or a gradient is sparse or comes without
                the curvature that the method needs.
            FloatingPointError: With ``nonfinite="raise"``, a gradient or a curvature is not finite or a precision would
                not stay positive. Parameters and state have not changed; samples from blocks are discarded.
            ValueError: The closure's loss is a sum where a mean was announced, or the reverse.
            TypeError: The closure returned no loss to a method that differentiates it.
        """
        self._engine.refuse_inside("step()")
        if self._prior is not None:
            self._prior.follow(self._engine.store, self._center)
        if self._counted is None:
            return self._engine.step(closure)
        if closure is not None:
            return self._engine.step(self._counted.counting(closure))
        self._counted.take_step()
        return self._engine.step()


show_signature(PerturbedOptimizer)
