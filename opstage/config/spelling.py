"""Settings as messages name them: as flags of the command line, and as Python has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .toml import toml_literal


def spelled(settings: Mapping[str, Any]) -> str:
    """Some settings by their dotted paths, as flags and for `opstage.fit`.

    `{"data.label": "kind"}` is `--data.label kind, in Python settings={'data': {'label': 'kind'}}`.
    """
    tables: dict[str, dict[str, Any]] = {}
    for path, value in settings.items():
        table, _, name = path.rpartition(".")
        tables.setdefault(table, {})[name] = value
    flags = " ".join(f"--{path} {_flag(value)}" for path, value in settings.items())
    return f"{flags}, in Python settings={tables}"


def _flag(value: Any) -> str:
    if isinstance(value, str):
        return value
    return ",".join(map(str, value)) if isinstance(value, tuple) else toml_literal(value)
