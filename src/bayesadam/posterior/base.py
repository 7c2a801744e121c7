"""The base class of posteriors: matching them with a network, drawing samples, saving and loading."""

from __future__ import annotations

import abc
import copy
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from bayesadam import files
from bayesadam.checks import check, truths
from bayesadam.modules.exclusive import exclusively, matching_buffers, matching_parameters
from bayesadam.modules.fsdp import Write, unsharded, writing_parts
from bayesadam.modules.padding import padding_rows
from bayesadam.modules.sharding import local
from bayesadam.modules.train_mode import quietly
from bayesadam.native.memory import PLAIN
from bayesadam.posterior.distribution import NetworkDistribution

Self = TypeVar("Self", bound="Posterior")
_VERSION = attrgetter("_version")
_BUFFERS = "buffers/"
"""Beginning of the keys of buffers among the tensors that are saved."""


class Posterior(NetworkDistribution):
    """Base class of distributions over named weights.

    A subclass draws its samples in :meth:`writer`. It keeps all that it is made of in :meth:`tensors` and
    ``hyperparameters``, since copies such as :meth:`scaled` are made by :meth:`from_tensors`.

    A posterior keeps the tensors that it is made of and does not copy them. They may be those of a network: predictions
    and :meth:`applied` leave them unchanged, but training the network further changes the posterior.

    Attributes:
        mean: Mean of every weight tensor, by the name that ``named_parameters()`` gives it.
        variance: Variance of every weight, by the names of ``mean``.
        hyperparameters: How the posterior was found, as plain JSON values, for people and for reports.
        buffers: Tensors of the network that are no parameters, such as the running statistics of batch norm, by the
            name that ``named_buffers()`` gives them. They are the same in all samples, are saved with the posterior,
            and are put into a network together with the weights. A mixture has none; its components have them.
        parts: Names of the attributes with tensors by name that a posterior of the class is made of, in the order of
            the constructor's arguments.
    """

    mean: dict[str, Tensor]
    variance: dict[str, Tensor]
    hyperparameters: dict[str, Any]
    buffers: Mapping[str, Tensor] = MappingProxyType({})
    parts: ClassVar[tuple[str, ...]] = ()
    _latest_random: tuple[list[int] | None, list[Tensor], tuple[str, ...]] = (None, [], ())

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = ("sample", "writer", "_samples")
        samples, writes, draws = (next(c for c in cls.__mro__ if name in vars(c)) for name in names)
        if samples not in writes.__mro__:  # issubclass would cache its result with the base class, as cls is not ready
            raise TypeError(
                f"{cls.__name__} must define writer, by which predictions and mixtures draw samples, got sample alone"
            )
        if writes not in draws.__mro__:  # a base class would draw the samples of another writer
            cls._samples = Posterior._samples  # type: ignore[method-assign]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self.mean)} tensors, {self.num_weights:,} weights)"

    @property
    def num_weights(self) -> int:
        """Number of weights, including point masses."""
        return sum(mean.numel() for mean in self.mean.values())

    @property
    def shapes(self) -> dict[str, torch.Size]:
        """Shape of every weight tensor by name."""
        return {name: mean.shape for name, mean in self.mean.items()}

    def sample(self, count: int, *, seed: int = 0, first: int = 0) -> dict[str, Tensor]:
        """Draw samples number ``first`` to ``first + count - 1``; each tensor has a leading axis of ``count``.

        Sample ``i`` depends on ``(seed, i)`` only. It does not depend on ``count``, on earlier draws or on a global
        generator.

        Raises:
            ValueError: ``count`` is below 1, or a seed or number is out of the range of :func:`bayesadam.noise.normal`.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count!r}")
        return self._samples(count, seed, first)

    def _samples(self, count: int, seed: int, first: int) -> dict[str, Tensor]:
        """The result of :meth:`sample`, for a count that was checked."""
        draws = {name: mean.new_empty((count, *mean.shape)) for name, mean in self.mean.items()}
        write = self.writer(seed)
        for i in range(count):
            write({name: draw[i] for name, draw in draws.items()}, first + i)
        return draws

    def repeats(self, count: int) -> list[int]:
        """The numbers of the first equal samples, as in the base class; without variance all samples are equal."""
        return list(range(count)) if self.random_names else [0] * count

    @property
    def random_names(self) -> tuple[str, ...]:
        """Names of the tensors whose variance is not 0 everywhere. A device is waited for once for all of them, and not
        again until a tensor changes.
        """
        values = list(self.variance.values())
        counted = not any(map(Tensor.is_inference, values))  # the changes of others are not
        versions = [*map(id, values), *map(_VERSION, values)] if counted else None
        latest, _, names = self._latest_random  # together, since another thread may replace them
        if versions is None or latest != versions:
            has = truths(value.any() for value in values)
            names = tuple(name for name, random in zip(self.variance, has, strict=True) if random)
            self._latest_random = versions, values, names  # the tensors are kept, so that their identities stay theirs
        return names

    @abc.abstractmethod
    def writer(self, seed: int = 0) -> Write:
        """Return a function ``write(targets, number)`` that writes sample ``number``, or the mean for ``None``, in
        place.

        ``targets`` are tensors by name, such as parameters. The function caches what it needs for every sample.
        """

    def scaled(self: Self, factor: float) -> Self:
        """Return a copy with the same means and every standard deviation multiplied by ``factor``.

        Variances and covariances are multiplied by ``factor**2``, so correlations do not change. The components of a
        mixture are scaled one by one, and the distances between their means do not change. Bernoulli weights
        (:class:`bayesadam.posterior.BernoulliPosterior`) remain Bernoulli weights with other probabilities and values.
        The hyper-parameters are copied, and ``"scaled"`` is set to the product of all factors so far.

        Args:
            factor: A finite number of at least 0; 0 makes point masses.

        Raises:
            ValueError: The factor is negative or not finite.
            TypeError: The class of the posterior does not define how it is scaled.
        """
        check("factor", factor, "a finite number of at least 0", lambda value: 0 <= value < math.inf)
        hyperparameters = {**self.hyperparameters, "scaled": self.hyperparameters.get("scaled", 1.0) * float(factor)}
        return self._scaled(float(factor), hyperparameters).with_buffers(self.buffers)

    def _scaled(self: Self, factor: float, hyperparameters: Mapping[str, Any]) -> Self:
        """The result of :meth:`scaled`, with the given hyper-parameters."""
        raise TypeError(f"posterior must be of a class that can be scaled, got {type(self).__name__}")

    def to(self: Self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return the same posterior on another device or in another floating dtype.

        In half precision only the means are, since it has no numbers for small variances, or 8 bits for any, which
        would lose the uncertainty; what variances are computed from is not rounded. Buffers keep their dtype.
        """
        buffers = {name: value.to(device) for name, value in self.buffers.items()}
        return self._to(device, dtype).with_buffers(buffers)

    def _to(self: Self, device: torch.device | str | None, dtype: torch.dtype | None) -> Self:
        """The result of :meth:`to`, without buffers."""
        wide = None if dtype is None else torch.promote_types(dtype, torch.float32)
        moved = {
            key: value.to(device=device, dtype=dtype if key.startswith("mean/") else wide)
            for key, value in self._tensors().items()
        }
        return self._from_tensors(moved, self.hyperparameters)

    def with_buffers(self: Self, buffers: Mapping[str, Tensor]) -> Self:
        """Return the same posterior with these buffers, which are kept, not copied, in place of its own."""
        other = copy.copy(self)
        other.buffers = dict(buffers)
        return other

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are saved: those of the weights, and ``{"buffers/<name>": ...}``."""
        tensors = self._tensors()
        for name, value in self.buffers.items():
            tensors[f"{_BUFFERS}{name}"] = value
        return tensors

    @classmethod
    def from_tensors(cls: type[Self], tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> Self:
        """Make a posterior from the result of ``tensors``; ``KeyError`` or ``ValueError`` if they do not fit."""
        buffers = {key.removeprefix(_BUFFERS): value for key, value in tensors.items() if key.startswith(_BUFFERS)}
        weights = {key: value for key, value in tensors.items() if not key.startswith(_BUFFERS)}
        return cls._from_tensors(weights, hyperparameters).with_buffers(buffers)

    def _tensors(self) -> dict[str, Tensor]:
        """The tensors of the weights that are saved, ``{"<part>/<name>": ..., ...}``."""
        tensors = {}
        for part in self.parts:
            for name, value in getattr(self, part).items():
                tensors[f"{part}/{name}"] = value
        return tensors

    @classmethod
    def _from_tensors(cls: type[Self], tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`_tensors`."""
        values_by_part: dict[str, dict[str, Tensor]] = {part: {} for part in cls.parts}
        for key, value in tensors.items():
            part, _, name = key.partition("/")
            values_by_part[part][name] = value
        make: Any = cls
        posterior: Self = make(*values_by_part.values(), hyperparameters=hyperparameters)
        return posterior

    def _with_parts(self: Self, hyperparameters: Mapping[str, Any], **parts: Mapping[str, Tensor]) -> Self:
        """A posterior of the same class with other tensors in some of its parts."""
        changed = {f"{part}/{name}": value for part, values in parts.items() for name, value in values.items()}
        return self.from_tensors({**self.tensors(), **changed}, hyperparameters)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the posterior to one safetensors file, without pickle and with a digest. The file is written whole or
        not at all.

        Raises:
            TypeError: A hyper-parameter is not a JSON value.
            OSError: The folder does not exist or cannot be written to. An existing file is left unchanged.
        """
        self._write(path)

    def _write(self, path: str | os.PathLike[str]) -> str:
        """Write the file, and return its digest."""
        return files.write_tensors(path, type(self).__name__, self.tensors(), self.hyperparameters)

    def match(self, model: nn.Module) -> dict[str, Tensor]:
        """Return the model's parameters that this posterior covers, by the posterior's names.

        If the model is a wrapper (``DistributedDataParallel``, ``torch.compile``), the module that it wraps may be
        matched.

        Raises:
            ValueError: The model's trainable parameters have other names or shapes; the message names the first
                difference.
        """
        return matching_parameters(model, self.mean)

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """Return a context whose function writes samples into the model, as in the base class.

        Weights and buffers are written in place. Inside the context those of a sharded network are whole. The padding
        row of an ``nn.Embedding`` keeps its mean: PyTorch gives it no gradient, so that its variance is that of no
        data.

        Raises:
            ValueError: The model's trainable parameters are not those of the posterior, or it lacks a buffer.
        """
        with (
            exclusively(model) as parts,
            quietly(parts.followed) if parts.followed else nullcontext(),
            unsharded(parts.sharded) if parts.sharded else nullcontext(),
        ):
            weights, buffers = self.match(model), self._buffers_of(0)
            if buffers:
                buffers = matching_buffers(model, buffers)
            tensors = {**weights, **buffers}
            apart = self._apart_from(tensors.values())
            is_plain = set(map(type, tensors.values())) <= PLAIN
            # Modules that merge weights change fixed ones, too, which are then written for every sample.
            random, fixed = apart._divided() if is_plain and not parts.changing else (apart, {})
            write = random.writer(seed)
            padding = padding_rows(parts, weights) if parts.padded else {}
            if buffers or padding:
                write = apart._writing_fixed(write, padding)
            if not is_plain:
                write = writing_parts(write, tensors)
            before = []
            for tensor in tensors.values():
                before.append((tensor, tensor.detach().clone()))
            try:
                with torch.no_grad() if fixed else nullcontext():
                    for name, value in fixed.items():
                        tensors[name].copy_(value)
                yield partial(write, tensors)
            finally:
                with torch.no_grad():
                    for tensor, value in before:
                        tensor.copy_(value)
                torch.clear_autocast_cache()

    def _writing_fixed(self, write: Write, padding: Mapping[str, int]) -> Write:
        """The function of :meth:`writer` followed by what has no noise: buffers, and padding rows by name."""

        @torch.no_grad()
        def put(targets: Mapping[str, Tensor], number: int | None) -> None:
            write(targets, number)
            for name, value in self._buffers_of(number).items():
                targets[name].copy_(value)
            if number is not None:
                for name, row in padding.items():
                    targets[name][row].copy_(self._center(number)[name][row])

        return put

    def _divided(self) -> tuple[Posterior, Mapping[str, Tensor]]:
        """The posterior over the weights that differ between samples, and values by name of weights that do not."""
        return self, {}

    def _center(self, number: int) -> Mapping[str, Tensor]:
        """Means of the distribution that sample ``number`` is drawn from, by name."""
        return self.mean

    def _buffers_of(self, number: int | None) -> Mapping[str, Tensor]:
        """Buffers of the network that is sample ``number``, by name."""
        return self.buffers

    def _apart_from(self, targets: Iterable[Tensor]) -> Posterior:
        """A posterior that does not change when the targets are written to; it is this one if they share no memory."""
        written = set(map(_address, targets)) - {0}
        tensors, copies = self.tensors(), {}
        for name, tensor in tensors.items():
            if _address(tensor) in written:
                copies[name] = tensor.detach().clone()
        return self.from_tensors({**tensors, **copies}, self.hyperparameters) if copies else self

    def _check_theta(self, theta: Mapping[str, Tensor]) -> None:
        """Check that weights by name are those of the posterior, with any leading axes."""
        self._check_names(theta, "theta")
        for name, mean in self.mean.items():
            value = theta[name]
            if value.shape[value.ndim - mean.ndim :] != mean.shape:
                raise ValueError(f"theta[{name!r}] must end in the shape {tuple(mean.shape)}, got {tuple(value.shape)}")

    def _check_weights(self, other: Posterior, what: str = "prior") -> None:
        """Check that another posterior, such as a prior, is over the same weights."""
        shapes = other.shapes
        self._check_names(shapes, what)
        for name, shape in self.shapes.items():
            if shapes[name] != shape:
                raise ValueError(f"{what} of {name!r} must be of shape {tuple(shape)}, got {tuple(shapes[name])}")

    def _check_buffers(self, other: Posterior, what: str) -> None:
        """Check that another posterior has buffers of the same names."""
        names, others = (list(q._buffers_of(0)) for q in (self, other))
        if set(names) != set(others):
            raise ValueError(f"{what} must have the buffers {names}, got {others}")

    def _check_names(self, other: Mapping[str, Any], what: str) -> None:
        shapes = self.shapes
        for name in shapes:
            if name not in other:
                raise ValueError(f"{what} must have the weights {name!r}, got none of that name")
        for name in other:
            if name not in shapes:
                raise ValueError(f"{what} must only have weights that the posterior has, got {name!r}")


def load_posterior(path: str | os.PathLike[str]) -> Posterior:
    """Load a posterior of any kind from a file that its ``save`` wrote; its tensors are on the CPU.

    Raises:
        FileNotFoundError: There is no such file.
        bayesadam.files.DamagedFile: The file is truncated, damaged, of another format, or written by another version
            of the library. It is a ``ValueError``.
    """
    return read_posterior(path)[0]


def read_posterior(path: str | os.PathLike[str]) -> tuple[Posterior, str]:
    """Load a posterior and the digest of its file."""
    stored = files.read_tensors(path, "the posterior file")
    kinds = posterior_kinds()
    if stored.kind not in kinds:
        raise files.DamagedFile(
            f"the posterior file must be of a kind in {sorted(kinds)}, got {stored.kind!r} in {os.fspath(path)!r}"
        )
    with files.reading(f"the posterior file must hold a valid {stored.kind}", path):
        return kinds[stored.kind].from_tensors(stored.tensors, stored.hyperparameters), stored.digest


def _address(tensor: Tensor) -> int:
    """Address of the memory of a tensor, or of this process's part of it; 0 if it has none."""
    part = tensor if type(tensor) in PLAIN else local(tensor)
    return part.untyped_storage().data_ptr()


def posterior_kinds() -> dict[str, type[Posterior]]:
    """Every class of posterior that can be loaded, by the name that is written to files."""
    classes = Posterior.__subclasses__()
    for cls in classes:
        classes += cls.__subclasses__()
    return {cls.__name__: cls for cls in classes if not inspect.isabstract(cls)}
