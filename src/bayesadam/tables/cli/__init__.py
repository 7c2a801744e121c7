"""The command line: ``bayesadam fit``, ``predict``, ``report`` and ``demo``."""

from __future__ import annotations

import gc
import io
import sys
from importlib.util import find_spec
from typing import Any


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    if any(find_spec(name) is None for name in ("typer", "rich")):
        print('bayesadam: the command line needs an extra: pip install "bayesadam[cli]"', file=sys.stderr)
        raise SystemExit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the terminal may not have all characters of a column's name
            stream.reconfigure(errors="backslashreplace")
    gc.disable()  # else a quarter of the time of a short command is spent on looking through the imported modules
    from typer import Abort, BadParameter

    from bayesadam.tables.cli.app import app
    from bayesadam.tables.cli.mistakes import visible

    # Its base class is click's, or that of the copy of click that newer versions of typer contain.
    mistakes: type[Any] = next(kind for kind in BadParameter.__mro__ if kind.__name__ == "ClickException")
    try:
        raise SystemExit(app(prog_name="bayesadam", standalone_mode=False))
    except Abort:
        raise SystemExit(130) from None
    except mistakes as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()  # the help
        else:
            print(f"bayesadam: {visible(_in_one_line(error))}", file=sys.stderr)
        raise SystemExit(2) from None
    finally:
        gc.enable()


def _in_one_line(error: Any) -> str:
    """Return what typer says about a mistake, and where the options are listed."""
    message = " ".join(error.format_message().split()).rstrip(".")
    context = getattr(error, "ctx", None)
    where = "" if context is None else f"; see {context.command_path} --help"
    return message[:1].lower() + message[1:] + where
