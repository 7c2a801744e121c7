"""File formats in pure Python and numpy: bytes in, arrays out. The checksum has been checked before."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
from collections.abc import Sequence
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_SHEET = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def unpack(content: bytes) -> bytes:
    """Decompress gzip, Unix compress (``.Z``) and zip with one member; anything else passes through."""
    if content.startswith(b"\x1f\x8b"):
        return gzip.decompress(content)
    if content.startswith(b"\x1f\x9d"):
        return uncompress(content)
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            (member,) = archive.namelist()
            return archive.read(member)
    return content


def uncompress(content: bytes) -> bytes:
    """Decompress what Unix ``compress`` wrote: LZW with codes of 9 bits and more, least significant bit first.

    Codes come in groups of eight; where the width changes, the rest of the group is padding.
    """
    widest, block = content[2] & 31, content[2] >> 7
    clear = 256 if block else -1
    start = [bytes((i,)) for i in range(256)] + [b""] * block
    table, width, previous, position = start.copy(), 9, b"", 3
    out = []
    while position < len(content):
        group = content[position : position + width]
        position += width
        bits = int.from_bytes(group, "little")
        for i in range(8 * len(group) // width):
            code = (bits >> (i * width)) & ((1 << width) - 1)
            if code == clear:
                table, width, previous = start.copy(), 9, b""
                break
            entry = table[code] if code < len(table) else previous + previous[:1]
            out.append(entry)
            if previous and len(table) < 1 << widest:
                table.append(previous + entry[:1])
            previous = entry
            if len(table) >> width and width < widest:
                width += 1
                break
    return b"".join(out)


def lines(content: bytes) -> list[str]:
    """Lines of a text file that are not empty, whatever their ends and byte order mark."""
    return [line for line in content.decode("utf-8-sig").splitlines() if line.strip()]


def numbers(rows: Sequence[str], delimiter: str | None = None) -> Floats:
    """Table of numbers, ``(rows, columns)``; split at white space by default."""
    return np.loadtxt(rows, delimiter=delimiter, ndmin=2)


def cells(rows: Sequence[str]) -> NDArray[np.str_]:
    """Table of words separated by commas, ``(rows, columns)``."""
    return np.array([[cell.strip() for cell in row.split(",")] for row in rows])


def libsvm(rows: Sequence[str], num_features: int) -> tuple[Floats, NDArray[np.int64]]:
    """Sparse text ``label index:value ...``, indices from 1: dense features ``(n, num_features)``, labels ``(n,)``."""
    x = np.zeros((len(rows), num_features))
    y = np.zeros(len(rows), dtype=np.int64)
    for i, row in enumerate(rows):
        label, *pairs = row.split()
        y[i] = int(label)
        for pair in pairs:
            index, value = pair.split(":")
            x[i, int(index) - 1] = float(value)
    return x, y


def idx(content: bytes) -> NDArray[np.uint8]:
    """IDX array of bytes (the MNIST format) in its own shape."""
    num_axes = content[3]
    shape = struct.unpack_from(f">{num_axes}I", content, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * num_axes).reshape(shape)


def mat5(content: bytes) -> Floats:
    """The one matrix of doubles in a MATLAB 5 file that is little-endian and not compressed."""
    position, elements = 136, []
    while position < len(content):
        _, size = struct.unpack_from("<II", content, position)
        elements.append(content[position + 8 : position + 8 + size])
        position += 8 + -(-size // 8) * 8
    _, shape, _, values = elements
    return np.frombuffer(values, "<f8").reshape(np.frombuffer(shape, "<i4"), order="F")


def xlsx(content: bytes) -> Floats:
    """Numbers on the first sheet of a workbook below its header row; empty rows and cells are left out."""
    with zipfile.ZipFile(io.BytesIO(content)) as book:
        sheet = ElementTree.fromstring(book.read("xl/worksheets/sheet1.xml"))
    rows = [[cell.findtext(f"{_SHEET}v") for cell in row] for row in sheet.iter(f"{_SHEET}row")]
    table = [[float(value) for value in row if value is not None] for row in rows[1:]]
    return np.array([row for row in table if row])


def one_hot(columns: NDArray[np.str_], names: Sequence[str]) -> tuple[Floats, tuple[str, ...]]:
    """Indicators of every value of every column, values sorted: ``(n, sum of values)`` and names ``column=value``."""
    blocks, labels = [], []
    for name, column in zip(names, columns.T, strict=True):
        values, codes = np.unique(column, return_inverse=True)
        blocks.append(np.eye(len(values))[codes])
        labels += [f"{name}={value}" for value in values]
    return np.concatenate(blocks, axis=1), tuple(labels)
