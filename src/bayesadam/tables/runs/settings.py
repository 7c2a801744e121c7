"""The settings of a fit to a table, which ``config.json`` stores so that the fit can be repeated."""

from __future__ import annotations

import ast
import json
import re
import shlex
from dataclasses import KW_ONLY, asdict, dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from bayesadam.checks import is_of
from bayesadam.files import DamagedFile, read_json, reading, write_text

FORMAT_VERSION = 1


class RunError(ValueError):
    """A fit or a prediction is not possible with these arguments. The message is one line for the user."""


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
        time_budget: Duration of the training of the networks in seconds.
        noise: Noise of a regression: "auto", "constant", "input", or the known standard deviation as text.
        weights: Column with the weights of the rows.
        group: Column whose groups are not divided between training and held-out rows.
        time: Column by which the last rows are held out.
        held_out: Share of the rows that are held out for testing.
        drop: Columns that are not inputs.
        keep: Columns that are inputs even if they look like row numbers, identifiers or names.
        category: Columns whose numbers are codes of categories.
        date: Columns that hold dates, such as 20210304.
        missing: Texts that mean a missing value in any column.
        day_first: Whether 3/4/2021 is in April, if a column of dates is ambiguous.
        delimiter: Delimiter of a CSV file.
        decimal: Decimal mark of a CSV file: "." or ",".
        seed: Seed of the split, the networks and the noise.
        device: Device on which the networks are trained.

    Raises:
        RunError: A value has the wrong type or is not allowed, or two settings contradict each other.
    """

    data: str
    target: str
    _: KW_ONLY
    task: str | None = None
    method: str | None = None
    transform: str | None = None
    likelihood: str | None = None
    hidden: tuple[int, ...] | None = None
    members: int | None = None
    epochs: int | None = None
    time_budget: float | None = None
    noise: str | None = None
    weights: str | None = None
    group: str | None = None
    time: str | None = None
    held_out: float = 0.1
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    category: tuple[str, ...] = ()
    date: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    day_first: bool = False
    delimiter: str | None = None
    decimal: str | None = None
    seed: int = 0
    device: str = "cpu"

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for name in (field.name for field in fields(self)):
            if not is_of(value := getattr(self, name), hints[name]):
                raise RunError(f"the setting {name} must be {_words(hints[name])}, got {value!r}")
        if not 0 < self.held_out <= 0.5:
            raise RunError(f"the share of the held-out rows must be in (0, 0.5], got {self.held_out!r}")
        if not 0 <= self.seed < 2**32:
            raise RunError(f"the seed must be in [0, 2**32), got {self.seed!r}")
        if None not in (self.group, self.time):
            raise RunError(f"a group must not be given with time, got {(self.group, self.time)!r}")
        method = self.method or ("anchored" if isinstance(_number(self.noise or ""), float) else None)
        if self.weights is not None and method == "anchored":
            rule = "weights must not be given with the method 'anchored', which is that of a known noise by default"
            raise RunError(f"{rule}, got {self.weights!r}")
        for name in ("weights", "group", "time", "drop", "keep", "category", "date"):
            if self.target in (value if isinstance(value := getattr(self, name), tuple) else (value,)):
                raise RunError(f"the target {self.target!r} must not also be given as {name}")

    def estimator_options(self) -> dict[str, Any]:
        """Return the keyword arguments of the estimator."""
        names = ("method", "likelihood", "hidden", "members", "epochs", "time_budget")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.transform is not None:
            given["target_transform"] = self.transform
        if self.noise is not None:
            given["noise"] = _number(self.noise)
        return {"random_state": self.seed, "device": self.device, **given}

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
            rule = "the config must be like one of bayesadam fit"
            with reading(rule, path):
                record, _ = read_json(path, rule)
                version, settings = record["format_version"], dict(record["settings"])
                if version != FORMAT_VERSION:
                    raise ValueError(f"its format version must be {FORMAT_VERSION}, got {version!r}")
                lists: dict[str, Any] = {name: tuple(v) for name, v in settings.items() if isinstance(v, list)}
                return cls(**{**settings, **lists})
        except OSError as error:
            raise RunError(f"the config {str(path)!r} must be a file that can be read: {error.strerror}") from None
        except DamagedFile as error:
            raise RunError(str(error)) from None


_ASSIGNED = re.compile(
    rf"\b(?P<name>{'|'.join(field.name for field in fields(Settings))})="
    r"(?P<list>\[)?(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|True)(?(list)\])"
)
"""A setting with a value as in Python: a text, a list of one text, or ``True``."""


def with_options(text: str) -> str:
    """Return a note or an error for users of the command line: ``keep=['Patient No']`` becomes an option."""
    return _ASSIGNED.sub(_option, text)


def _option(assigned: re.Match[str]) -> str:
    """Return an option of the command line, with its value quoted for the shell."""
    option, value = f"--{assigned['name'].replace('_', '-')}", ast.literal_eval(assigned["value"])
    if value is True:
        return option
    safe = shlex.quote(value)
    return f"{option} {safe}" if safe == value or set(value) & set('"$`\\!') else f'{option} "{value}"'


def _words(hint: Any) -> str:
    names = {str: "text", int: "a whole number", float: "a number", bool: "true or false", type(None): "null"}
    if get_origin(hint) is tuple:
        return f"a tuple (in a file, a list) of {'texts' if get_args(hint)[0] is str else 'whole numbers'}"
    return " or ".join(map(_words, get_args(hint))) if get_args(hint) else names[hint]


def _number(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
