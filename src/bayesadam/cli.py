"""The entry point of the command line, with a message if its packages are not installed."""

from __future__ import annotations

import io
import sys
from importlib.util import find_spec


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2."""
    if any(find_spec(name) is None for name in ("typer", "rich")):
        print('bayesadam: the command line needs an extra: pip install "bayesadam[cli]"', file=sys.stderr)
        raise SystemExit(2)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # the terminal may not have all characters of a column's name
            stream.reconfigure(errors="backslashreplace")
    from bayesadam.commands import app

    app()
