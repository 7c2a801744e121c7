"""What every posterior can do: be matched with a network, put a sample into it, and be saved."""

from __future__ import annotations

import abc
import inspect
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, BinaryIO, TypeVar

import torch
from torch import Tensor, nn

from bayesadam import files
from bayesadam.checks import check
from bayesadam.curvature.names import with_current_names
from bayesadam.posterior.modes import quietly
from bayesadam.posterior.network import NetworkDistribution
from bayesadam.posterior.sharded import unsharded, writing_parts
from bayesadam.posterior.wrappers import unwrapping
from bayesadam.sharding import is_sharded

Self = TypeVar("Self", bound="Posterior")


class Posterior(NetworkDistribution):
    """A distribution over named weights; buffers, a batch norm's statistics say, may be among them.

    The tensors that it is made of are kept, not copied. They may be those of a network, which predictions and
    :meth:`applied` leave as it was; but training it further changes the posterior.

    Attributes:
        mean: The mean of every weight tensor, by the name that ``named_parameters()`` gives it.
        hyperparameters: How the posterior was found, as plain JSON values; for people, and for reports.
    """

    mean: dict[str, Tensor]
    hyperparameters: dict[str, Any]

    def sample(self, count: int, *, seed: int = 0, first: int = 0) -> dict[str, Tensor]:
        """Samples number ``first`` to ``first + count - 1``; each tensor has a leading axis of ``count``.

        Sample ``i`` depends on ``(seed, i)`` only: not on ``count``, nor on what was drawn before, nor on any global
        generator.

        Raises:
            ValueError: ``count`` below 1, or a seed or number out of the range of :func:`bayesadam.noise.normal`.
        """
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count!r}")
        draws = {name: mean.new_empty((count, *mean.shape)) for name, mean in self.mean.items()}
        write = self.writer(seed)
        for i in range(count):
            write({name: draw[i] for name, draw in draws.items()}, first + i)
        return draws

    @abc.abstractmethod
    def writer(self, seed: int = 0) -> Callable[[Mapping[str, Tensor], int | None], None]:
        """A function ``write(targets, number)`` that writes sample ``number``, or the mean for ``None``, in place.

        ``targets`` are tensors by name, as parameters are. What the function needs again and again it keeps.
        """

    def scaled(self: Self, factor: float) -> Self:
        """A copy with the same means and every standard deviation multiplied by ``factor``.

        Variances and covariances are multiplied by ``factor**2``, so that correlations stay. The components of a
        mixture are scaled one by one, and stay as far apart as they are. Weights that are there or not
        (:class:`bayesadam.posterior.Bernoulli`) stay such: their probabilities and values change. The
        hyper-parameters are kept, with the product of all such factors as ``"scaled"``.

        Args:
            factor: A finite number of at least 0, which makes point masses.

        Raises:
            ValueError: Another factor.
            TypeError: A class of posteriors that does not define how it is scaled.
        """
        check("factor", factor, "a finite number of at least 0", lambda value: 0 <= value < math.inf)
        told = {**self.hyperparameters, "scaled": self.hyperparameters.get("scaled", 1.0) * float(factor)}
        return self._scaled(float(factor), told)

    def _scaled(self: Self, factor: float, hyperparameters: Mapping[str, Any]) -> Self:
        """What :meth:`scaled` returns, with these hyper-parameters."""
        raise TypeError(f"posterior must be of a kind that defines how it is scaled, got {type(self).__name__}")

    @abc.abstractmethod
    def tensors(self) -> Mapping[str, Tensor]:
        """What is saved: ``{"mean/<name>": ..., ...}``."""

    @classmethod
    @abc.abstractmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> Posterior:
        """The inverse of ``tensors``; ``KeyError`` or ``ValueError`` where they do not make a posterior."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one safetensors file: no pickle, with a digest, completely or not at all.

        Raises:
            TypeError: A hyper-parameter that is no JSON value; it is named.
            OSError: The folder does not exist or cannot be written to; a file that was there is left as it was.
        """
        try:
            with files.whole_file(path) as temporary, temporary.open("rb+") as file:
                self._dump(file)
        except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
            raise type(error)(
                f"the posterior file must be in a folder that can be written to, got {os.fspath(path)!r} "
                f"({error.strerror})"
            ) from None

    def _dump(self, file: BinaryIO) -> str:
        """Write to an open file; its digest."""
        return files.dump_tensors(file, type(self).__name__, self.tensors(), self.hyperparameters)

    def match(self, model: nn.Module) -> dict[str, Tensor]:
        """The model's parameters and buffers that this posterior covers, by the posterior's names.

        These are the model's, or those of what it wraps (``DistributedDataParallel``, ``torch.compile``).

        Raises:
            ValueError: The model's trainable parameters have other names or shapes; the first difference is named.
        """
        for inner in unwrapping(model):
            parameters = dict(inner.named_parameters())
            tensors: dict[str, Tensor] = {**dict(inner.named_buffers()), **parameters}
            if self.mean.keys() <= tensors.keys():
                break
        for name, mean in self.mean.items():
            if name not in tensors:
                raise ValueError(
                    f"the model must have a parameter {name!r} as the posterior does, got none of that name"
                )
            if tensors[name].shape != mean.shape:
                raise ValueError(
                    f"the model's parameter {name!r} must be of the posterior's shape {tuple(mean.shape)}, "
                    f"got {tuple(tensors[name].shape)}"
                )
        for name, parameter in parameters.items():
            if parameter.requires_grad and name not in self.mean:
                raise ValueError(f"the posterior must cover the model's trainable parameter {name!r}, got no such name")
        return {name: tensors[name] for name in self.mean}

    @contextmanager
    def draws(self, model: nn.Module, seed: int = 0) -> Iterator[Callable[[int | None], None]]:
        """See the base class; the weights are written in place. Those of a sharded network are whole inside.

        Raises:
            ValueError: The model's trainable parameters are not those of the posterior.
        """
        with quietly(model), unsharded(model):
            tensors = self.match(model)
            write = writing_parts(self._apart_from(tensors.values()).writer(seed), tensors)
            before = {name: tensor.detach().clone() for name, tensor in tensors.items()}
            try:
                yield partial(write, tensors)
            finally:
                with torch.no_grad():
                    for name, tensor in tensors.items():
                        tensor.copy_(before[name])
                torch.clear_autocast_cache()

    def _apart_from(self, targets: Iterable[Tensor]) -> Posterior:
        """A posterior that stays as it is when the targets are written to: itself, if it shares no memory with them."""
        written = {_address(target) for target in targets} - {0}
        tensors = self.tensors()
        shared = [name for name, tensor in tensors.items() if _address(tensor) in written]
        if not shared:
            return self
        copies = {name: tensors[name].detach().clone() for name in shared}
        return self.from_tensors({**tensors, **copies}, self.hyperparameters)

    def _check_theta(self, theta: Mapping[str, Tensor]) -> None:
        """Weights by name must be those of the posterior, with any leading axes."""
        self._check_names(theta, "theta")
        for name, mean in self.mean.items():
            value = theta[name]
            if value.shape[value.ndim - mean.ndim :] != mean.shape:
                raise ValueError(f"theta[{name!r}] must end in the shape {tuple(mean.shape)}, got {tuple(value.shape)}")

    def _check_weights(self, other: Posterior, what: str = "prior") -> None:
        """Another posterior, as a prior say, must be over the same weights."""
        self._check_names(other.mean, what)
        for name, mean in self.mean.items():
            if other.mean[name].shape != mean.shape:
                raise ValueError(
                    f"{what} of {name!r} must be of shape {tuple(mean.shape)}, got {tuple(other.mean[name].shape)}"
                )

    def _check_names(self, other: Mapping[str, Tensor], what: str) -> None:
        for name in self.mean:
            if name not in other:
                raise ValueError(f"{what} must have the weights {name!r}, got none of that name")
        for name in other:
            if name not in self.mean:
                raise ValueError(f"{what} must only have weights that the posterior has, got {name!r}")


