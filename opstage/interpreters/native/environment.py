"""All that decides which machine code a source becomes, beside the source itself, as one digest.

Kept machine code is found under a name that holds this digest, so code of another Opstage, compiler, processor or
setting is not found at all. The files are taken whole: numba itself looks at the file of the outermost function alone,
and would not notice a change in a formula that this calls.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .processor import processor

PACKAGE = Path(__file__).resolve().parents[2]

SOURCES = (
    "interpreters/native",
    "interpreters/native/frontend",
    "interpreters/scalar",
    "interpreters/eager_cpu/loops",
    "interpreters/host.py",
    "interpreters/codegen",
    "interpreters/codegen/cpu",
    "interpreters/graph/cpu",
    "ops/splitmix.py",
)
"""The folders and files of the package that are compiled, or that generate the source of what is."""

_COMPILERS = ("numba", "llvmlite")
_ELSEWHERE = (  # places, what GPUs do, and threads, among which a step is divided when it runs
    "NUMBA_CACHE_",
    "NUMBA_CUDA_",
    "NUMBA_DEBUG_CACHE",
    "NUMBA_DISABLE_CUDA",
    "NUMBA_ENABLE_CUDASIM",
    "NUMBA_NUM_THREADS",
    "NUMBA_THREADING_LAYER",
)
_SETTINGS_FILE = ".numba_config.yaml"  # which numba reads from the current folder


@cache
def environment() -> str:
    """The digest, hexadecimal; "" where the package's sources cannot be read, as in a zip file."""
    sources = compiled_sources()
    if not sources:
        return ""
    parts = [sources, *_versions(), *processor(), *numba_settings(os.environ)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def compiled_sources(package: Path = PACKAGE) -> str:
    """A digest of the names and contents of SOURCES; "" where one of them is missing."""
    digest = hashlib.sha256()
    for name in SOURCES:
        place = package / name
        files = sorted(place.glob("*.py")) if place.suffix != ".py" else [place]
        if not files:
            return ""
        for path in files:
            try:
                content = path.read_bytes()
            except OSError:
                return ""
            digest.update(f"{name}/{path.name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def numba_settings(environ: Mapping[str, str]) -> list[str]:
    """Numba's settings, but for those that do not change code; one that is not known here is taken to change it."""
    found = [f"{name}={value}" for name, value in environ.items() if name.startswith("NUMBA_")]
    found = sorted(setting for setting in found if not setting.startswith(_ELSEWHERE))
    try:
        found.append(hashlib.sha256(Path(_SETTINGS_FILE).read_bytes()).hexdigest())
    except OSError:
        pass
    return found


def _versions() -> Iterator[str]:
    yield f"opstage {sys.modules['opstage'].__version__}"
    yield f"python {sys.implementation.cache_tag} {platform.python_version()}"
    yield f"numpy {np.__version__}"
    for name in _COMPILERS:
        yield f"{name} {_version_of(name)}"
    prefix = os.path.dirname(os.path.dirname(sys.executable or ""))
    vector_math = Path(prefix, "lib", "libsvml.so")  # numba makes calls of it where there is one
    yield f"svml {vector_math.stat().st_size if vector_math.exists() else None}"


def _version_of(name: str) -> str:
    """Of the package that an import would find, which need not be the one that was installed; without importing it."""
    spec = find_spec(name)
    for folder in (spec.submodule_search_locations if spec is not None else None) or ():
        try:
            return Path(folder, "_version.py").read_text("utf-8")
        except OSError:
            continue
    try:
        return version(name)
    except PackageNotFoundError:
        return "unknown"
