"""The one writer and the one reader: whole files, whatever stops the process, and damage that is one error."""

import errno
import json
import math
import os
import stat
import threading
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bayesadam import files
from bayesadam.files import DamagedFile, read_json, read_tensors, whole_file, write_json, write_tensors
from bayesadam.files.locks import THERE
from processes import PROCESSES

TENSORS = {
    "b": torch.arange(6.0).reshape(2, 3),
    "a": torch.tensor([True, False]),
    "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
    "zeros": torch.zeros(()).expand(4),
    "none": torch.zeros(0, 3),
    "one": torch.zeros(1).expand(1),
    "count": torch.tensor(7),
}
needs_locks = pytest.mark.skipif(not THERE, reason="this system has no locks of files")


def names(folder):
    return sorted(os.listdir(folder))


class TestWriter:
    def test_permissions_are_what_the_umask_leaves(self, tmp_path):
        before = os.umask(0o027)
        try:
            write_tensors(tmp_path / "q", "kind", TENSORS, {})
            files.write_text(tmp_path / "t", "text")
        finally:
            os.umask(before)
        for name in ("q", "t"):
            assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o640

    @pytest.mark.parametrize("mode", [0o600, 0o664, 0o444])
    def test_permissions_of_the_old_file_are_kept(self, tmp_path, mode):
        (tmp_path / "t").write_text("old")
        (tmp_path / "t").chmod(mode)
        files.write_text(tmp_path / "t", "new")
        assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == mode
        assert (tmp_path / "t").read_text() == "new"

    def test_a_symbolic_link_stays_one(self, tmp_path):
        (tmp_path / "there").mkdir()
        for name, old in (("known", "old"), ("dangling", None)):
            target = tmp_path / "there" / name
            if old:
                target.write_text(old)
            (tmp_path / name).symlink_to(Path("there") / name)
            files.write_text(tmp_path / name, "new")
            assert (tmp_path / name).is_symlink()
            assert target.read_text() == "new"
        assert names(tmp_path / "there") == ["dangling", "known"]

    def test_links_in_a_circle(self, tmp_path):
        (tmp_path / "a").symlink_to("b")
        (tmp_path / "b").symlink_to("a")
        with pytest.raises(OSError, match="symbolic links"):
            files.write_text(tmp_path / "a", "new")
        assert names(tmp_path) == ["a", "b"]

    def test_a_fifo_is_written_through(self, tmp_path):
        path, found = tmp_path / "fifo", []
        os.mkfifo(path)
        reader = threading.Thread(target=lambda: found.append(path.read_bytes()))
        reader.start()
        with whole_file(path) as temporary:
            temporary.write_bytes(b"first")
            assert temporary.parent != tmp_path
            assert not found
        reader.join(10)
        assert found == [b"first"]
        assert stat.S_ISFIFO(path.stat().st_mode)
        assert names(tmp_path) == ["fifo"]
        assert not temporary.exists()

    def test_a_fifo_gets_nothing_of_what_fails(self, tmp_path):
        path = tmp_path / "fifo"
        os.mkfifo(path)
        with pytest.raises(ZeroDivisionError), whole_file(path) as temporary:
            temporary.write_bytes(b"half")
            1 / 0  # noqa: B018
        assert stat.S_ISFIFO(path.stat().st_mode)

    def test_sockets_and_folders_are_refused(self, tmp_path, monkeypatch):
        import socket

        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as made:
            made.bind("s")
            with pytest.raises(OSError, match="Invalid argument: 's'"):
                files.write_text("s", "new")
            assert stat.S_ISSOCK(os.stat("s").st_mode)
        os.mkdir("folder")
        with pytest.raises(IsADirectoryError):
            files.write_text("folder", "new")
        assert names(tmp_path) == ["folder", "s"]

    def test_the_longest_names(self, tmp_path):
        for name in ("x" * 255, "ü" * 127, "y" * 250 + ".csv"):
            files.write_text(tmp_path / name, name)
            assert (tmp_path / name).read_text() == name
            assert len(os.fsencode(files.beside(tmp_path / name, "partial").name)) <= 255
        assert len(names(tmp_path)) == 3
        assert files.beside(tmp_path / ("x" * 255), "old") != files.beside(tmp_path / ("x" * 254 + "y"), "old")
        assert files.beside(tmp_path / "run", "partial").name == ".run.partial"
        with pytest.raises(OSError, match="name too long"):
            files.write_text(tmp_path / ("x" * 256), "new")

    def test_the_folder_is_synced_after_the_rename(self, tmp_path, monkeypatch):
        done = []
        monkeypatch.setattr(os, "fsync", lambda fd: done.append(stat.S_ISDIR(os.fstat(fd).st_mode)))
        replace = Path.replace
        monkeypatch.setattr(Path, "replace", lambda *paths: (done.append("rename"), replace(*paths))[1])
        files.write_text(tmp_path / "t", "new")
        assert done == [False, "rename", True]

    def test_a_folder_that_cannot_be_synced(self, tmp_path, monkeypatch):
        def refuse(fd):
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "Invalid argument")

        monkeypatch.setattr(os, "fsync", refuse)
        files.write_text(tmp_path / "t", "new")
        assert names(tmp_path) == ["t"]

    def test_a_missing_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            files.write_text(tmp_path / "none" / "t", "new")
        assert caught.value.filename == str(tmp_path / "none" / "t")


