"""Reports of a user's mistakes: one line on stderr, and exit code 2."""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console

OUTPUT = "standard output"
STOPPED = 130
"""Exit code after Ctrl-C, which is the one that shells use."""


def visible(text: str) -> str:
    """Return a line in which names cannot control the terminal: characters that are not printable are escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def fail(message: str, code: int = 2) -> NoReturn:
    """Print an error message and exit."""
    typer.echo(f"bayesadam: {visible(' '.join(message.split()))}", err=True)
    raise typer.Exit(code)


def say(shown: Any, console: Console | None = None) -> None:
    """Print a line or a table. If nobody reads any more, as with ``| head``, the command goes on in silence."""
    console, text = console or Console(), isinstance(shown, str)
    try:
        with console.capture() as printed:  # rich ends the process if a pipe is closed
            console.print(visible(shown) if text else shown, markup=not text, highlight=False, soft_wrap=text)
        console.file.write(printed.get())
        console.file.flush()
    except OSError as error:
        _stop_output()
        if error.errno != errno.EPIPE:
            typer.echo(f"bayesadam: standard output cannot be written to ({error.strerror})", err=True)


def _stop_output() -> None:
    """Let standard output go nowhere, since Python writes at its end what could not be written before."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def writing_to(option: str, path: Path, kind: str = "a folder") -> Iterator[None]:
    """Context in which the message for a file that cannot be written names the option with its path."""
    try:
        yield
    except OSError as error:
        if option == OUTPUT:
            _stop_output()
        rule = "where there is space" if error.errno == errno.ENOSPC else f"{kind} that can be written to"
        fail(f"{option} must be {rule}, got {str(path)!r} ({error.strerror or error})")


@contextmanager
def one_line() -> Iterator[None]:
    """Context in which mistakes, missing packages, Ctrl-C and a lack of memory are reported in one line."""
    try:
        from bayesadam.tables.encoder.findings import TableError
        from bayesadam.tables.encoder.memory import NotEnoughMemory
        from bayesadam.tables.runs.settings import RunError, with_options
    except ImportError as error:
        fail(_needs(error))
    gc.freeze()  # `main` turned the garbage collector off for the imports; it need never look at what was imported
    gc.enable()
    try:
        yield
    except (RunError, TableError, NotEnoughMemory) as error:
        fail(with_options(str(error)))
    except ImportError as error:
        fail(_needs(error))
    except KeyboardInterrupt:
        fail("stopped; nothing was written", STOPPED)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "memory" not in str(error):
            raise
        fail(f"there is not enough memory: use fewer rows, columns, --members or smaller --hidden ({error})")


def _needs(error: ImportError) -> str:
    """Return what to install; an error of another kind, as for a package that is too old, has a text of its own."""
    if not isinstance(error, ModuleNotFoundError):
        return str(error)
    return f'this command needs {error.name}: pip install "bayesadam[all]"'
