"""The settings of a fit, which ``config.json`` stores so that the fit can be repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bayesadam.checks import is_whole
from bayesadam.files import write_text
from bayesadam.runs.errors import RunError
from bayesadam.sklearn import METHODS
from bayesadam.sklearn.likelihoods import NAMES as LIKELIHOODS
from bayesadam.sklearn.noise import NOISE
from bayesadam.sklearn.target_transform import NAMES as TRANSFORMS

FORMAT_VERSION = 1
_NAMES = ("target", "task", "method", "noise", "transform", "likelihood", "group", "time", "delimiter", "decimal")
_TEXTS = ("data", *_NAMES, "device")
_NEEDED = ("data", "target", "device")
_AUTO_TRANSFORMS = ("auto", *TRANSFORMS)
_AUTO_LIKELIHOODS = ("auto", *LIKELIHOODS)


@dataclass(frozen=True)
class Settings:
    """Everything that determines a fit. A setting of ``None`` means the estimator's default or a choice from the data.

    Attributes:
        data: Path of the table.
        target: Name of the column to predict.
        task: "regression" or "classification".
        method: One of ``bayesadam.sklearn.METHODS``.
        transform: Transform of the target of a regression, as the estimator's ``target_transform``.
        likelihood: Name of the likelihood of a regression.
        hidden: Numbers of units of the hidden layers.
        members: Number of networks in the ensemble.
        epochs: Number of epochs.
        time_budget: Duration of the training in seconds.
        noise: Noise of a regression: "auto", "constant", "input", or the known standard deviation as text.
        group: Column whose groups are not divided between training and held-out rows.
        time: Column by which the last rows are held out.
        held_out: Share of the rows that are held out for testing.
        drop: Columns that are not inputs.
        keep: Columns that are inputs even if they look like row numbers or identifiers.
        missing: Texts that mean a missing value in any column.
        day_first: Whether 3/4/2021 is in April, if a column of dates is ambiguous.
        delimiter: Delimiter of a CSV file.
        decimal: Decimal sign of a CSV file: "." or ",".
        seed: Seed of the split, the networks and the noise.
        device: Device on which the networks are trained.

    Raises:
        RunError: A value is not allowed.
    """

    data: str
    target: str
    task: str | None = None
    method: str | None = None
    transform: str | None = None
    likelihood: str | None = None
    hidden: tuple[int, ...] | None = None
    members: int | None = None
    epochs: int | None = None
    time_budget: float | None = None
    noise: str | None = None
    group: str | None = None
    time: str | None = None
    held_out: float = 0.1
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    day_first: bool = False
    delimiter: str | None = None
    decimal: str | None = None
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        self._check_types()
        for name, known in (("method", METHODS), ("transform", _AUTO_TRANSFORMS), ("likelihood", _AUTO_LIKELIHOODS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise RunError(f"`{name}` must be one of {', '.join(known)}, got {value!r}")
        if self.transform not in (None, "auto", "none") and self.likelihood not in (None, "auto", "gaussian"):
            raise RunError(
                f"`transform` must be none or auto with `likelihood` {self.likelihood}, got {self.transform!r}"
            )
        if self.noise is not None and self.noise not in NOISE and not 0 < _number(self.noise) < float("inf"):
            raise RunError(f"`noise` must be one of {', '.join(NOISE)} or a positive number, got {self.noise!r}")
        if self.noise not in (None, "auto") and self.likelihood not in (None, "gaussian"):
            raise RunError(f"`noise` must be auto with `likelihood` {self.likelihood}, got {self.noise!r}")
        if self.noise not in (None, *NOISE) and self.transform not in (None, "auto", "none"):
            raise RunError(f"`transform` must be none or auto with `noise` {self.noise}, got {self.transform!r}")
        for name in ("members", "epochs"):
            value = getattr(self, name)
            if value is not None and not is_whole(value):
                raise RunError(f"`{name}` must be at least 1, got {value!r}")
        if self.hidden is not None and not all(map(is_whole, self.hidden)):
            raise RunError(f"`hidden` must be positive whole numbers, such as 50 or 100,50, got {self.hidden!r}")
        if self.time_budget is not None and not 0 < self.time_budget < float("inf"):
            raise RunError(f"`time_budget` must be a positive number of seconds, got {self.time_budget!r}")
        if self.time_budget is not None and self.epochs is not None:
            raise RunError(f"`time_budget` must not be given with `epochs`, got {self.time_budget!r} and {self.epochs}")
        if not 0 < self.held_out <= 0.5:
            raise RunError(f"`held_out` must be in (0, 0.5], got {self.held_out!r}")
        if not is_whole(self.seed, 0) or self.seed >= 2**32:
            raise RunError(f"`seed` must be in [0, 2**32), got {self.seed!r}")
        if self.group is not None and self.time is not None:
            raise RunError(f"`group` must not be given with `time`, got {self.group!r} and {self.time!r}")
        for option in ("group", "time", "drop", "keep"):
            value = getattr(self, option)
            if self.target == value or (isinstance(value, tuple) and self.target in value):
                raise RunError(f"`{option}` must not be the target, got {self.target!r}")
        for name in self.keep:
            if name in self.drop:
                raise RunError(f"`keep` must not be a column of `drop`, got {name!r}")
        _check_device(self.device)

    def _check_types(self) -> None:
        """Check the types of values, which may come from a file that a person has edited."""
        for name in _TEXTS:
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name in _NEEDED):
                raise RunError(f"{'the table' if name == 'data' else f'`{name}`'} must be text, got {value!r}")
        for name in ("drop", "keep", "missing"):
            if not all(isinstance(text, str) for text in getattr(self, name)):
                raise RunError(f"`{name}` must be a list of texts, got {getattr(self, name)!r}")
        for name in ("time_budget", "held_out"):
            value = getattr(self, name)
            missing = value is None and name == "time_budget"
            if not missing and (isinstance(value, bool) or not isinstance(value, int | float)):
                raise RunError(f"`{name}` must be a number, got {value!r}")
        if not isinstance(self.day_first, bool):
            raise RunError(f"`day_first` must be true or false, got {self.day_first!r}")

    def estimator_options(self) -> dict[str, Any]:
        """Return the keyword arguments of the estimator."""
        names = ("method", "likelihood", "hidden", "members", "epochs", "time_budget")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.transform is not None:
            given["target_transform"] = self.transform
        if self.noise is not None:
            given["noise"] = self.noise if self.noise in NOISE else float(self.noise)
        return {"random_state": self.seed, "device": self.device, **given}

    def remedied(self, remedy: Mapping[str, Any]) -> Settings:
        """Return these settings with those that an error proposes; columns and texts are added to the existing ones."""
        changed: dict[str, Any] = {
            name: tuple(dict.fromkeys((*getattr(self, name), *value))) if isinstance(value, tuple) else value
            for name, value in remedy.items()
        }
        changed["keep"] = tuple(name for name in changed.get("keep", self.keep) if name not in changed.get("drop", ()))
        return replace(self, **changed)

    def save(self, path: Path) -> None:
        """Write the settings to a JSON file, which may be edited: it has no digest."""
        record = {"format_version": FORMAT_VERSION, "settings": asdict(self)}
        write_text(path, json.dumps(record, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read the file that :meth:`save` wrote.

        Raises:
            RunError: The file is missing, is no such file or of a newer version, or a value is not allowed.
        """
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            version, settings = record["format_version"], dict(record["settings"])
            if version != FORMAT_VERSION:
                raise ValueError(f"its format version must be {FORMAT_VERSION}, got {version!r}")
            lists = {name: tuple(value) for name, value in settings.items() if isinstance(value, list)}
            return cls(**{**settings, **lists})
        except OSError as error:
            raise RunError(f"the config {str(path)!r} must be a file that can be read: {error.strerror}") from None
        except (ValueError, TypeError, KeyError) as error:
            raise RunError(f"the config {str(path)!r} must be like one of bayesadam fit: {error}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def _check_device(name: str) -> None:
    try:
        if torch.empty(0, device=name).is_meta:
            raise RuntimeError("it holds no numbers")
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"`device` must be an available device, such as cpu, got {name!r} ({reason})") from None