def load_posterior(path: str | os.PathLike[str]) -> Posterior:
    """Read a posterior of any kind from the file that its ``save`` wrote; tensors are on the CPU.

    Raises:
        FileNotFoundError: No such file.
        bayesadam.files.DamagedFile: A file that is truncated, foreign, damaged, or written by a newer version of the
            library; a ``ValueError``.

    Warns:
        bayesadam.files.NoDigestWarning: A file of an earlier version, in which damage may not be noticed.
    """
    posterior, digest = read_posterior(path)
    if digest is None:
        files.tell_no_digest(path)
    return posterior


def read_posterior(path: str | os.PathLike[str]) -> tuple[Posterior, str | None]:
    """As :func:`load_posterior`, without the warning: the posterior, and the digest of its file if it has one."""
    found = files.read_tensors(path, "the posterior file")
    kinds = posterior_kinds()
    if not isinstance(found.kind, str) or found.kind not in kinds:
        raise files.DamagedFile(
            f"the posterior file must be of a kind in {sorted(kinds)}, got {found.kind!r} in {os.fspath(path)!r}"
        )
    with files.reading(f"the posterior file must hold a valid {found.kind}", path):
        posterior = kinds[found.kind].from_tensors(found.tensors, with_current_names(found.hyperparameters))
    return posterior, found.digest


def _address(tensor: Tensor) -> int:
    """Of the memory that a tensor, or this process's part of it, is in; 0 without any."""
    own: Tensor = tensor.detach().to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
    return own.untyped_storage().data_ptr()


def posterior_kinds() -> dict[str, type[Posterior]]:
    """Every kind of posterior that can be loaded, by the name that its files have."""
    classes = Posterior.__subclasses__()
    for cls in classes:
        classes += cls.__subclasses__()
    return {cls.__name__: cls for cls in classes if not inspect.isabstract(cls)}
