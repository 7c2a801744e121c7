"""Files of agents: one safetensors file with a JSON header and a digest, without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import safetensors
from torch import Tensor

from bayesadam import files
from bayesadam.bandits.belief import Belief
from bayesadam.bandits.linear import Linear
from bayesadam.bandits.neural import Neural
from bayesadam.checks import is_whole

VERSION = 2
"""Version of the format; since version 2 there is a digest of the whole file."""
_KIND = "agent"
_EARLIER = "bayesadam.agent"
_WHAT = "the agent's file"
KINDS: dict[str, type[Belief]] = {"Linear": Linear, "Neural": Neural}
"""Beliefs that a file can hold, by name."""


def write(path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file, either completely or not at all."""
    files.write_tensors(path, _KIND, tensors, {"version": VERSION, **header})


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor], str | None]:
    """Read the header and the tensors of a file, and its digest, which is ``None`` in format version 1.

    Raises:
        FileNotFoundError: There is no such file.
        bayesadam.files.DamagedFile: The file is damaged, of another format or written by a newer version.
    """
    earlier = _read_earlier(path) if os.path.isfile(path) else None
    if earlier is not None:
        return *earlier, None
    stored = files.read_tensors(path, _WHAT)
    if stored.kind != _KIND:
        raise files.DamagedFile(f"{_WHAT} must have been saved by an agent, got {os.fspath(path)!r}")
    version = stored.hyperparameters.get("version", 0)
    if not is_whole(version) or version > VERSION:
        raise files.DamagedFile(
            f"{_WHAT} must be of version {VERSION} or older (update bayesadam), got {version!r} in {os.fspath(path)!r}"
        )
    return stored.hyperparameters, stored.tensors, stored.digest


def _read_earlier(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
    """Read a file of format version 1, which has a header of its own; return ``None`` for any other file."""
    with (
        files.reading(f"{_WHAT} must be a complete safetensors file", path),
        safetensors.safe_open(os.fspath(path), framework="pt") as file,
    ):
        text = (file.metadata() or {}).get(_EARLIER)
        return None if text is None else (json.loads(text), {name: file.get_tensor(name) for name in file.keys()})


def belief_of(header: Mapping[str, Any], given: Belief | None) -> Belief:
    """Return the belief of a file, or the belief that the user has given."""
    kind = header["kind"]
    if given is not None:
        if type(given).__name__ != kind:
            raise ValueError(f"belief must be a {kind} as the saved agent's, got {given!r}")
        return given
    if header["belief"] is None or kind not in KINDS:
        raise ValueError(f"belief must be given for an agent whose {kind} has objects that no file holds, got None")
    earlier = {"standardize": False} if kind == "Linear" else {}  # what agents did before there was a choice
    return KINDS[kind](**{**earlier, **header["belief"]})
