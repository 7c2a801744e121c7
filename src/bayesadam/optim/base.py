"""The base class of all weight-perturbed optimisers, with the three ways to train and the posterior.

A subclass adds a rule (:mod:`bayesadam.core.rule`) and the checks of its own arguments. Everything that must survive a
copy or a checkpoint is in ``param_groups`` or ``state``; the engine holds the data of an unfinished step.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesadam.checks import check_temperature
from bayesadam.core.engine import Block, Engine, uncompiled
from bayesadam.core.rule import Rule
from bayesadam.core.sampling import MEAN
from bayesadam.curvature import PerExampleSquares
from bayesadam.modules import train_mode
from bayesadam.modules.wrappers import buffers_of, names_in
from bayesadam.optim import attach, groups, priors, state_dicts
from bayesadam.optim.options import completed, signature_of
from bayesadam.posterior import DiagonalGaussian
from bayesadam.posterior.report import PER_TENSOR, PosteriorReport


class PerturbedOptimizer(Optimizer):
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
        lr: Learning rate, a number or a 1-element tensor.
        num_data: Number of training examples ``N``, or a chosen effective number.
        options: Those of :class:`~bayesadam.optim.options.CommonOptions`, and those that the rule declares.

    Raises:
        ValueError: A hyper-parameter is out of its range, a trainable parameter is complex, or the parameters are a
            set, which has no order.
        TypeError: The optimiser has no option of a name.

    Attributes:
        rule: Rule of the method.
        usual: Defaults that differ from those of :data:`~bayesadam.optim.options.DEFAULTS` or of the rule's options.
        decided: Options that a constructor decides from its other arguments, and that cannot be given.
        has_prior: Whether the method has a prior.
        may_start_wider: Whether the posterior may start wider than the prior.
        tracks_start: Whether it is known which share of the posterior's precision is the initial precision.
        cooling: Temperature of the posterior relative to that of the noise in training.
        shared: Entries that must be the same in all groups.
        watch: See ``bayesadam.core.engine.Engine``.
    """

    rule: ClassVar[Rule]
    usual: ClassVar[Mapping[str, Any]] = {}
    decided: ClassVar[tuple[str, ...]] = ()
    has_prior: ClassVar[bool] = True
    may_start_wider: ClassVar[bool] = False
    tracks_start: ClassVar[bool] = True
    cooling: ClassVar[float] = 1.0
    shared: ClassVar[tuple[str, ...]] = groups.SHARED
    watch: Callable[[], None] | None = None
    __signature__: ClassVar[Any]
    _engine: Engine
    _model: weakref.ref[nn.Module] | None = None  # the attached one
    _source: PerExampleSquares | None = None  # given by the user
    _prior: priors.Gaussians = {}  # noqa: RUF012 - replaced, never changed
    _loaded: Mapping[str, Any] | None = None  # a state dict, while it is being loaded

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if hasattr(cls, "rule"):
            cls.__signature__ = signature_of(cls)

    def __init__(self, params: Any, lr: float | Tensor = 1e-3, *, num_data: float, **options: Any) -> None:
        values = {**groups.BOOKKEEPING, **completed(self, options), "lr": lr, "num_data": num_data}
        prior = values.pop("prior", None)
        self.defaults = groups.settled({**values, "method": type(self).__name__})
        groups.check_ordered(params)
        self._engine = state_dicts.new_engine(self)
        super().__init__(params, self.defaults)
        temperature = self.param_groups[0]["temperature"] if prior is not None else 1.0
        gaussians = priors.checked(prior, self.cooling * temperature)
        priors.start(gaussians, self.param_groups, complete=True)
        self._prior = self._engine.layout.priors = gaussians

    def _take_names(self) -> nn.Module | None:
        """Use the parameter names of the attached model; return this model."""
        model = None if self._model is None else self._model()
        if model is not None:
            self._engine.layout.attached_names = names_in(model)
        return model

    def check_group(self, group: dict[str, Any]) -> None:
        """Check the hyper-parameters of a new group; subclasses add checks of their own."""
        groups.check_common(group)
        if self.has_prior:
            groups.check_prior(group, start_wider=self.may_start_wider)
        for option in self.rule.options:
            option.check(group[option.name])

    def check_added(self, group: dict[str, Any]) -> None:
        """Check the parameters of a group that was added; subclasses add checks of their own."""
        groups.check_parameters(group, self._source)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group of parameters, at any time at which the weights hold the mean.

        The noise indices of the new parameters follow those of the parameters that the optimiser already has. After
        :meth:`attach` they need no names, and get those of the model.

        Raises:
            ValueError: A hyper-parameter is out of its range or differs from the other groups though it must not, a
                trainable parameter is complex, a perturbed one does not belong to the model that ``curvature`` was made
                for, or the parameters are a set, which has no order.
            RuntimeError: The weights hold a sample.
        """
        if self.param_groups:
            self._engine.check_mean("add_param_group()")
        param_group = groups.checked(param_group, self.defaults)
        group = {**self.defaults, **param_group}
        self.check_group(group)
        groups.check_shared(group, self.param_groups, self.shared)
        model = self._take_names()
        if model is not None:
            param_group = attach.named_alike(param_group, self.param_groups, names_in(model))
        inspect.unwrap(Optimizer.add_param_group)(self, param_group)  # its wrapper imports the compiler, for seconds
        *others, added = self.param_groups
        try:
            self.check_added(added)
            priors.start(self._prior, [added], complete=False)
        except (ValueError, RuntimeError):
            self.param_groups.pop()
            raise
        groups.number(added, others)
        if model is not None:
            attach.add_hooks(self, model)

    @uncompiled
    def sampled_params(self) -> AbstractContextManager[None]:
        """Return a context in which the weights hold the next posterior sample; afterwards they hold the mean again.

        Earlier gradients are hidden inside the block. After it, ``p.grad`` is the mean gradient over the samples of
        this step so far. If an exception is raised inside, the mean is restored and the sample does not count.

        Raises:
            RuntimeError: The weights already hold a sample (after :meth:`train`), or with ``rank_samples`` there are
                more than ``mc_samples`` blocks before a step. At the end of the block: another block or a method that
                needs the mean was called inside, or ``loss.backward()`` was called though the method takes second
                derivatives.

        Warns:
            UserWarning: There are more than ``mc_samples`` blocks before a step, as where a cell of a notebook was
                interrupted and is run again. With one sample per step the new one takes the place of the one before;
                otherwise all are averaged.
        """
        return Block(self._engine)

    @uncompiled
    def train(self, mode: bool = True) -> None:
        """Start drop-in training: the weights hold a posterior sample, a new one after every step.

        Groups and parameters are read now. Until :meth:`eval`, parameters, ``requires_grad`` and what decides the width
        of the posterior must not change. Calling it again changes nothing, except that it rebuilds the sample if a
        checkpoint was loaded in between.

        Raises:
            RuntimeError: ``mc_samples`` is not 1, or the method was called between a block and its step.

        Warns:
            UserWarning: Weights that held a sample were modified externally; their present values become the mean.
        """
        others = self._engine.train() if mode else self._engine.eval()
        if others:
            attach.warn_of_other_values(self._engine.layout.name_of(others[0]))

    @uncompiled
    def eval(self) -> None:
        """End drop-in training, so that the weights hold the mean.

        Warns:
            UserWarning: Weights that held a sample were modified externally; their present values become the mean.
        """
        self.train(False)

    @uncompiled
    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients. Outside a block this also discards the samples collected for the next step."""
        super().zero_grad(set_to_none)
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

        An exception before the update changes nothing. One that a signal raises during the update, such as Ctrl-C, may
        leave it made for some parameters only, as in ``torch.optim``; the next call puts right what the weights hold.

        Args:
            closure: Function that clears the gradients, computes the mean loss, calls ``backward`` and returns the
                loss. It is called once for each of ``mc_samples`` samples (after :meth:`train`, once at the current
                sample). For methods that take second derivatives it must not call ``backward``.

        Returns:
            The loss that the closure returned, averaged over the samples, or ``None`` without a closure.

        Raises:
            RuntimeError: Fewer than ``mc_samples`` samples were drawn, the closure gives no gradient or does not clear
                those of before, a gradient is sparse or comes without the curvature that the method needs, or
                parameters, their memory or widths have changed while weights hold a sample.
            FloatingPointError: With ``nonfinite="raise"``, a gradient or a curvature is not finite or a precision would
                not stay positive. Parameters and state have not changed; samples from blocks are discarded.
            ValueError: The closure's loss is a sum where a mean was announced, or the reverse.
            TypeError: The closure returned no loss to a method that differentiates it.
        """
        if closure is not None:
            return self._engine.step_with(closure)
        self._engine.step()
        return None

    @uncompiled
    @torch.inference_mode(False)
    @torch.no_grad()
    def prepare_replay(self) -> None:
        """Prepare the next step of a CUDA graph in which :meth:`step` was captured, before every ``graph.replay()``.

        It is a step without kernels: rates, counters and noise of the next step are computed as usual, and brought to
        the device in one upload, without waiting for it. Capture drop-in training, after a few steps without a graph;
        what is captured does not count as a step.

        Raises:
            RuntimeError: The weights do not hold a sample, or there are no kernels of a GPU for them.
        """
        self._engine.prepare_replay()

    @torch.no_grad()
    def posterior(self, model: nn.Module | None = None, *, temperature: float | None = None) -> DiagonalGaussian:
        """Return the current posterior, with copies of means and variances of the full tensors in float32 or wider.

        Args:
            model: Module from which the parameters' names and the buffers are taken; default: the one that
                :meth:`attach` was given. Without either, the posterior has no buffers, and the names are those that the
                optimiser was constructed with. Parameters that do not belong to the model are left out; only groups
                with ``perturb=False`` (a learned noise level) or with another seed may have them. The running
                statistics of batch norm are averages over the samples of training;
                :func:`bayesadam.predictive.with_batch_norm` computes those of the mean.
            temperature: That of the widths, in (0, 1]; 1 for those of Bayes' rule, after a training at temperature 1.
                The default is what the method predicts labels by.

        Raises:
            RuntimeError: The names of the parameters are not known, or two parameters have the same name.
            ValueError: A perturbed parameter of the model's seed does not belong to the model, or the temperature is
                out of its range.
        """
        layout, reported = self._engine.layout, dict[str, Any](method=type(self).__name__)
        group = layout.group_of(model)
        for name in groups.REPORTED:
            if name in group:
                reported[name] = group[name]
        in_training = None
        if temperature is not None:
            check_temperature(temperature, zero=False)
            in_training = temperature / self.cooling
        sampled, tracks_start = self._engine.weights.flats, self.tracks_start
        means, variances, origins, in_training = layout.read(
            model, sampled, tracks_start=tracks_start, temperature=in_training
        )
        reported["temperature"] = self.cooling * in_training
        posterior = DiagonalGaussian(means, variances, hyperparameters={**reported, PER_TENSOR: origins})
        model = self._take_names() if model is None else model
        posterior.buffers = posterior.buffers if model is None else buffers_of(model)
        return posterior

    def report(self, model: nn.Module | None = None) -> PosteriorReport:
        """Report what the posterior has learned: ``posterior(model).report()``, with the number of steps so far."""
        steps = max((int(state["step"]) for state in self.state.values() if "step" in state), default=0)
        return replace(self.posterior(model).report(), steps=steps)

    def attach(self, model: nn.Module) -> None:
        """Make ``model.state_dict()`` always return the mean, and take the parameters' names from the model.

        The same holds for its submodules, a module that it wraps (``ddp.module``) and modules that wrap it. Loading a
        state dict sets the mean and rebuilds the sample if the weights hold one. Copies and pickles of model and
        optimiser together are attached to each other, too. No number of a training changes.

        Raises:
            ValueError: A perturbed parameter of this optimiser does not belong to the model; nothing is attached.

        Warns:
            UserWarning: Another optimiser is attached to the model and perturbs other parameters of it with the same
                ``seed``, and so by the same noise.
        """
        attach.join(self, model)
        self._model = weakref.ref(model)
        self._take_names()

    def follow(self, model: nn.Module) -> None:
        """Switch between sample and mean whenever the model is set to training or evaluation mode.

        This is for training loops that call nothing of the optimiser but ``step()``. It calls :meth:`attach`; from then
        on ``model.train()`` also calls :meth:`train` of this optimiser and ``model.eval()`` calls :meth:`eval`, so that
        evaluation and prediction use the mean. Call ``eval()`` of either at the end of the training, and
        :meth:`unfollow` before an optimiser of another library trains the model. Another optimiser of this library that
        follows some of the same parameters puts its mean into the weights and no longer follows the model. The weights
        first change when the model is next set to training mode.

        Args:
            model: The module that has the parameters. It may be wrapped (``DistributedDataParallel``,
                ``torch.compile``) before or after this call.

        Raises:
            RuntimeError: ``mc_samples`` is not 1.
            ValueError: A perturbed parameter of this optimiser does not belong to the model.
        """
        self._engine.check_drop_in()
        self.attach(model)
        for other in attach.competitors(self, model):
            other.unfollow(model)
        train_mode.follow(self, model)

    def unfollow(self, model: nn.Module) -> None:
        """Put the mean into the weights, and end what :meth:`follow` began; state dicts hold the mean as before."""
        self.eval()
        train_mode.unfollow(self, model)

    def follow_mode(self, training: bool) -> None:
        """Train or evaluate as a followed model does; inside a sampling block nothing is changed."""
        if self._engine.opened is None:
            self.train(training)

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dict, as in ``torch.optim``; it holds the mean whether or not weights hold a sample.

        Warns:
            UserWarning: The weights hold a sample and no model is attached, so ``model.state_dict()`` at this moment
                would save the sample.
        """
        if self._engine.weights.held != MEAN and self._model is None:
            attach.warn_of_sample()
        return super().state_dict()

    @torch.inference_mode(False)
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict; the training then continues bit-identically, whether model or optimiser is loaded first.

        Hooks (``register_load_state_dict_pre_hook``) run first, and their result is checked and loaded.

        Raises:
            ValueError: The state dict is of another optimiser, or of other parameters or the same in another order;
                nothing has changed.
            RuntimeError: The method was called inside a sampling block.
        """
        self._engine.end_block("load_state_dict()")
        with state_dicts.loading(self):
            super().load_state_dict(state_dict)  # which calls __setstate__

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, with the attached model, so that copies of both are attached, too."""
        return {**super().__getstate__(), **state_dicts.companions(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy or a pickle and rebuild the engine, which is not part of it; or accept the groups and the
        state of a state dict that is being loaded.
        """
        model = state.pop("_attached", None)
        super().__setstate__(state)
        if self._loaded is not None:
            state_dicts.take(self, self._loaded)
            return
        state_dicts.rebuild(self, copied=True)
        if model is not None and "_modules" in vars(model):  # not while a model that holds this optimiser is copied
            self.attach(model)
