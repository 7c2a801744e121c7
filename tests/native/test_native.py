"""Compiling and loading: the cache, and what can go wrong."""

import ctypes
import errno
import os
import pwd
import stat
import tempfile
import time
import warnings
from pathlib import Path

import pytest

from bayesadam import native, noise

pytestmark = pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")
SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("BAYESADAM_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """Nothing has failed, and flags of another environment are forgotten."""
    monkeypatch.setattr(native._Process, "has_warned", False)
    monkeypatch.setattr(native._Process, "compiler_hangs", False)
    yield
    native._target.cache_clear()


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """A folder for temporary files, in which nothing is left."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def load_two(message):
    """Load two libraries, of which the first one gives the only warning."""
    with pytest.warns(RuntimeWarning, match=message) as caught:
        libraries = [native.load(SOURCE + end) for end in ("", "// another one\n")]
    assert len(caught) == 1
    return libraries


def assert_compiled_with_a_warning(message):
    """Compiled by this process for itself."""
    libraries = load_two(f"^every process compiles its kernels again, as .*{message}")
    assert [library.answer() for library in libraries] == [42, 42]


def assert_none_with_a_warning(message):
    assert load_two(f"^{message}: PyTorch's operations are used in place of") == [None, None]


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Makes a script the compiler."""

    def make(script):
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("CXX", str(path))
        return path

    return make


def test_a_library_is_compiled_once(cache, monkeypatch):
    assert native.load(SOURCE).answer() == 42
    (made,) = cache.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, made)] == [0o700, 0o600]
    monkeypatch.setattr(native, "_keep", None)
    assert native.load(SOURCE).answer() == 42
    with pytest.raises(TypeError):
        native.load(SOURCE + "// another one\n")


def test_a_folder_that_cannot_be_made(tmp_path, monkeypatch):
    """A file is in its place: permissions say nothing to the superuser."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAYESADAM_CACHE", str(tmp_path / "file"))
    assert_compiled_with_a_warning("File exists")
    assert (tmp_path / "file").read_text() == ""


def test_the_present_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAYESADAM_CACHE", ".")
    assert native.load(SOURCE).answer() == 42
    assert list(tmp_path.glob("*.so"))


