"""Compiling and loading: the cache, several processes, and what can go wrong."""

import ctypes
import os
import stat
import warnings

import pytest

from bayesadam import native, noise
from processes import PROCESSES

pytestmark = pytest.mark.skipif(not native.has_compiler(), reason="needs a C++ compiler")
SOURCE = 'extern "C" int answer() { return 42; }\n'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv("BAYESADAM_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def anew():
    """Flags and folders of another environment are forgotten."""
    yield
    native._target.cache_clear()
    native._own_folder.cache_clear()


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
    assert made.suffix == ".so"
    monkeypatch.setattr(native, "_compile", None)
    assert native.load(SOURCE).answer() == 42
    with pytest.raises(TypeError):
        native.load(SOURCE + "// another one\n")


def compiled_in(folder):
    os.environ["BAYESADAM_CACHE"] = str(folder)
    assert native.load(SOURCE).answer() == 42


def test_processes_that_compile_at_once(cache):
    found = [PROCESSES.Process(target=compiled_in, args=(cache,)) for _ in range(3)]
    for process in found:
        process.start()
    for process in found:
        process.join(120)
    assert [process.exitcode for process in found] == [0, 0, 0]
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    """A file is in its place: permissions say nothing to the superuser."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BAYESADAM_CACHE", str(tmp_path / "file"))
    assert native.load(SOURCE).answer() == 42
    folder = native._own_folder()
    assert [path.suffix for path in folder.iterdir()] == [".so"]
    assert native._folder() == folder
    assert (tmp_path / "file").read_text() == ""


def test_a_compiler_that_refuses_everything(cache, compiler):
    path = compiler("echo 'error: out of order' >&2; exit 1")
    message = f"^the compiler {path} refuses even an empty source: error: out of order$"
    with pytest.raises(native.CompilationError, match=message):
        native.load(SOURCE)


def test_a_compiler_that_fails(cache, compiler):
    """The message is the first line that has an error; nothing is left in the cache."""
    compiler('case "$*" in *-dM*) exit 0;; esac; echo "warning: hm" >&2; echo "fatal error: no" >&2; exit 1')
    with pytest.raises(native.CompilationError, match="^the compiler failed: fatal error: no$"):
        native.load(SOURCE)
    assert list(cache.iterdir()) == []


def test_a_compiler_that_does_not_answer(cache, compiler, monkeypatch):
    compiler('case "$*" in *-dM*) exit 0;; esac; exec sleep 60')
    monkeypatch.setattr(native, "SECONDS", 0.5)
    with pytest.raises(native.CompilationError, match="^the compiler took more than 0 seconds$"):
        native.load(SOURCE)


def test_a_library_that_cannot_be_loaded(cache, compiler):
    compiler('case "$*" in *-dM*) exit 0;; esac; for last; do :; done; echo nonsense > "$last"')
    with pytest.raises(native.CompilationError, match="^the compiled library cannot be loaded: "):
        native.load(SOURCE)


def test_flags_that_a_compiler_does_not_know_are_left_out(cache, compiler):
    real = native._compiler()
    compiler(f'case "$*" in *prefer-vector*|*fopenmp*) echo "error: unknown" >&2; exit 1;; esac; exec {real} "$@"')
    assert native.load(SOURCE).answer() == 42
    flags, _ = native._target(native._compiler())
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
    with pytest.raises(native.CompilationError, match=r"^there is no C\+\+ compiler \(or BAYESADAM_NATIVE=0 is set\)$"):
        native.load(SOURCE)


def test_the_first_draw_without_a_compiler_warns_once(monkeypatch, tmp_path):
    """Training and predictions alike draw noise; who switched native code off knows it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    native.warn_without_compiler.cache_clear()
    try:
        for switched, expected in (("0", 0), ("1", 1), ("1", 0)):
            monkeypatch.setenv("BAYESADAM_NATIVE", switched)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                for _ in range(2):
                    noise._compiled.cache_clear()
                    noise.normal(0, 0, 0, 0, (3,))
                if switched == "0":
                    native.warn_without_compiler.cache_clear()
            assert [str(each.message).partition(":")[0] for each in found] == ["there is no C++ compiler"] * expected
    finally:
        noise._compiled.cache_clear()
        native.warn_without_compiler.cache_clear()


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
    native.load(native.read(name))
