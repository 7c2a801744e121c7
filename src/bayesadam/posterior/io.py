"""The posterior file: one safetensors file, whose JSON header names tensors, shapes, format and hyper-parameters."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from bayesadam.files import whole_file

FORMAT_VERSION = 1
_KEY = "bayesadam.posterior"


def save_tensors(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]
) -> None:
    """Write a posterior file completely or not at all.

    Hyper-parameters are JSON values, or numbers and arrays of NumPy and PyTorch, which are written as such.

    Raises:
        TypeError: A hyper-parameter that is neither; it is named.
        OSError: The folder does not exist or cannot be written to; a file that was there is left as it was.
    """
    path = Path(path)
    for name, value in hyperparameters.items():
        try:
            json.dumps({name: value}, default=_plain)
        except (TypeError, ValueError) as error:
            raise TypeError(f"hyperparameters[{name!r}] must be a JSON value, got {value!r} ({error})") from None
    header = {
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "tensors": list(tensors),
        "hyperparameters": dict(hyperparameters),
    }
    metadata = {_KEY: json.dumps(header, default=_plain)}
    try:
        with whole_file(path) as temporary:
            save_file(_separate(tensors), temporary, metadata)
    except safetensors.SafetensorError as error:
        raise OSError(
            f"the posterior file must be in a folder that can be written to, got {str(path)!r} ({error})"
        ) from None


def load_tensors(path: str | os.PathLike[str]) -> tuple[str, dict[str, Tensor], dict[str, Any]]:
    """Read a posterior file: its kind, its tensors (on the CPU) and its hyper-parameters.

    Raises:
        FileNotFoundError: No such file.
        ValueError: A file that is truncated, not a posterior, or written by a newer version of the library.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"the posterior file must exist, got {path!r}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_KEY)
            stored = {name: file.get_tensor(name) for name in file.keys()}
    except safetensors.SafetensorError as error:
        raise ValueError(f"the posterior file must be a complete safetensors file, got {path!r} ({error})") from None
    try:
        fields = json.loads(header or "{}")
        version = fields["format_version"]
        if version <= FORMAT_VERSION:
            # safetensors sorts its tensors; samples are numbered by their order here, so the header keeps it.
            tensors = {name: stored[name] for name in fields["tensors"]}
            return str(fields["kind"]), tensors, dict(fields["hyperparameters"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"the posterior file must have been saved by bayesadam, got {path!r}") from None
    raise ValueError(
        f"the posterior file must be of format version {FORMAT_VERSION} or older (update bayesadam), "
        f"got version {version!r} in {path!r}"
    )


def _plain(value: Any) -> Any:
    """A number or an array of NumPy or PyTorch as numbers and lists."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return value.tolist()


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors on the CPU, with no memory in common: safetensors refuses that."""
    separate, storages = {}, set()
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        if tensor.untyped_storage().data_ptr() in storages:
            tensor = tensor.clone()
        storages.add(tensor.untyped_storage().data_ptr())
        separate[name] = tensor
    return separate
