"""Packages whose names are imported on first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package that imports each name from its module when it is first used.

    homes   the names of each module, separated by spaces: {".run": "RunOutcome train"}

    So one module of a package can be imported without the others.
    """
    home_of = {name: module for module, names in homes.items() for name in names.split()}

    def named(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(import_module(home_of[name], package), name)
        vars(sys.modules[package])[name] = found
        return found

    return named
