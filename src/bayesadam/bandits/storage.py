"""Files of agents: one safetensors file with a JSON header, without pickle."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import save_file
from torch import Tensor

from bayesadam.bandits.belief import Belief
from bayesadam.bandits.linear import Linear
from bayesadam.bandits.neural import Neural
from bayesadam.files import whole_file

VERSION = 1
_KEY = "bayesadam.agent"
KINDS: dict[str, type[Belief]] = {"Linear": Linear, "Neural": Neural}
"""Beliefs that a file can hold, by name."""


def write(path: str | os.PathLike[str], header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write a file, either completely or not at all."""
    metadata = {_KEY: json.dumps({"version": VERSION, **header})}
    separate = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    with whole_file(Path(path)) as temporary:
        save_file(separate, temporary, metadata)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read the header and the tensors of a file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is damaged, of another format or written by a newer version.
    """
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise FileNotFoundError(f"the agent's file must exist, got {path!r}")
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}
    except safetensors.SafetensorError as error:
        raise ValueError(f"the agent's file must be a complete safetensors file, got {path!r} ({error})") from None
    if text is None:
        raise ValueError(f"the agent's file must have been saved by an agent, got {path!r}")
    header: dict[str, Any] = json.loads(text)
    if header["version"] > VERSION:
        raise ValueError(
            f"the agent's file must be of version {VERSION} or older (update bayesadam), got {header['version']!r}"
        )
    return header, tensors


def belief_of(header: Mapping[str, Any], given: Belief | None) -> Belief:
    """Return the belief of a file, or the belief that the user has given."""
    kind = header["kind"]
    if given is not None:
        if type(given).__name__ != kind:
            raise ValueError(f"belief must be a {kind} as the saved agent's, got {given!r}")
        return given
    if header["belief"] is None or kind not in KINDS:
        raise ValueError(f"belief must be given for an agent whose {kind} has objects that no file holds, got None")
    return KINDS[kind](**header["belief"])
