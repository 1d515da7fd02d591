"""The processor, and a digest of everything that machine code depends on, except the source itself.

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
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import numpy as np

# The processor --------------------------------------------------------------------------------------------------------

_INFORMATION = Path("/proc/cpuinfo")
_NAMING = ("vendor_id", "cpu family", "model", "stepping", "model name")


@cache
def processor() -> tuple[str, ...]:
    """Return names that differ between processors for which LLVM generates different code."""
    found = _told() if sys.platform == "linux" and platform.machine() == "x86_64" else {}
    if "flags" in found:
        return ("linux", "x86_64", *(found.get(name, "") for name in _NAMING), " ".join(sorted(found["flags"].split())))
    llvm = import_module("llvmlite.binding")
    return llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()


@cache
def has_avx512() -> bool:
    """Whether there are 32 registers of 64 bytes, and the system saves them."""
    told = processor()
    if told[:2] == ("linux", "x86_64"):
        return "avx512f" in told[-1].split()
    return bool(import_module("llvmlite.binding").get_host_cpu_features().get("avx512f"))


def _told() -> dict[str, str]:
    """Return the system's description of the first processor, by name."""
    try:
        first = _INFORMATION.read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


# The digest -----------------------------------------------------------------------------------------------------------

PACKAGE = Path(__file__).resolve().parents[2]

SOURCES = (
    "compiler/native",
    "compiler/native/frontend",
    "compiler/scalar.py",
    "interpreters/eager_cpu/loops",
    "ops/host_arrays.py",
    "compiler/codegen",
    "compiler/codegen/cpu",
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