def test_a_user_without_a_home_directory(cache, monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert native.load(SOURCE).answer() == 42
    monkeypatch.delenv("BAYESADAM_CACHE")
    assert_compiled_with_a_warning("home directory")


def test_a_full_disk(cache, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    assert_compiled_with_a_warning("No space left on device")
    assert list(cache.iterdir()) == []


def test_a_cache_that_can_only_be_read(cache, monkeypatch):
    native.load(SOURCE)
    make = tempfile.mkdtemp

    def refuse(suffix=None, prefix=None, dir=None):
        if dir == cache:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return make(suffix, prefix, dir)

    monkeypatch.setattr(tempfile, "mkdtemp", refuse)
    assert native.load(SOURCE).answer() == 42  # a warning would be an error
    assert_compiled_with_a_warning("Read-only file system")


@pytest.mark.parametrize(
    ("mode", "owner", "answer"),
    [(0o700, None, 13), (0o755, None, 13), (0o777, None, 42), (0o1777, None, 42), (0o770, None, 42), (0o700, 1, 42)],
)
def test_a_library_that_somebody_else_may_have_put_there(tmp_path, monkeypatch, mode, owner, answer):
    """It is loaded from a folder to which only the user can write."""
    folders = [tmp_path / name for name in ("right", "planted", "cache")]
    for folder, number in zip(folders, (42, 13), strict=False):
        monkeypatch.setenv("BAYESADAM_CACHE", str(folder))
        native.load(SOURCE.replace("42", str(number)))
    (right,), (planted,) = (folder.iterdir() for folder in folders[:2])
    folders[2].mkdir()
    copy = folders[2] / f"{right.name.partition('-')[0]}-{planted.name.partition('-')[2]}"
    copy.write_bytes(planted.read_bytes())
    folders[2].chmod(mode)
    if owner is not None and os.geteuid() == 0:
        os.chown(folders[2], owner, owner)
    elif owner is not None:
        monkeypatch.setattr(os, "geteuid", lambda: owner)
    monkeypatch.setenv("BAYESADAM_CACHE", str(folders[2]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert native.load(SOURCE).answer() == answer
    assert [str(each.message).partition(", as")[2] for each in caught] == (answer == 42) * [
        " there is no cache for them: the cache folder must be writable by the user alone (mode 0700), got "
        f"{str(folders[2])!r}"
    ]
    assert list(folders[2].iterdir()) == [copy]


def test_a_compiler_that_refuses_everything(cache, compiler):
    compiler("echo 'error: out of order' >&2; exit 1")
    assert_none_with_a_warning("the compiler failed: error: out of order")


def test_a_compiler_that_fails(cache, compiler):
    """The message is the first line that has an error, of any encoding; nothing is left in the cache."""
    script = 'case "$*" in *-dM*) exit 0;; esac; echo "warning: hm" >&2; printf "fatal error: no \\374\\n" >&2; exit 1'
    compiler(script)
    assert_none_with_a_warning("the compiler failed: fatal error: no \ufffd")
    assert not cache.exists() or list(cache.iterdir()) == []


@pytest.mark.parametrize("asked", ["", 'case "$*" in *-dM*) exit 0;; esac; '])
def test_a_compiler_that_hangs(cache, compiler, tmp_path, monkeypatch, asked):
    """It is tried once in a process, and ended with the processes that it has started."""
    compiler(f"{asked}echo > $TMPDIR/left; sleep 60 & echo $! >> {tmp_path}/started; wait")
    monkeypatch.setattr(native, "SECONDS", 0.5)
    assert_none_with_a_warning("the compiler took more than 0 seconds")
    (started,) = (tmp_path / "started").read_text().split()
    stop = time.monotonic() + 10
    while is_running(started) and time.monotonic() < stop:
        time.sleep(0.01)
    assert not is_running(started)


def is_running(process):
    status = Path(f"/proc/{process}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_compiler_of_another_format(cache, compiler):
    compiler("").write_bytes(b"\x7fELF of another processor")
    assert_none_with_a_warning(".*Exec format error.*")


def test_a_library_of_another_format(cache, compiler):
    compiler('case "$*" in *-dM*) exit 0;; esac; for last; do :; done; echo nonsense > "$last"')
    assert_none_with_a_warning(".*(file too short|invalid ELF header).*")
    assert list(cache.iterdir()) == []


def test_a_compiler_that_makes_nothing(cache, compiler):
    compiler("exit 0")
    with pytest.warns(RuntimeWarning, match="No such file"):
        assert native.load(SOURCE) is None


def test_further_flags_make_another_library(cache, monkeypatch):
    source = SOURCE.replace("42", "ANSWER")
    for flags, answer in (("-DANSWER=1", 1), ("-DANSWER=2 -g", 2), ("-DANSWER=1", 1)):
        monkeypatch.setenv("BAYESADAM_CXXFLAGS", flags)
        assert native.load(source).answer() == answer
    assert len(list(cache.iterdir())) == 2


def test_flags_that_a_compiler_does_not_know_are_left_out(cache, compiler):
    real = native._compiler()
    compiler(f'case "$*" in *prefer-vector*|*fopenmp*) echo "error: unknown" >&2; exit 1;; esac; exec {real} "$@"')
    assert native.load(SOURCE).answer() == 42
    flags, _ = native._target(native._compiler(), "")
    assert not {native.WIDE, "-march=native", "-fopenmp"} & set(flags)
    assert "-O3" in flags


def test_another_compiler_has_a_library_of_its_own(cache, compiler):
    native.load(SOURCE)
    real = native._compiler()
    compiler(f'exec {real} -DANOTHER_VERSION "$@"')
    native.load(SOURCE)
    assert len(list(cache.iterdir())) == 2


def test_without_a_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert not native.has_compiler()
    assert_none_with_a_warning(r"there is no C\+\+ compiler \(install g\+\+ or clang\+\+\)")


def test_the_first_draw_without_a_compiler_warns_once(monkeypatch, tmp_path):
    """Training and predictions alike draw noise; who switched native code off knows it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    try:
        for switched, expected in (("0", 0), ("1", 1), ("1", 0)):
            monkeypatch.setenv("BAYESADAM_NATIVE", switched)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                for _ in range(2):
                    noise._compiled.cache_clear()
                    noise.normal(0, 0, 0, 0, (3,))
            assert [str(each.message)[:29] for each in caught] == ["there is no C++ compiler (ins"] * expected
    finally:
        noise._compiled.cache_clear()


def test_switched_off(monkeypatch):
    monkeypatch.setenv("BAYESADAM_NATIVE", "0")
    assert not native.has_compiler()
    monkeypatch.setenv("BAYESADAM_NATIVE", "1")
    assert native.has_compiler()


def test_infinities_and_nan_are_what_they_are(cache):
    """Not compiled with ``-ffast-math``."""
    code = '#include <cmath>\nextern "C" int finite(double x) { return std::isfinite(x) && x == x; }\n'
    finite = native.load(code).finite
    finite.argtypes = [ctypes.c_double]
    assert [finite(x) for x in (1.0, float("inf"), float("nan"))] == [1, 0, 0]


@pytest.mark.parametrize("name", ["normal.cpp", "sample.cpp"])
def test_the_sources_compile_by_other_flags_too(cache, compiler, name):
    """Without OpenMP, and for a processor of which nothing is known."""
    real = native._compiler()
    compiler(f'case "$*" in *march*) echo "error: unknown" >&2; exit 1;; esac; exec {real} "$@"')
    assert native.load(native.read(name)) is not None
