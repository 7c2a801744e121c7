"""The one writer and the one reader: whole files, whatever stops the process, and damage that is one error."""

import json
import math
import os
import resource
import socket
import stat
import time
from pathlib import Path

import pytest
import safetensors.torch
import torch

from bayesadam import files
from bayesadam.files import DamagedFile, read_json, read_tensors, whole_file, write_json, write_tensors
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

    def test_a_symbolic_link_is_replaced_and_never_followed(self, tmp_path):
        (tmp_path / "there").mkdir()
        for name, old in (("known", "old"), ("dangling", None)):
            target = tmp_path / "there" / name
            if old:
                target.write_text(old)
            (tmp_path / name).symlink_to(Path("there") / name)
            files.write_text(tmp_path / name, "new")
            assert not (tmp_path / name).is_symlink()
            assert (tmp_path / name).read_text() == "new"
        assert (tmp_path / "there" / "known").read_text() == "old"
        assert names(tmp_path / "there") == ["known"]

    @pytest.mark.parametrize("kind", ["fifo", "socket", "folder"])
    def test_what_is_no_file_is_neither_written_to_nor_replaced(self, tmp_path, monkeypatch, kind):
        monkeypatch.chdir(tmp_path)  # the path of a socket must be short
        with socket.socket(socket.AF_UNIX) as made:
            {"fifo": os.mkfifo, "socket": made.bind, "folder": os.mkdir}[kind]("s")
            before = os.stat("s")
            with pytest.raises(OSError, match="Not a regular file: 's'"):
                write_tensors("s", "kind", TENSORS, {})
            assert os.stat("s").st_ino == before.st_ino
        assert names(tmp_path) == ["s"]

    def test_the_longest_names(self, tmp_path):
        for name in ("x" * 255, "ü" * 127, "y" * 250 + ".csv"):
            files.write_text(tmp_path / name, name)
            assert (tmp_path / name).read_text() == name
        with pytest.raises(OSError, match="name too long"):
            files.write_text(tmp_path / ("x" * 256), "new")
        assert len(names(tmp_path)) == 3

    def test_the_content_is_synced_before_the_rename(self, tmp_path, monkeypatch):
        done = []
        monkeypatch.setattr(os, "fsync", lambda fd: done.append("sync"))
        replace = Path.replace
        monkeypatch.setattr(Path, "replace", lambda *paths: (done.append("rename"), replace(*paths))[1])
        files.write_text(tmp_path / "t", "new")
        assert done == ["sync", "rename"]

    @pytest.mark.parametrize("old", [None, "old"])
    def test_an_error_leaves_what_was_there(self, tmp_path, old):
        if old:
            (tmp_path / "t").write_text(old)
        with pytest.raises(ZeroDivisionError), whole_file(tmp_path / "t") as temporary:
            temporary.write_text("half")
            1 / 0  # noqa: B018
        assert [path.read_text() for path in tmp_path.iterdir()] == ([old] if old else [])

    def test_a_missing_folder(self, tmp_path):
        with pytest.raises(FileNotFoundError) as caught:
            files.write_text(tmp_path / "none" / "t", "new")
        assert caught.value.filename == str(tmp_path / "none" / "t")


def write_half(path, connection):
    with whole_file(path) as temporary:
        temporary.write_text("half")
        connection.send(temporary)
        time.sleep(60)