def write_half(path, connection):
    with whole_file(path) as temporary:
        temporary.write_text("half")
        connection.send(temporary)
        time.sleep(60)


@needs_locks
class TestLeftovers:
    def kill_while_writing(self, folder):
        here, there = PROCESSES.Pipe()
        process = PROCESSES.Process(target=write_half, args=(folder / "t.csv", there))
        process.start()
        assert here.poll(60)
        path = here.recv()
        yield path
        process.kill()
        process.join()
        yield path

    def test_what_a_killed_process_left_is_removed_by_the_next(self, tmp_path):
        steps = self.kill_while_writing(tmp_path)
        path = next(steps)
        files.write_text(tmp_path / "other", "new")
        assert path.read_text() == "half"  # its writer lives
        next(steps)
        assert path.exists()
        assert files.is_temporary(path.name)
        files.write_text(tmp_path / "other", "new")
        assert names(tmp_path) == ["other"]

    def test_nested_writers_do_not_take_each_other_for_lost(self, tmp_path):
        with whole_file(tmp_path / "a") as outer:
            outer.unlink()
            outer.write_text("another file under that name, as some writers make it")
            files.write_text(tmp_path / "b", "b")
        assert names(tmp_path) == ["a", "b"]

    def test_those_of_earlier_versions_are_removed_after_an_hour(self, tmp_path):
        name = f".q.safetensors.{'0' * 32}.tmp"
        kept = [f".q.{'0' * 31}.tmp", ".bayesadam-notes", "bayesadam-0123456789abcdef", ".mine.tmp"]
        for each in (name, *kept):
            (tmp_path / each).write_text("half")
            os.utime(tmp_path / each, (time.time() - 1800,) * 2)
        files.write_text(tmp_path / "t", "new")
        assert name in names(tmp_path)
        for each in (name, *kept):
            os.utime(tmp_path / each, (time.time() - 7200,) * 2)
        files.write_text(tmp_path / "t", "new")
        assert names(tmp_path) == sorted(["t", *kept])


class TestJson:
    RULE = "it must be good"

    def test_is_read_as_it_was_written(self, tmp_path):
        record = {"a": [1, 2.5e-300, -0.0, None, True], "Köln": {"x": "\u2028"}, "digest": "of another"}
        digest = write_json(tmp_path / "r", record, indent=1)
        found, told = read_json(tmp_path / "r", self.RULE)
        assert told == digest
        assert found == {"a": record["a"], "Köln": record["Köln"]}
        assert math.copysign(1.0, found["a"][2]) == -1.0
        assert "Köln" in (tmp_path / "r").read_text(encoding="utf-8")
        (tmp_path / "r").write_text(json.dumps(json.loads((tmp_path / "r").read_text()), indent=4))  # another layout
        assert read_json(tmp_path / "r", self.RULE) == (found, digest)

    def test_names_of_files_that_are_no_text(self, tmp_path):
        write_json(tmp_path / "r", {"file": "data\udcff.csv"})
        assert read_json(tmp_path / "r", self.RULE)[0] == {"file": "data\udcff.csv"}

    def test_numbers_that_are_none(self, tmp_path):
        with pytest.raises(ValueError, match="JSON"):
            write_json(tmp_path / "r", {"a": math.nan})
        assert names(tmp_path) == []

    def test_without_a_digest(self, tmp_path):
        write_json(tmp_path / "r", {"a": 1}, digest=False)
        assert (tmp_path / "r").read_text() == '{"a": 1}\n'
        assert read_json(tmp_path / "r", self.RULE) == ({"a": 1}, None)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"{",
            b"[]",
            b"3",
            b"\xff\xfe{}",
            b'{"a": NaN}',
            b'{"a": 1e999}',
            b'{"a": 1, "digest": "0"}',
            b'{"a": 1, "digest": []}',
            b'{"a": ' + b"[" * 60_000 + b"]" * 60_000 + b"}",
            b'{"a": ' + b"9" * 10_000 + b"}",
        ],
    )
    def test_damage(self, tmp_path, content):
        (tmp_path / "r").write_bytes(content)
        with pytest.raises(DamagedFile, match="^it must be good, got '.*r' \\(.*\\)$"):
            read_json(tmp_path / "r", self.RULE)

    def test_flipped_bits(self, tmp_path):
        record = {"version": 2, "std": [0.5, 12.0], "name": "a"}
        write_json(tmp_path / "r", record)
        content = (tmp_path / "r").read_bytes()
        for place in range(len(content)):
            broken = bytearray(content)
            broken[place] ^= 1 << place % 8
            (tmp_path / "r").write_bytes(broken)
            try:
                found, told = read_json(tmp_path / "r", self.RULE)
            except DamagedFile:
                continue
            # White space, or the name of the digest: what the file says is the same.
            assert {name: found[name] for name in record} == record
            assert told is not None or place < 10


