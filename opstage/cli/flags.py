"""The flags that commands share: which interpreter, dtype and seed."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from ..options import Options


def options_of(**flags: Any) -> Options:
    """Options from the environment, overridden by the flags that were given."""
    given = {name: value for name, value in flags.items() if value is not None}
    return Options.from_dict(given, base=Options.from_env(), source="the command line")


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --backend, --device, --dtype and --seed, and hand the command an `options` made of them."""

    @click.option("--backend", metavar="NAME", help="eager, shape_check, or any registered interpreter.")
    @click.option("--device", metavar="NAME", help="cpu or cuda.")
    @click.option("--dtype", metavar="NAME", help="float32 or float64.")
    @click.option("--seed", type=int, metavar="N", help="Seeds initial values, shuffling and random ops.")
    @wraps(command)
    def wrapped(backend: str | None, device: str | None, dtype: str | None, seed: int | None, **rest: Any) -> Any:
        return command(options=options_of(backend=backend, device=device, dtype=dtype, seed=seed), **rest)

    return wrapped
