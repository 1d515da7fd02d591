"""A digest of everything that machine code depends on, except the source itself.

Cached machine code is named by this digest, so code of another Opstage, compiler, processor or setting is never found.
Whole files are hashed: numba itself checks only the file of the outermost function, and would not notice a change in a
formula that this calls.
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
"""The folders and files of the package that are compiled, or that generate compiled source."""

_COMPILERS = ("numba", "llvmlite")
_ELSEWHERE = (  # paths, GPU settings, and threads, over which a step is divided at run time
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
    """Return the digest, hexadecimal; "" if the package's sources cannot be read, as in a zip file."""
    sources = compiled_sources()
    if not sources:
        return ""
    parts = [sources, *_versions(), *processor(), *numba_settings(os.environ)]
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()


def compiled_sources(package: Path = PACKAGE) -> str:
    """Return a digest of the names and contents of SOURCES; "" if one of them is missing."""
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
    """Return numba's settings, except those that do not affect code; an unknown one is assumed to affect it."""
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
    vector_math = Path(prefix, "lib", "libsvml.so")  # numba calls it if present
    yield f"svml {vector_math.stat().st_size if vector_math.exists() else None}"


def _version_of(name: str) -> str:
    """Return the version of the package that an import would find, without importing it."""
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
