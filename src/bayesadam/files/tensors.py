"""Tensors with a header of plain values in one safetensors file, without pickle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import safetensors
import torch
from torch import Tensor

from bayesadam.files.reading import DamagedFile, reading
from bayesadam.files.writing import whole_file

FORMAT_VERSION = 2
"""Version of the format; since version 2 there is a digest of the whole file."""
_KEY = "bayesadam.posterior"
_BLANK = "0" * 64
_CHUNK = 2**22
_TRIES = 10
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Stored:
    """Contents of a file.

    Attributes:
        kind: Name of the class that the tensors belong to.
        tensors: Tensors by name, in the order in which they were written; on the CPU.
        hyperparameters: Plain values.
        digest: Digest of the file; ``None`` in format version 1.
    """

    kind: str
    tensors: dict[str, Tensor]
    hyperparameters: dict[str, Any]
    digest: str | None


def write_tensors(
    path: str | os.PathLike[str], kind: str, tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]
) -> str:
    """Write a file whole or not at all; see :func:`dump_tensors`.

    Raises:
        TypeError: As for :func:`dump_tensors`.
        OSError: The folder does not exist or cannot be written to. An existing file is left unchanged.
    """
    with whole_file(path) as temporary, temporary.open("rb+") as file:
        return dump_tensors(file, kind, tensors, hyperparameters)


def dump_tensors(file: BinaryIO, kind: str, tensors: Mapping[str, Tensor], hyperparameters: Mapping[str, Any]) -> str:
    """Write tensors to a file that is open and empty.

    Args:
        file: Binary file that supports seeking.
        kind: Name of the class that the tensors belong to.
        tensors: Tensors on any device, with dtypes of weights, counters and masks.
        hyperparameters: JSON values, or numbers and arrays of NumPy and PyTorch, which are converted.

    Returns:
        The digest of the file.

    Raises:
        TypeError: A hyper-parameter has no JSON form, or a tensor has another dtype; the message names it.
    """
    for name, value in hyperparameters.items():
        try:
            json.dumps({name: value}, default=_plain)
        except (TypeError, ValueError) as error:
            raise TypeError(f"hyperparameters[{name!r}] must be a JSON value, got {value!r} ({error})") from None
    fields = {
        "digest": _BLANK,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "tensors": list(tensors),
        "hyperparameters": dict(hyperparameters),
    }
    # The widest elements come first, as in safetensors, so that all are aligned.
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {"__metadata__": {_KEY: json.dumps(fields, default=_plain)}}
    end = 0
    for name in order:
        value = tensors[name]
        if value.dtype not in _DTYPES:
            raise TypeError(f"the tensor {name!r} must be of a dtype in {list(_DTYPES)}, got {value.dtype}")
        begin, end = end, end + value.numel() * value.element_size()
        header[name] = {"dtype": _DTYPES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    digest = hashlib.sha256(head)
    file.write(head)
    for name in order:
        content = _bytes(tensors[name])
        digest.update(content)
        file.write(content)
    found = digest.hexdigest()
    file.seek(head.index(_BLANK.encode()))
    file.write(found.encode())
    return found


def read_tensors(path: str | os.PathLike[str], what: str) -> Stored:
    """Read a file that :func:`write_tensors` wrote.

    Args:
        path: Path of the file.
        what: Name of the file in messages, such as "the posterior file".

    Raises:
        FileNotFoundError: There is no such file.
        DamagedFile: The file is truncated, damaged, of another format, or written by a newer version of the library.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{what} must exist, got {path!r}")
    for _ in range(_TRIES):
        before = _identity(path)
        try:
            found = _read(path, what)
        except DamagedFile:
            if _identity(path) == before:
                raise
        else:
            if _identity(path) == before:
                return found
    return found  # of a file that is written again and again, each part was whole


def _read(path: str, what: str) -> Stored:
    with (
        reading(f"{what} must be a complete safetensors file", path),
        safetensors.safe_open(path, framework="pt") as file,
    ):
        header = (file.metadata() or {}).get(_KEY)
        with reading(f"{what} must have been saved by bayesadam", path):
            fields = json.loads(header or "{}")
            version = fields["format_version"]
            if version > FORMAT_VERSION:
                raise DamagedFile(
                    f"{what} must be of format version {FORMAT_VERSION} or older (update bayesadam), "
                    f"got version {version!r} in {path!r}"
                )
            kind, names, told = fields["kind"], list(fields["tensors"]), dict(fields["hyperparameters"])
            digest = fields.get("digest")
            if not isinstance(digest, str) and (version > 1 or digest is not None):
                raise KeyError("digest")
            if not set(names) <= set(file.keys()):
                raise KeyError("the header names other tensors")
        if digest is not None and _digest(path, digest) != digest:
            raise DamagedFile(f"{what} must be as it was written, got another digest in {path!r}")
        # safetensors sorts its tensors; samples are numbered by their order here, so the header keeps it.
        tensors = {name: file.get_tensor(name) for name in names}
        for name, value in tensors.items():
            if value.dtype not in _DTYPES:
                raise TypeError(f"{name!r} is of dtype {value.dtype}")
    return Stored(kind, tensors, told, digest)


def _digest(path: str, told: str) -> str:
    """Digest of the file with zeros in place of the digest that it contains."""
    with open(path, "rb") as file:
        head = file.read(8)
        head += file.read(int.from_bytes(head, "little"))
        found = hashlib.sha256(head.replace(told.encode(), _BLANK.encode(), 1))
        while chunk := file.read(_CHUNK):
            found.update(chunk)
    return found.hexdigest()


def _identity(path: str) -> tuple[int, ...]:
    """Identity of a file, which changes if the file is replaced."""
    found = os.stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _bytes(tensor: Tensor) -> Any:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    # The stride of a single element may be 0.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data if len(flat) else b""


def _plain(value: Any) -> Any:
    """A number or an array of NumPy or PyTorch as numbers and lists."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")
    return value.tolist()
