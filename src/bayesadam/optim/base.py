"""The base class of all weight-perturbed optimisers, with the three ways to train and the posterior.

A subclass adds a rule (:mod:`bayesadam.core.rule`) and the checks of its own arguments. Everything that must survive a
copy or a checkpoint is in ``param_groups`` or ``state``; the engine holds the data of an unfinished step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from bayesadam.core.engine import Block, uncompiled
from bayesadam.core.flat import Flat
from bayesadam.core.passes import followed
from bayesadam.core.rule import Hyper
from bayesadam.core.sampling import MEAN
from bayesadam.modules.fsdp import spread
from bayesadam.modules.sharding import local
from bayesadam.modules.wrappers import buffers_of, innermost, names_in
from bayesadam.optim import attach, groups, priors
from bayesadam.optim.checkpoint import Checkpointed
from bayesadam.posterior import DiagonalGaussian
from bayesadam.posterior.report import PER_TENSOR, PosteriorReport

Prior: TypeAlias = DiagonalGaussian
"""The kind of posterior that an optimiser can continue from."""


class PerturbedOptimizer(Checkpointed):
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
        betas: Decay rates of the running averages of the gradient and of the curvature, each in [0, 1).
        prior_precision: Precision of the prior ``N(0, 1 / prior_precision)``.
        prior: A posterior to continue from, in place of ``prior_precision``; it becomes the prior, and the mean starts
            at its mean, also for frozen parameters and for groups that are added later. If it has another temperature,
            its variances are changed in proportion, so that the examples behind it count as much as new ones. It needs
            named parameters.
        initial_precision: Posterior precision at the start, at least ``prior_precision`` (for Bayes by Backprop, which
            trains the widths like the means, it may be smaller). The default is ``max(num_data, prior_precision)``,
            since a network that starts at the prior's precision hardly trains.
        temperature: Factor of the KL divergence in the objective, in [0, 1]: 1 is variational inference, 0
            variational optimisation (Khan et al. 2018, eq. 22).
        mc_samples: Number of posterior samples per step. It must be the same in all groups, as must ``antithetic``,
            ``rank_samples``, ``seed``, ``nonfinite`` and ``compile``.
        antithetic: Whether to draw samples in pairs ``+eps, -eps``; ``mc_samples`` must then be even.
        rank_samples: Whether every process of a data-parallel job draws its own sample. By default all draw the same
            one, and shards their slices of it. With it, the backward pass must be run under ``no_sync()``; gradients
            and curvatures of all samples are then averaged over the processes at the step, or at the end of its last
            block. It is refused for sharded parameters and second derivatives.
        seed: Seed of the noise, which otherwise depends only on the step, the sample and the position of the
            parameter. Two optimisers of one model need different seeds, or their samples are correlated.
        maximize: Whether the loss is to be maximised (a mean log-likelihood).
        nonfinite: What to do when a gradient is not finite: ``"raise"`` a ``FloatingPointError`` that names the
            parameter and change nothing, or ``"skip"`` the step and count it in ``skipped_steps`` of the groups.
        compile: Whether to sample and update all parameters in one compiled kernel, which is several times faster on a
            CPU, equal up to rounding, and compiled once per machine in about a second. Where there is no kernel (no
            C++ compiler, another dtype, a rule that it cannot run), one warning gives the reason, and PyTorch's
            operations are used.
        options: Options that the rule of a subclass declares, by name; a constructor of its own may pass them on.

    Raises:
        ValueError: A hyper-parameter is out of its range, a trainable parameter is complex, or the parameters are a
            set, which has no order.
        TypeError: The rule does not declare an option.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        *,
        num_data: float,
        betas: tuple[float, float] = (0.9, 0.999),
        prior_precision: float | str = 1.0,
        prior: Prior | None = None,
        initial_precision: float | None = None,
        temperature: float = 1.0,
        mc_samples: int = 1,
        antithetic: bool = False,
        rank_samples: bool = False,
        seed: int = 0,
        maximize: bool = False,
        nonfinite: str = "raise",
        compile: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._set_up(locals())

    def _set_up(self, arguments: Mapping[str, Any]) -> None:
        """Initialise from a constructor's arguments by name, among which are options that the rule declares."""
        declared = {option.name: option.default for option in self.rule.options}
        others = ("self", "params", "prior", "curvature", "options", *(() if self.has_prior else ("prior_precision",)))
        given = {name: value for name, value in arguments.items() if name not in others}
        for name, value in (arguments.get("options") or {}).items():
            if name not in declared:
                raise TypeError(
                    f"{name} must be an option of {type(self).__name__}, which declares {list(declared)}, got {value!r}"
                )
            given[name] = value
        given["method"] = type(self).__name__
        self.defaults = groups.settled({**groups.BOOKKEEPING, **declared, **given})
        groups.check_ordered(arguments["params"])
        self._reset()
        super().__init__(arguments["params"], self.defaults)
        gaussians = priors.checked(arguments.get("prior"), self._reported().get("temperature"))
        priors.start(gaussians, self.param_groups, complete=True)
        self._prior = self._engine.layout.priors = gaussians

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

        The noise indices of the new parameters follow those of the parameters that the optimiser already has.

        Raises:
            ValueError: A hyper-parameter is out of its range or differs from the other groups though it must not, a
                trainable parameter is complex, a perturbed one does not belong to the model that ``curvature`` was made
                for, or the parameters are a set, which has no order.
            RuntimeError: The weights hold a sample.
        """
        if self.param_groups:
            self._engine.end_block("add_param_group()")
        if self.param_groups and self._engine.weights.held != MEAN:
            raise RuntimeError("add_param_group() must be called when the weights hold the mean: call eval() first")
        groups.check_ordered(param_group["params"])
        groups.check_effective(param_group, self.defaults)
        settings = {name: value for name, value in param_group.items() if name in self.defaults}
        param_group = {**param_group, **groups.settled(settings)}
        group = {**self.defaults, **param_group}
        self.check_group(group)
        groups.check_shared(group, self.param_groups, self.shared)
        super().add_param_group(param_group)
        added = self.param_groups[-1]
        try:
            self.check_added(added)
            priors.start(self._prior, [added], complete=False)
        except (ValueError, RuntimeError):
            self.param_groups.pop()
            raise
        *others, _ = self.param_groups
        added["noise_index"] = sum(len(other["params"]) for other in others)
        for name in groups.COUNTED if others else ():
            added[name] = others[0][name]
        if any("initial_lr" in other for other in others):
            added.setdefault("initial_lr", added["lr"])  # a scheduler of PyTorch changes the rate of this group, too

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
        """Start drop-in training: from now on the weights hold a posterior sample, a new one after every step.

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
        """End drop-in training, so that the weights hold the mean. Calling it again changes nothing.

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
    def posterior(self, model: nn.Module | None = None) -> DiagonalGaussian:
        """Return the current posterior, with copies of means and variances of the full tensors in float32 or wider.

        Args:
            model: Module from which the parameters' names and the buffers are taken; default: the one that
                :meth:`attach` was given. Without either, the posterior has no buffers, and the names are those that the
                optimiser was constructed with. Parameters that do not belong to the model are left out; only groups
                with ``perturb=False`` may have them (a learned noise level). The running statistics of batch norm are
                averages over the samples of training; :func:`bayesadam.predictive.with_batch_norm` computes those of
                the mean.

        Returns:
            The posterior.

        Raises:
            RuntimeError: The names of the parameters are not known, or two parameters have the same name.
            ValueError: A perturbed parameter does not belong to the model.
        """
        covered = self._covered(model)
        hypers = self._engine.layout.hypers(list(covered.values()))
        means, variances = {}, {}
        for (name, (flat, number)), hyper in zip(covered.items(), hypers, strict=True):
            mean, weights = flat.part("mean", number), flat.parameters[number].detach()
            if flat.is_sharded:
                weights = local(weights)
            if flat not in self._engine.weights.flats:  # the weights hold the mean
                mean = weights if mean.dtype == weights.dtype else followed(mean, weights)
            means[name] = flat.whole(mean.clone(), number)
            variances[name] = flat.whole(flat.variance(self.rule, number, hyper), number)
        origins = self._origins(covered, variances, hypers)
        posterior = DiagonalGaussian(means, variances, hyperparameters={**self._reported(), PER_TENSOR: origins})
        model = self._take_names() if model is None else model
        if model is not None:
            posterior.buffers = buffers_of(model)
        return posterior

    def report(self, model: nn.Module | None = None) -> PosteriorReport:
        """Report what the posterior has learned, for each tensor: the widths, and the share of the start in them.

        It is ``posterior(model).report()`` with the number of steps made so far; arguments and errors are those of
        :meth:`posterior`.
        """
        steps = max((int(state["step"]) for state in self.state.values() if "step" in state), default=0)
        return replace(self.posterior(model).report(), steps=steps)

    def _covered(self, model: nn.Module | None) -> dict[str, tuple[Flat, int]]:
        """Flat and number in it of every parameter that the posterior covers, by name and in order."""
        layout = self._engine.layout
        places = layout.places()
        if model is not None and layout.is_sharded:
            spread(innermost(model))
        names = layout.names() if model is None else names_in(model)
        covered: dict[str, tuple[Flat, int]] = {}
        for parameter, group, _ in layout.members():
            if parameter not in names and group["perturb"]:
                if model is not None:
                    raise attach.not_in_model(layout, parameter)
                if parameter in places:
                    raise RuntimeError(
                        "posterior() must know the parameters' names: give it the model, construct the optimiser from "
                        "model.named_parameters(), or call attach(model)"
                    )
            if parameter in names and parameter in places:
                name = names[parameter]
                if name in covered:
                    raise RuntimeError(
                        f"posterior() must know parameters by different names, got {name!r} twice: take the names of "
                        "all parameters from one module that contains them, or give it the model"
                    )
                covered[name] = places[parameter]
        return covered

    def _origins(
        self, covered: Mapping[str, tuple[Flat, int]], variances: Mapping[str, Tensor], hypers: Sequence[Hyper]
    ) -> dict[str, dict[str, Any]]:
        """Share of the initial precision in that of each noisy tensor, and its prior precision, averaged over weights.

        The share is ``B (initial_precision - lambda) sigma^2``, where ``B`` is the weight of the start in the running
        curvature. A device is waited for once.
        """
        names, averages = [], list[Tensor]()
        for (name, (flat, number)), hp in zip(covered.items(), hypers, strict=True):
            if not flat.kind.perturb:
                continue
            variance = variances[name]
            prior = hp.prior_precision * (hp.temperature > 0) if self.has_prior else 0.0
            start = hp.initial_weight * (hp.initial_precision - prior)
            if isinstance(start, Tensor):  # each weight has its own
                start = flat.whole(start.double(), number)
            if isinstance(prior, Tensor):
                prior = flat.whole(prior, number)
                prior = (prior * variance).sum() / variance.sum()
            share = (start * variance).clamp(0.0, 1.0).mean()
            names.append(name)
            for value in (share, prior if isinstance(prior, Tensor) else torch.full_like(share, prior)):
                averages.append(value.to(averages[0]) if averages else value)
        origins: dict[str, dict[str, Any]] = {}
        read = torch.stack(averages).tolist() if averages else []
        for name, share, prior in zip(names, read[::2], read[1::2], strict=True):
            origins[name] = {"start_share": share if self.tracks_start else None, "prior_precision": prior}
        return origins

    def _reported(self) -> dict[str, Any]:
        """What a posterior says of its training, besides the tensors."""
        reported: dict[str, Any] = {"method": type(self).__name__}
        for name in ("num_data", "prior_precision", "temperature", "seed"):
            if name in self.param_groups[0]:
                reported[name] = self.param_groups[0][name]
        if "temperature" in reported:
            reported["temperature"] = self.cooling * reported["temperature"]
        return reported
