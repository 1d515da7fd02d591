"""origins.json: where each setting of a run came from when the run was started, kept for those who resume it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..documents import Document
from ..tensors import read_bytes

_ADVICE = "without the file the run goes on, and names its config.toml as their origin"


def origins_json(literals: Mapping[str, str], origins: Mapping[str, str]) -> str:
    """By dotted path a value as TOML spells it, and its origin."""
    return json.dumps({path: {"value": literals[path], "origin": origins[path]} for path in literals}, indent=1) + "\n"


def first_origins(file: Path, literals: Mapping[str, str], origins: Mapping[str, str]) -> dict[str, str]:
    """The origins that `file` keeps; for a value that is no longer the one kept, its present one in `origins`.

    A run that was started before origins were kept has no such file, and the present ones then. Raises `UsageError` for
    a file that cannot be read.
    """
    if not file.exists():
        return dict(origins)
    document = Document.of(read_bytes(file), f"{file}: cannot be read as the origins of a run's settings", _ADVICE)
    kept = {path: (entry["value"].text(), entry["origin"].text()) for path, entry in document.items()}
    return {
        path: kept[path][1] if path in kept and kept[path][0] == literals[path] else origin
        for path, origin in origins.items()
    }
