"""The processor's name and features, read without LLVM where possible: importing that costs 40 MB."""

from __future__ import annotations

import platform
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

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