class TestLeftovers:
    def test_what_a_killed_process_left_is_removed_after_a_day(self, tmp_path):
        here, there = PROCESSES.Pipe()
        process = PROCESSES.Process(target=write_half, args=(tmp_path / "t.csv", there))
        process.start()
        assert here.poll(60)
        path = here.recv()
        process.kill()
        process.join()
        assert path.read_text() == "half"
        assert files._TEMPORARY.fullmatch(path.parent.name)
        files.write_text(tmp_path / "other", "new")
        assert path.exists()
        for each in (path, path.parent):
            os.utime(each, (time.time() - 90_000,) * 2)
        files.write_text(tmp_path / "other", "new")
        assert names(tmp_path) == ["other"]

    def test_a_folder_in_which_something_changes_is_in_use(self, tmp_path):
        with whole_file(tmp_path / "a") as outer:
            outer.write_text("new")
            os.utime(outer.parent, (time.time() - 90_000,) * 2)
            files.write_text(tmp_path / "b", "b")
        assert names(tmp_path) == ["a", "b"]

    def test_names_that_are_not_ours_are_kept(self, tmp_path):
        kept = [".bayesadam-notes", ".mine.tmp", ".bayesadam-abcdefgh.tmp.bak", "bayesadam-abcdefgh.tmp"]
        for name in kept:
            (tmp_path / name).mkdir()
            os.utime(tmp_path / name, (0, 0))
        files.write_text(tmp_path / "t", "new")
        assert names(tmp_path) == sorted(["t", *kept])


def flips(path):
    """Writes the file again with one other bit in each byte, one after another; gives the places."""
    content = path.read_bytes()
    for place in range(len(content)):
        broken = bytearray(content)
        broken[place] ^= 1 << place % 8
        path.write_bytes(broken)
        yield place


class TestJson:
    RULE = "it must be good"

    def test_is_read_as_it_was_written(self, tmp_path):
        record = {"a": [1, 2.5e-300, -0.0, None, True], "Köln": {"x": "\u2028"}, "digest": "of another"}
        digest = write_json(tmp_path / "r", record, indent=1)
        found, told = read_json(tmp_path / "r", self.RULE)
        assert told == digest
        assert found == {"a": record["a"], "Köln": record["Köln"]}
        assert math.copysign(1.0, found["a"][2]) == -1.0
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
            b'{"a": -1e200}',
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
        for place in flips(tmp_path / "r"):
            try:
                found, told = read_json(tmp_path / "r", self.RULE)
            except DamagedFile:
                continue
            # White space, or the name of the digest: what the file says is the same.
            assert {name: found[name] for name in record} == record
            assert told is not None or place < 10


@pytest.mark.parametrize("kind", ["device", "fifo"])
def test_only_regular_files_are_read(tmp_path, kind):
    """Others may never end, and opening a FIFO waits for a writer."""
    path = tmp_path / "q"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mkfifo(path)
    for read in (read_json, read_tensors):
        with pytest.raises(OSError, match=f"Not a regular file: '{path}'"):
            read(path, "the file")
    with files.locked(path):
        pass


