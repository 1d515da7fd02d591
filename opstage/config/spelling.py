"""Settings as spelled in messages: as command-line flags, and in Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .toml import toml_literal


def spelled(settings: Mapping[str, Any]) -> str:
    """Spell settings by dotted path as flags and as arguments of `opstage.fit`.

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
