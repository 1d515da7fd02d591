"""The flags that commands share, and flags by dotted path: `--model.depth 6` sets any field of the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

import click
from typing_extensions import override

from ..config import Layer
from ..options import Options

_DOTTED = re.compile(r"--([A-Za-z_]\w*(?:\.\w+)+)(?:=(.*))?", re.DOTALL)
_META = "opstage.dotted"


class DottedCommand(click.Command):
    """A command that takes `--table.field VALUE` and `--table.field=VALUE` beside its own flags."""

    @override
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        dotted: dict[str, str | None] = {}
        rest: list[str] = []
        while args:
            word, *args = args
            if word == "--":
                rest += [word, *args]
                break
            match = _DOTTED.fullmatch(word)
            if match is None:
                rest.append(word)
            elif match[2] is None and args and not args[0].startswith("--"):
                dotted[match[1]], *args = args
            else:
                dotted[match[1]] = match[2]
        ctx.meta[_META] = dotted
        return super().parse_args(ctx, rest)


def flag_layer(given: Mapping[str, tuple[str, Any]]) -> Layer:
    """The flags as a layer: `given` maps a flag to its path and value, None where it was not given.

    Dotted flags of the running command come after them.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for flag, (path, value) in given.items():
        if value is not None:
            values[path], origins[path] = str(value), flag
    for path, text in click.get_current_context().meta.get(_META, {}).items():
        values[path], origins[path] = text, f"--{path}"
    return Layer(values, origins, text=True)


def options_of(**flags: Any) -> Options:
    """Options from the environment, overridden by the flags that were given."""
    given = {name: value for name, value in flags.items() if value is not None}
    return Options.from_dict(given, base=Options.from_env(), source="the command line")


def with_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --backend, --device, --dtype and --seed, and hand the command an `options` made of them."""

    @with_option_flags
    @wraps(command)
    def wrapped(backend: str | None, device: str | None, dtype: str | None, seed: int | None, **rest: Any) -> Any:
        return command(options=options_of(backend=backend, device=device, dtype=dtype, seed=seed), **rest)

    return wrapped


def with_option_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --backend, --device, --dtype and --seed."""
    for decorate in (
        click.option("--seed", type=int, metavar="N", help="Seeds initial values, shuffling and random ops."),
        click.option("--dtype", metavar="NAME", help="float32 or float64."),
        click.option("--device", metavar="NAME", help="cpu or cuda."),
        click.option("--backend", metavar="NAME", help="eager, shape_check, or any registered interpreter."),
    ):
        command = decorate(command)
    return command