class TestTensors:
    def test_are_read_as_they_were_written(self, tmp_path):
        digest = write_tensors(tmp_path / "q", "kind", TENSORS, {"a": torch.tensor([1.0, 2.0])})
        found = read_tensors(tmp_path / "q", "the file")
        assert (found.kind, found.hyperparameters, found.digest) == ("kind", {"a": [1.0, 2.0]}, digest)
        assert list(found.tensors) == list(TENSORS)
        other = safetensors.torch.load_file(tmp_path / "q")
        for name, value in TENSORS.items():
            for read in (found.tensors[name], other[name]):
                assert read.dtype == value.dtype
                assert torch.equal(read, value)

    def test_the_same_is_the_same_file(self, tmp_path):
        for name in "ab":
            write_tensors(tmp_path / name, "kind", TENSORS, {})
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_a_dtype_that_is_not_kept(self, tmp_path):
        with pytest.raises(TypeError, match=r"^the tensor 'z' must be of a dtype in \[.*\], got torch.complex64$"):
            write_tensors(tmp_path / "q", "kind", {"z": torch.zeros(1, dtype=torch.complex64)}, {})
        assert names(tmp_path) == []

    def test_flipped_bits(self, tmp_path):
        write_tensors(tmp_path / "q", "kind", {"w": torch.arange(3.0)}, {"a": 1})
        content = (tmp_path / "q").read_bytes()
        for place in range(len(content)):
            broken = bytearray(content)
            broken[place] ^= 1 << place % 8
            (tmp_path / "q").write_bytes(broken)
            with pytest.raises(DamagedFile):
                read_tensors(tmp_path / "q", "the file")

    @pytest.mark.parametrize(
        "tensors",
        [
            {"w": torch.zeros(2, dtype=torch.complex64)},
            {"w": torch.zeros(2, dtype=torch.float8_e4m3fn)},
            {"w": torch.zeros(2, dtype=torch.uint16)},
        ],
    )
    def test_foreign_dtypes(self, tmp_path, tensors):
        fields = {"format_version": 1, "kind": "kind", "tensors": ["w"], "hyperparameters": {}}
        safetensors.torch.save_file(tensors, tmp_path / "q", {"bayesadam.posterior": json.dumps(fields)})
        with pytest.raises(DamagedFile, match="^the file must be a complete safetensors file, got "):
            read_tensors(tmp_path / "q", "the file")

    def test_while_another_writes(self, tmp_path):
        """Every file that is read is one of those that were written."""
        path, stop = tmp_path / "q", threading.Event()

        def write():
            number = 0
            while not stop.is_set():
                number += 1
                write_tensors(path, "kind", {"w": torch.full((100,), float(number))}, {"number": number})

        write_tensors(path, "kind", {"w": torch.zeros(100)}, {"number": 0})
        writer = threading.Thread(target=write)
        writer.start()
        try:
            for _ in range(50):
                found = read_tensors(path, "the file")
                assert (found.tensors["w"] == found.hyperparameters["number"]).all()
        finally:
            stop.set()
            writer.join()
