"""Compiling small C++ sources with the system's compiler and loading them; without a compiler the library is slower.

A library is compiled once per source, compiler and instruction set, and kept in the user's cache folder
(``$BAYESADAM_CACHE``, by default ``~/.cache/bayesadam``). ``BAYESADAM_NATIVE=0`` in the environment switches all
native code off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
import warnings
from functools import cache
from pathlib import Path

FLAGS = (
    *("-O3", "-std=c++17", "-shared", "-fPIC", "-march=native", "-fopenmp"),
    *("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"),
)
"""Compiler flags. ``-ffast-math`` is not among them, so that infinities and NaN are handled correctly; and products and
sums are fused only where a source says so, so that a rule rounds alike in all of its kernels.
"""
WIDE = "-mprefer-vector-width=512"
SECONDS = 120.0
"""Time after which a compiler that has not finished counts as failed."""


class CompilationError(RuntimeError):
    """Raised if there is no compiler, or it did not compile a source; the message is one line with the reason."""


def has_compiler() -> bool:
    """Whether there is a C++ compiler, and native code is not switched off."""
    return os.environ.get("BAYESADAM_NATIVE", "1") != "0" and _compiler() is not None


@cache
def warn_without_compiler() -> None:
    """Warn, once, that there is no compiler, unless native code is switched off."""
    if os.environ.get("BAYESADAM_NATIVE", "1") != "0" and _compiler() is None:
        warnings.warn(
            "there is no C++ compiler: steps of optimisers and samples of posteriors take several times as long; "
            "install one (g++ or clang++), or set BAYESADAM_NATIVE=0 in the environment to go on without it",
            RuntimeWarning,
            stacklevel=2,
        )


def read(name: str) -> str:
    """Read a source file beside this module, with its local includes inserted."""
    folder = Path(__file__).parent
    lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(read(line.split('"')[1]) if line.startswith('#include "') else line for line in lines)


def load(source: str) -> ctypes.CDLL:
    """Load the library of a C++ source, which is compiled if it is not in the cache.

    Raises:
        CompilationError: There is no compiler, or the source does not compile or load.
    """
    if not has_compiler():
        raise CompilationError("there is no C++ compiler (or BAYESADAM_NATIVE=0 is set)")
    flags, macros = _target(str(_compiler()))
    name = hashlib.sha256("\0".join((source, macros, *flags)).encode()).hexdigest()[:32]
    path = _folder() / f"{name}.so"
    if not path.exists():
        _compile(source, flags, path)
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise CompilationError(f"the compiled library cannot be loaded: {error}") from None


def _compiler() -> str | None:
    names = (os.environ.get("CXX", "c++"), "g++", "clang++")
    return next((name for name in names if shutil.which(name)), None)


@cache
def _target(compiler: str) -> tuple[tuple[str, ...], str]:
    """Flags that this compiler accepts, and all macros that it predefines with them.

    The macros contain its version and the features of the processor, and together they identify the target of a
    library.
    """
    for flags in ((*FLAGS, WIDE), FLAGS, tuple(flag for flag in FLAGS if flag not in ("-march=native", "-fopenmp"))):
        command = [compiler, *flags, "-dM", "-E", "-x", "c++", os.devnull]
        found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if found.returncode == 0:
            return flags, found.stdout
    raise CompilationError(f"the compiler {compiler} refuses even an empty source: {_first_line(found.stderr)}")


def _folder() -> Path:
    """The cache folder, or a folder of this process where there is none."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(os.environ.get("BAYESADAM_CACHE") or Path(base) / "bayesadam")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    except OSError:
        pass
    return _own_folder()


@cache
def _own_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="bayesadam-"))


def _compile(source: str, flags: tuple[str, ...], path: Path) -> None:
    """Compile to another name first, so that no other process sees an incomplete library."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        code, made = Path(folder) / "source.cpp", Path(folder) / "library.so"
        code.write_text(source)
        command = [str(_compiler()), *flags, str(code), "-o", str(made)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise CompilationError(f"the compiler took more than {SECONDS:.0f} seconds") from None
        if done.returncode:
            raise CompilationError(f"the compiler failed: {_first_line(done.stderr)}")
        made.replace(path)


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines() or [""]
    return lines[0][max(0, lines[0].find(": error")) :].strip(": ")
