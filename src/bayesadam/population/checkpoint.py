"""Checkpoints of a population, one file per chunk, written at intervals and when the chunk is finished."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bayesadam import files
from bayesadam.checks import is_whole
from bayesadam.population.chunk import Chunk
from bayesadam.population.population import Population
from bayesadam.population.record import Record

SECONDS, SHARE = 2.0, 20.0
"""Least time between two checkpoints: so many seconds, and so many times the duration of the last write."""

_KIND = "population"


def fingerprint(settings: Any, tensors: Iterable[Tensor]) -> str:
    """Digest of everything that determines a run; shared tensors are read once."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True, default=_plain).encode())
    seen: dict[int, int] = {}
    for tensor in tensors:
        new = id(tensor) not in seen
        digest.update(f"{seen.setdefault(id(tensor), len(seen))} {tuple(tensor.shape)} {tensor.dtype};".encode())
        if new:
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class Memory(Protocol):
    """State of ``on_epoch`` that is kept from one epoch to the next."""

    def tensors(self) -> dict[str, Tensor]:
        """The whole state after an epoch, as tensors."""

    def restore(self, tensors: Mapping[str, Tensor], members: list[int], nets: Population) -> None:
        """Restore the state, before training continues with these members as they were after that epoch."""


class Checkpoint:
    """The checkpoints of one run in a folder.

    Args:
        folder: Folder of the files; it is created if necessary.
        identity: The :func:`fingerprint` of the run.
        memory: State of ``on_epoch``, saved with every checkpoint.
    """

    def __init__(self, folder: Path, identity: str, memory: Memory | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.identity, self.memory = folder, identity, memory
        self._due = time.monotonic() + SECONDS

    def _path(self, number: int) -> Path:
        return self.folder / f"chunk-{number:04d}.safetensors"

    def save(self, number: int, part: Chunk, record: Record, chosen: Sequence[int], epoch: int) -> None:
        """Write chunk ``number``, with the members ``chosen``, after ``epoch`` epochs, if enough time has passed."""
        begin = time.monotonic()
        if part.members and begin < self._due:
            return
        index = torch.tensor(list(chosen))
        tensors = {f"record/{name}": value[index.to(value.device)] for name, value in _arrays(record).items()}
        tensors |= {"chunk/mean": part.mean, **{f"chunk/state/{name}": v for name, v in part.state.items()}}
        if self.memory is not None:
            tensors |= {f"memory/{name}": value for name, value in self.memory.tensors().items()}
        counters = {n: v.flatten().tolist() if isinstance(v, np.ndarray) else v for n, v in part.counters.items()}
        header = {
            "identity": self.identity,
            "epoch": epoch,
            "chosen": list(chosen),
            "members": part.members,
            "steps": part.steps,
            "counters": counters,
        }
        files.write_tensors(self._path(number), _KIND, tensors, header)
        now = time.monotonic()
        self._due = now + max(SECONDS, SHARE * (now - begin)) if SECONDS else now

    def load(self, number: int, part: Chunk, record: Record) -> int:
        """Restore chunk and record from the checkpoint; return the number of finished epochs, 0 without a checkpoint.

        Raises:
            ValueError: The checkpoint is of another run.
            bayesadam.files.DamagedFile: The file is damaged; this is a ``ValueError``, too.
        """
        path = self._path(number)
        files.remove_temporaries(self.folder)
        if not path.exists():
            return 0
        stored = files.read_tensors(path, "the checkpoint")
        if stored.kind != _KIND or stored.hyperparameters.get("identity") != self.identity:
            raise ValueError(
                f"checkpoint must be a folder of this very run, got one of another in {str(self.folder)!r}"
            )
        with files.reading("the checkpoint must be what this very run wrote", path):
            return self._restore(stored.tensors, stored.hyperparameters, part, record)

    def _restore(self, tensors: Mapping[str, Tensor], header: Mapping[str, Any], part: Chunk, record: Record) -> int:
        _check(tensors, header, part, record)
        index = torch.tensor(header["chosen"])
        for name, value in _arrays(record).items():
            value[index.to(value.device)] = tensors[f"record/{name}"].to(value.device)
        part.keep([header["chosen"].index(member) for member in header["members"]])
        device = part.mean.device
        part.restore(
            tensors["chunk/mean"].to(device),
            {name: tensors[f"chunk/state/{name}"].to(device) for name in part.state},
            {name: _counter(value) for name, value in header["counters"].items()},
            header["steps"],
        )
        if self.memory is not None:
            told = {n.removeprefix("memory/"): v.to(device) for n, v in tensors.items() if n.startswith("memory/")}
            rows = {name: value[index.to(value.device)] for name, value in record.rows.items()}
            chosen = header["chosen"]
            self.memory.restore(told, chosen, record.population(chosen, rows, header["epoch"] - 1))
        return int(header["epoch"]) if part.members else part.epochs


def _check(tensors: Mapping[str, Tensor], header: Mapping[str, Any], part: Chunk, record: Record) -> None:
    """Raise ``ValueError``, or an error about what is missing, unless the contents of the file fit the run."""
    if not is_whole(header["epoch"], 0) or header["epoch"] > part.epochs:
        raise ValueError(f"epoch must be a whole number of at most {part.epochs}, got {header['epoch']!r}")
    if header["chosen"] != part.members or not set(header["members"]) <= set(part.members):
        raise ValueError(f"the members must be among {part.members}")
    left = len(header["members"])
    if len(header["steps"]) != left or not all(is_whole(step, 0) for step in header["steps"]):
        raise ValueError(f"steps must be whole numbers of {left} members, got {header['steps']!r}")
    expected = {f"record/{name}": (len(part.members), *value.shape[1:]) for name, value in _arrays(record).items()}
    own = {"chunk/mean": part.mean, **{f"chunk/state/{name}": value for name, value in part.state.items()}}
    expected |= {name: (left, *value.shape[1:]) for name, value in own.items()}
    for name, shape in expected.items():
        if tensors[name].shape != shape:
            raise ValueError(f"{name!r} must be of shape {tuple(shape)}, got {tuple(tensors[name].shape)}")
    for name, value in own.items():
        if tensors[name].dtype != value.dtype or not tensors[name].isfinite().all():
            raise ValueError(f"{name!r} must be finite and of dtype {value.dtype}")
    if header["counters"].keys() != part.counters.keys():
        raise ValueError(f"counters must be {list(part.counters)}, got {list(header['counters'])}")
    for name, value in header["counters"].items():
        values = value if isinstance(value, list) else [value]
        if (isinstance(value, list) and len(value) != left) or not all(isinstance(v, int | float) for v in values):
            raise ValueError(f"the counter {name!r} must be a number, or one per member")


def _arrays(record: Record) -> dict[str, Tensor]:
    arrays = {f"history/{name}": value for name, value in record.history.items()}
    arrays |= {name: getattr(record, name) for name in ("epochs", "best", "best_epoch", "stopped")}
    return arrays | record.rows


def _counter(value: Any) -> Any:
    return np.array(value)[:, None] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else repr(value)
