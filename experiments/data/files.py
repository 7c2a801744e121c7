"""Files in a folder of the user, or downloaded by pooch to the user's cache; with a checksum if one is known."""

from __future__ import annotations

import os
from pathlib import Path

import pooch

VARIABLE = "BAYESADAM_DATA"
"""Environment variable with the path of a folder that has the files. If it is set, nothing is downloaded."""

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
DOWNLOADS = pooch.create(path=pooch.os_cache("bayesadam"), base_url="", retry_if_failed=2)
DOWNLOADS.load_registry(Path(__file__).with_name("registry.txt"))

UNCHECKED = {
    "uci-extra/year/YearPredictionMSD.txt.zip": f"{UCI}/00203/YearPredictionMSD.txt.zip",
    "bandits/census/USCensus1990.data.txt": f"{UCI}/census1990-mld/USCensus1990.data.txt",
}
"""Addresses of files whose checksum is not known. Their parsers check the numbers of rows and columns."""
DOWNLOADS.registry |= dict.fromkeys(UNCHECKED)
DOWNLOADS.urls |= UNCHECKED

COPIES = {
    "usps/zip.train.gz": "51bf769d7e7eab6126d1a01c51073c77713296e8d65c13de6bd8020e774d8884",
    "usps/zip.test.gz": "0e25acc00463f1e673d7cc48aeb8a63216efc227947655c2195323d90553642b",
    "bandits/shuttle/shuttle.trn": "87b24ee9fb5137e1d417659cf905d84d0e15342bbaa60770f1ae83da1a38200a",
}
"""Digests of files in a folder with the published text in another compression: without time stamp, or decompressed."""


def fetch(path: str) -> Path:
    """Return the place of a file, which is downloaded if no folder is given, and whose checksum is correct if known.

    Args:
        path: Path in the data folder, as in ``registry.txt``, or absolute for a file of the user.

    Raises:
        FileNotFoundError: The given folder lacks the file.
        ValueError: The checksum is wrong.
    """
    if Path(path).is_absolute():
        return Path(path)
    given = os.environ.get(VARIABLE)
    if not given:
        return Path(DOWNLOADS.fetch(path))
    file = Path(given, path)
    if file.suffix == ".Z" and file.with_suffix("").is_file():
        file, path = file.with_suffix(""), path.removesuffix(".Z")
    if not file.is_file():
        raise FileNotFoundError(
            f"{file} must exist: put the file from {DOWNLOADS.get_url(path)} there, "
            f"or unset {VARIABLE} to let it be downloaded"
        )
    if path in UNCHECKED:
        return file
    expected = {DOWNLOADS.registry.get(path, "").removeprefix("sha256:"), COPIES.get(path)}
    found = pooch.file_hash(str(file))
    if found not in expected:
        raise ValueError(f"{file} must have the sha256 of the published file, got {found}")
    return file
