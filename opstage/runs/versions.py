"""run.json: the versions, machine, seed and data of a run, so that it can be reproduced."""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..data import Dataset
from ..data.preparation import Preparation
from ..documents import Document
from ..ops.errors import UsageError
from ..tensors import read_bytes
from .directory import PREPARATION, RUN

PACKAGES = ("numpy", "numba", "llvmlite", "optree", "safetensors")
THREADS = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

UNSCALED = "held_out_unscaled"
"""The key in run.json of the digest of the held-out data before scaling, if they are scaled."""

FORMAT = 1
"""The format of a run directory; without an entry it is the first format."""

_ROWS = 4096


def describe_run(
    *, seed: int, model: str, parameters: int, data: Mapping[str, Any], source: Mapping[str, str]
) -> dict[str, Any]:
    """Return everything but the configuration: versions, machine, seed, the model's size and the digests of its files
    and of the data."""
    versions = {"opstage": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            pass
    return {
        "format": FORMAT,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        **({"commit": commit} if (commit := _commit()) else {}),
        "model": model,
        "parameters": parameters,
        "seed": seed,
        "data": dict(data),
        **({"source": dict(source)} if source else {}),
        "versions": versions,
        "machine": {"platform": platform.platform(), "processors": os.cpu_count(), "blas": _blas()},
        "environment": {name: os.environ[name] for name in THREADS if name in os.environ},
    }


def _commit() -> str:
    """Return the git commit of the current folder, with `, changed` if files differ from it; "" outside of git."""
    try:
        asked: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 5, "check": True}
        commit = subprocess.run(["git", "rev-parse", "HEAD"], **asked).stdout.strip()
        changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **asked).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit}, changed" if changed else commit


def run_document(path: Path) -> Document:
    """Return the description that `describe_run` made, read from its file.

    Raises `UsageError` for a file that is not JSON, and for a run directory of another format.
    """
    document = Document.of(
        read_bytes(path), f"{path}: cannot be read as the description of a run", "restore it from a copy"
    )
    found = document.get("format")
    if found is not None and found.count() != FORMAT:
        raise UsageError(
            f"{path}: of format {found.count()}, written by Opstage {_writer(document)}; this is Opstage "
            f"{__version__}, which reads format {FORMAT}: use the version that wrote it"
        )
    return document


def other_version(directory: Path) -> str:
    """Return a sentence if the run in a directory was started with another version of Opstage; else, or without a
    description, "". Raises `UsageError`."""
    path = directory / RUN
    began = _writer(run_document(path)) if path.exists() else __version__
    if began == __version__:
        return ""
    return f"{directory} was started with Opstage {began} and this is {__version__}: numbers may differ"


def _writer(document: Document) -> str:
    """Return the version of Opstage in a description."""
    versions = document.get("versions")
    writer = None if versions is None else versions.get("opstage")
    return "of an unknown version" if writer is None else writer.text()


def read_run(path: Path) -> dict[str, Any]:
    """Read the description made by `describe_run` from its file. Raises `UsageError`."""
    document = run_document(path)
    return {**document.object(), "data": read_digests(document["data"])}


def read_preparation(directory: Path) -> Preparation | None:
    """Return the preparation that a run has learned from its data file, or None. Raises UsageError."""
    file = directory / PREPARATION
    if file.exists() and not (directory / RUN).exists():
        raise UsageError(
            f"{directory / RUN}: is missing, and nothing else says which data it had; restore it from a copy"
        )
    digest = read_run(directory / RUN).get("preparation") if (directory / RUN).exists() else None
    if not file.exists() and digest is None:
        return None
    text = read_bytes(file) if file.exists() else None
    if text is None or hashlib.sha256(text).hexdigest() != digest:
        what = "is missing" if text is None else "has changed"
        raise UsageError(f"{file}: {what}, without which the run's data cannot be read alike; restore it from a copy")
    return Preparation.of(Document.of(text, str(file), "restore it from a copy"))


def read_digests(document: Document) -> dict[str, dict[str, Any]]:
    """Return the digests of the data by part, as `data_digest` returns them. Raises `UsageError`."""
    return {
        part: {
            "rows": digest["rows"].count(),
            "arrays": {name: text.text() for name, text in digest["arrays"].items()},
        }
        for part, digest in document.items()
    }


def show_digest(part: Mapping[str, Any]) -> str:
    """Describe a part of the data, with abbreviated checksums: `1438 rows (x <f4 [1438, 64] sha256:0123456789ab)`."""
    arrays = ", ".join(f"{name} {_short(text)}" for name, text in part["arrays"].items())
    return f"{part['rows']} rows ({arrays})"


def _short(digest: str) -> str:
    head, mark, digits = digest.partition("sha256:")
    return f"{head}{mark}{digits[:12]}"


def data_digest(dataset: Dataset) -> dict[str, Any]:
    """Return the number of rows, and for each array its type and the SHA-256 of its bytes: equal for equal data,
    wherever stored."""
    arrays = {
        name: f"{array.dtype.str} {list(array.shape)} sha256:{_digest(array)}"
        for name, array in zip(dataset.names, dataset.arrays)
    }
    return {"rows": len(dataset), "arrays": arrays}


def _digest(array: Any) -> str:
    """Hash some rows at a time: the windows of a text overlap, and all at once would be many times the text."""
    digest = hashlib.sha256()
    for start in range(0, len(array), _ROWS):
        digest.update(np.ascontiguousarray(array[start : start + _ROWS]).tobytes())
    return digest.hexdigest()


def _blas() -> list[str]:
    from threadpoolctl import threadpool_info

    return [
        f"{library['internal_api']} {library.get('version')}, {library.get('architecture', 'unknown')}, "
        f"{library['num_threads']} threads"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    ]
