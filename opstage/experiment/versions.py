"""run.json: what a run was made with, so that it can be made again."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..data import Dataset
from ..documents import Document
from ..tensors import read_bytes

PACKAGES = ("numpy", "numba", "llvmlite", "optree", "safetensors")
THREADS = ("OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")

UNSCALED = "held_out_unscaled"
"""Where run.json has the digest of the held-out data before they were scaled, if they are."""

_ROWS = 4096


def describe_run(
    *, seed: int, model: str, parameters: int, data: Mapping[str, Any], source: Mapping[str, str]
) -> dict[str, Any]:
    """Everything beside the configuration: versions, machine, seed, the model's size and the digests of its files and
    of the data."""
    versions = {"opstage": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            pass
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": model,
        "parameters": parameters,
        "seed": seed,
        "data": dict(data),
        **({"source": dict(source)} if source else {}),
        "versions": versions,
        "machine": {"platform": platform.platform(), "processors": os.cpu_count(), "blas": _blas()},
        "environment": {name: os.environ[name] for name in THREADS if name in os.environ},
    }


def run_document(path: Path) -> Document:
    """The description that `describe_run` made, as its file has it. Raises `UsageError` for what is no JSON."""
    return Document.of(
        read_bytes(path), f"{path}: cannot be read as the description of a run", "restore it from a copy"
    )


def read_run(path: Path) -> dict[str, Any]:
    """Read the description that `describe_run` made from its file. Raises `UsageError`."""
    document = run_document(path)
    return {**document.object(), "data": read_digests(document["data"])}


def read_digests(document: Document) -> dict[str, dict[str, Any]]:
    """The digests of data by its part, each as `data_digest` gives them. Raises `UsageError`."""
    return {
        part: {
            "rows": digest["rows"].count(),
            "arrays": {name: text.text() for name, text in digest["arrays"].items()},
        }
        for part, digest in document.items()
    }


def show_digest(part: Mapping[str, Any]) -> str:
    """`1438 rows (x <f4 [1438, 64] sha256:0123456789ab)`: a part of the data, with the first digits of checksums."""
    arrays = ", ".join(f"{name} {_short(text)}" for name, text in part["arrays"].items())
    return f"{part['rows']} rows ({arrays})"


def _short(digest: str) -> str:
    head, mark, digits = digest.partition("sha256:")
    return f"{head}{mark}{digits[:12]}"


def data_digest(dataset: Dataset) -> dict[str, Any]:
    """Rows, and per array its type and the SHA-256 of its bytes: equal for equal data, wherever they lie."""
    arrays = {
        name: f"{array.dtype.str} {list(array.shape)} sha256:{_digest(array)}"
        for name, array in zip(dataset.names, dataset.arrays)
    }
    return {"rows": len(dataset), "arrays": arrays}


def _digest(array: Any) -> str:
    """Some rows at a time: the windows of a text overlap, and all at once would be many times the text."""
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