class TestTensors:
    def test_are_read_as_they_were_written(self, tmp_path):
        digest = write_tensors(tmp_path / "q", "kind", TENSORS, {"a": torch.tensor([1.0, 2.0])})
        found = read_tensors(tmp_path / "q", "the file")
        assert (found.kind, found.hyperparameters, found.digest) == ("kind", {"a": [1.0, 2.0]}, digest)
        assert list(found.tensors) == list(TENSORS)
        write_tensors(tmp_path / "numbers", "kind", {}, {"widths": {9: 0.5, 10: 0.25}})  # "10" is before "9"
        assert read_tensors(tmp_path / "numbers", "the file").hyperparameters == {"widths": {"9": 0.5, "10": 0.25}}
        other = safetensors.torch.load_file(tmp_path / "q")
        for name, value in TENSORS.items():
            for read in (found.tensors[name], other[name]):
                assert read.dtype == value.dtype
                assert torch.equal(read, value)

    def test_the_same_is_the_same_file(self, tmp_path):
        for name in "ab":
            write_tensors(tmp_path / name, "kind", TENSORS, {})
        assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()

    def test_flipped_bits(self, tmp_path):
        write_tensors(tmp_path / "q", "kind", {"w": torch.arange(3.0)}, {"a": 1})
        content = (tmp_path / "q").read_bytes()
        expected = read_tensors(tmp_path / "q", "the file")
        for place in flips(tmp_path / "q"):
            try:
                found = read_tensors(tmp_path / "q", "the file")
            except DamagedFile:
                continue
            assert chr(content[place]) == " "  # which fills up the header: what the file says is the same
            assert (found.kind, found.hyperparameters) == (expected.kind, expected.hyperparameters)
            assert torch.equal(found.tensors["w"], expected.tensors["w"])

    def test_a_file_that_is_replaced_while_it_is_read(self, tmp_path, monkeypatch):
        for name, value in (("q", 1.0), ("new", 2.0)):
            write_tensors(tmp_path / name, "kind", {"w": torch.full((3,), value)}, {})
        loads = json.loads

        def replaced(*arguments, **options):
            if (tmp_path / "new").exists():
                (tmp_path / "new").replace(tmp_path / "q")
            return loads(*arguments, **options)

        monkeypatch.setattr(json, "loads", replaced)
        assert read_tensors(tmp_path / "q", "the file").tensors["w"].tolist() == [1.0] * 3
        monkeypatch.undo()
        assert read_tensors(tmp_path / "q", "the file").tensors["w"].tolist() == [2.0] * 3

    def test_a_disk_that_is_full(self, tmp_path):
        """The system's own error, as for any other file."""
        write_tensors(tmp_path / "q", "kind", TENSORS, {})
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                write_tensors(tmp_path / "q", "kind", {"w": torch.zeros(10_000)}, {})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert list(read_tensors(tmp_path / "q", "the file").tensors) == list(TENSORS)

    def test_the_digest_covers_names_shapes_and_dtypes(self, tmp_path):
        values = torch.tensor([1, 0, 2, 0], dtype=torch.int32)
        digests = {
            write_tensors(tmp_path / "q", kind, {name: value}, told)
            for kind, name, value, told in (
                ("kind", "w", values, {}),
                ("other", "w", values, {}),
                ("kind", "v", values, {}),
                ("kind", "w", values.reshape(2, 2), {}),
                ("kind", "w", values.view(torch.int64), {}),
                ("kind", "w", values, {"a": 1}),
            )
        }
        assert len(digests) == 6

    def test_many_tensors_and_long_headers(self, tmp_path, monkeypatch):
        """Small files that would take many times their size in memory."""
        path, tensors = tmp_path / "q", {str(number): torch.empty(0) for number in range(20)}
        write_tensors(path, "kind", tensors, {})
        read_tensors(path, "the file")
        monkeypatch.setattr(files, "MOST_TENSORS", 19)
        with pytest.raises(DamagedFile, match="it must have at most 19 tensors, got 20"):
            read_tensors(path, "the file")
        with pytest.raises(ValueError, match="^tensors must be at most 19, got 20$"):
            write_tensors(tmp_path / "other", "kind", tensors, {})
        assert not (tmp_path / "other").exists()
        monkeypatch.setattr(files, "MOST_HEADER", 100)
        with pytest.raises(DamagedFile, match="its header must have at most 100 bytes, got "):
            read_tensors(path, "the file")

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            (lambda header, fields: fields.update(tensors=["w"] * 3), "its list of tensors is not that of its header"),
            (lambda header, fields: header["w"].update(shape=[2**40]), "Error while deserializing"),
            (
                lambda header, fields: header.update(v=dict(header["w"])),
                "its list of tensors is not that of its header",
            ),
        ],
    )
    def test_what_a_header_says_is_compared_with_the_size(self, tmp_path, monkeypatch, change, reason):
        """Before there is memory for it, and with a right digest."""
        path = tmp_path / "q"
        write_tensors(path, "kind", {"w": torch.zeros(3)}, {})
        content = path.read_bytes()
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        fields = json.loads(header["__metadata__"]["bayesadam"])
        del fields["digest"]
        change(header, fields)
        header["__metadata__"]["bayesadam"] = json.dumps({"digest": files._digest(fields, {}), **fields})
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
        monkeypatch.setattr(torch, "empty", None)
        with pytest.raises(DamagedFile, match=reason):
            read_tensors(path, "the file")

    def test_another_version(self, tmp_path, monkeypatch):
        monkeypatch.setattr(files, "VERSION", 2)
        write_tensors(tmp_path / "q", "kind", TENSORS, {})
        monkeypatch.undo()
        with pytest.raises(DamagedFile, match=r"\(its version is 2, not 1\)$"):
            read_tensors(tmp_path / "q", "the file")
