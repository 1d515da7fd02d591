"""A request to check one target, as plain data."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ...ops.errors import UsageError

GRACE = 10.0
"""Seconds that a process has for start and end, in addition to the time limit of the check."""


@dataclass(frozen=True)
class Asked:
    """The options of a check, the same for every target.

    inputs, where   texts of `--input` and `--where`
    param           texts of `--param`
    prove           texts of `--prove`, claims
    ranges          whether the ranges of numbers are found
    bounds          texts of `--bounds`; `range_dtype` is the float dtype of ranges and claims, None for the program's
    initial         whether parameters are as they are initialised, for ranges
    params, state   names of functions or values that hold parameters and state
    step            None where the program decides
    options         the `Options` that any source sets, by name
    max_memory      an amount such as 24GiB
    settings        of a model, as `--model.hidden 64` spells them, by dotted path; None for a flag without a value
    config          a TOML file with more of them
    cluster         a text or file of `Machines`
    columns         how wide the terminal is that the output is for, None for a file
    """

    inputs: tuple[str, ...] = ()
    where: tuple[str, ...] = ()
    param: tuple[str, ...] = ()
    prove: tuple[str, ...] = ()
    ranges: bool = False
    bounds: tuple[str, ...] = ()
    range_dtype: str | None = None
    initial: bool = False
    params: str | None = None
    state: str | None = None
    train: bool = True
    step: bool | None = None
    optimizer: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    strict: bool = False
    checkpoint: str | None = None
    data: str | None = None
    batch_size: int | None = None
    runs_on: bool = False
    table: bool = False
    at: str = ""
    memory: bool = False
    max_memory: str | None = None
    columns: int | None = None
    settings: Mapping[str, str | None] = field(default_factory=dict)
    config: str | None = None
    cluster: str | None = None


@dataclass(frozen=True)
class Request:
    """A request to check one file or module: one of its functions, or all that declare their shapes."""

    label: str
    file: str | None
    module: str | None
    function: str | None
    asked: Asked
    time_limit: float
    memory_limit: int | None

    def text(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Request:
        document = json.loads(text)
        asked: dict[str, Any] = {
            name: tuple(v) if isinstance(v, list) else v for name, v in document.pop("asked").items()
        }
        return cls(**document, asked=Asked(**asked))


# Durations ------------------------------------------------------------------------------------------------------------


def read_seconds(text: str) -> float:
    """Parse `60`, `60s`, `2m` or `500ms` to seconds. Raises UsageError for anything but a positive duration."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m)?", text.strip())
    found = float(match[1]) * {"ms": 1e-3, "m": 60.0}.get(match[2] or "s", 1.0) if match is not None else 0.0
    if not found > 0:
        raise UsageError(f"{text!r} is not a duration; expected one such as 60s, 2m or 500ms")
    return found
