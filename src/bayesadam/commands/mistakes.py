"""Reports of a user's mistakes: one line on stderr, and exit code 2."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

import typer

from bayesadam.commands.options import with_options

STOPPED = 130
"""Exit code after Ctrl-C, which is the one that shells use."""


def fail(message: str, code: int = 2) -> NoReturn:
    """Print an error message and exit."""
    typer.echo(f"bayesadam: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def require(module: str, package: str, extra: str) -> None:
    """Exit with an error message if a package is not installed."""
    if find_spec(module) is None:
        fail(f'this command needs {package}: pip install "bayesadam[{extra}]"')


@contextmanager
def writing_to(option: str, path: Path, kind: str = "a folder") -> Iterator[None]:
    """Context in which the message for a file that cannot be written names the option with its path."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            fail(f"{option} must be where there is space, got {str(path)!r} ({error.strerror})")
        fail(f"{option} must be {kind} that can be written to, got {str(path)!r} ({error.strerror or error})")


@contextmanager
def one_line() -> Iterator[None]:
    """Context in which errors of the library and a lack of memory are reported in one line."""
    from bayesadam.runs import RunError
    from bayesadam.tabular import NotEnoughMemory, TableError

    try:
        yield
    except (RunError, TableError, NotEnoughMemory) as error:
        fail(with_options(str(error)))
    except MemoryError:
        fail("there is not enough memory: use fewer rows, columns, --members or smaller --hidden")
    except RuntimeError as error:
        if "memory" not in str(error):
            raise
        fail(f"there is not enough memory: use fewer rows, columns, --members or smaller --hidden ({error})")
