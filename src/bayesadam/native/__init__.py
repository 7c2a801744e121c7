"""Compiling small C++ sources with the system's compiler and loading them; without a compiler the library is slower.

A library is compiled once per source, compiler, flags and instruction set, and kept in the user's cache folder
(``$BAYESADAM_CACHE``, by default ``~/.cache/bayesadam``). Its name there consists of the digest of these and of that of
its content, which is compared before it is loaded. ``BAYESADAM_CXXFLAGS`` adds flags of the compiler:
``-march=x86-64-v3`` gives the kernels of processors with AVX2 and without AVX-512, and ``-march=x86-64`` those of
processors with neither. ``BAYESADAM_NATIVE=0`` switches all native code off.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from contextlib import suppress
from functools import cache
from pathlib import Path

from bayesadam import files

__all__ = ["has_compiler", "load", "read"]

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


class _Process:
    """What has happened in this process."""

    has_warned = False
    compiler_hangs = False


def has_compiler() -> bool:
    """Whether there is a C++ compiler, and native code is not switched off."""
    return not _is_switched_off() and _compiler() is not None


def read(name: str) -> str:
    """Read a source file beside this module, with its local includes inserted."""
    folder = Path(__file__).parent
    lines = (folder / name).read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(read(line.split('"')[1]) if line.startswith('#include "') else line for line in lines)


def load(source: str) -> ctypes.CDLL | None:
    """Load the library of a C++ source, which is compiled if it is not in the cache.

    Returns:
        The library. Without one, PyTorch's operations are to be used: native code is switched off, there is no
        compiler, or it fails or hangs. The first failure in a process gives a warning with the reason.
    """
    if _is_switched_off() or _Process.compiler_hangs:
        return None
    try:
        return _load(source)
    except subprocess.TimeoutExpired:
        _Process.compiler_hangs = True
        reason = f"the compiler took more than {SECONDS:.0f} seconds"
    except (OSError, RuntimeError) as error:
        reason = str(error)
    _warn(
        f"{reason}: PyTorch's operations are used in place of compiled kernels, and steps of optimisers and samples of "
        "posteriors take several times as long; BAYESADAM_NATIVE=0 in the environment goes on so without this warning"
    )
    return None


def _is_switched_off() -> bool:
    return os.environ.get("BAYESADAM_NATIVE", "1") == "0"


def _warn(message: str) -> None:
    if not _Process.has_warned:
        _Process.has_warned = True
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def _load(source: str) -> ctypes.CDLL:
    """:func:`load`, with an error of the system or of the compiler if there is no library."""
    compiler = _compiler()
    if compiler is None:
        raise RuntimeError("there is no C++ compiler (install g++ or clang++)")
    flags, macros = _target(compiler, os.environ.get("BAYESADAM_CXXFLAGS", ""))
    key = hashlib.sha256("\0".join((source, macros, *flags)).encode()).hexdigest()[:32]
    library = _cached(key)
    if library is not None:
        return library
    with tempfile.TemporaryDirectory(prefix="bayesadam-", ignore_cleanup_errors=True) as scratch:
        path, reason = Path(scratch) / "library.so", None
        _run([compiler, *flags, "-x", "c++", "-", "-o", str(path)], source, TMPDIR=scratch)
        try:
            path = _keep(key, path.read_bytes())
        except (OSError, RuntimeError) as error:
            reason = str(error)
        try:
            library = ctypes.CDLL(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            raise
    if reason is not None:
        _warn(f"every process compiles its kernels again, as there is no cache for them: {reason}")
    return library


def _cached(key: str) -> ctypes.CDLL | None:
    """The library in the cache, if there is one and its content is what was written."""
    with suppress(OSError, RuntimeError):
        for path in _folder().glob(f"{key}-*.so"):
            if path.name == _name(key, path.read_bytes()):
                return ctypes.CDLL(str(path))
    return None


def _keep(key: str, content: bytes) -> Path:
    """Write a library to the cache."""
    path = _folder() / _name(key, content)
    with files.whole_file(path, mode=0o600) as temporary:
        temporary.write_bytes(content)
    return path


def _name(key: str, content: bytes) -> str:
    return f"{key}-{hashlib.sha256(content).hexdigest()}.so"


def _folder() -> Path:
    """The cache folder, to which only the user (and the superuser) can write.

    Nobody else can therefore exchange a library between the comparison of its digest and its loading.

    Raises:
        OSError: There is none, and it cannot be made; or others can write to it.
        RuntimeError: The user has no home directory.
    """
    name = os.environ.get("BAYESADAM_CACHE")
    if not name:
        name = f"{os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache'}/bayesadam"
    folder = Path(name).absolute()  # the system looks for a library elsewhere if its path has no slash
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat()
    if sys.platform != "win32" and (status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022):
        raise PermissionError(f"the cache folder must be writable by the user alone (mode 0700), got {str(folder)!r}")
    return folder


def _compiler() -> str | None:
    names = (os.environ.get("CXX", "c++"), "g++", "clang++")
    return next((name for name in names if shutil.which(name)), None)


@cache
def _target(compiler: str, further: str) -> tuple[tuple[str, ...], str]:
    """Flags that this compiler accepts, with further ones, and all macros that it predefines with them.

    The macros contain its version and the features of the processor, and together they identify the target of a
    library.
    """
    portable = tuple(flag for flag in FLAGS if flag not in ("-march=native", "-fopenmp"))
    *choices, last = ((*flags, *further.split()) for flags in ((*FLAGS, WIDE), FLAGS, portable))
    for flags in choices:
        with suppress(RuntimeError):
            return flags, _macros(compiler, flags)
    return last, _macros(compiler, last)


def _macros(compiler: str, flags: tuple[str, ...]) -> str:
    return _run([compiler, *flags, "-dM", "-E", "-x", "c++", "-"], "")


def _run(command: list[str], text: str, **variables: str) -> str:
    """What a compiler prints for a source; it is ended with all processes that it has started if it takes too long.

    Raises:
        RuntimeError: It failed; the message is one line.
        subprocess.TimeoutExpired: It took more than ``SECONDS``.
    """
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        env={**os.environ, **variables},
        start_new_session=True,
    ) as process:
        try:
            output, messages = process.communicate(text, timeout=SECONDS)
        except BaseException:
            process.kill()
            if sys.platform != "win32":
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode:
        raise RuntimeError(f"the compiler failed: {_first_line(messages)}")
    return output


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if "error" in line] or text.splitlines() or [""]
    return lines[0][max(0, lines[0].find(": error")) :].strip(": ")
