"""Flags shared by commands, and flags by dotted path: `--model.depth 6` sets any field of the configuration."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click
from typing_extensions import override

from ..config import Layer
from ..experiment.group_text import GROUPS
from ..ops.dims.notation import LARGEST_SIZE
from ..ops.errors import UsageError
from ..ops.untrusted import brief

_DOTTED = re.compile(r"--([A-Za-z_]\w*(?:\.\w+)+)(?:=(.*))?", re.DOTALL)
_META = "opstage.dotted"


class DottedCommand(click.Command):
    """A command that accepts `--table.field VALUE` and `--table.field=VALUE` in addition to its own flags."""

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
            else:
                value = match[2]
                if value is None and args and not args[0].startswith("--"):
                    value, *args = args
                before = dotted.get(match[1])  # of groups all apply, of other flags the last
                joined = match[1] == GROUPS and before and value
                dotted[match[1]] = f"{before}; {value}" if joined else value
        ctx.meta[_META] = dotted
        return super().parse_args(ctx, rest)


def flag_layer(paths: Mapping[str, str], given: Mapping[str, Any]) -> Layer:
    """Return the flags as a layer: `paths` maps a flag's name to the path it sets, `given` to its value or None.

    The dotted flags of the running command override them.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for name, path in paths.items():
        if given[name] is not None:
            values[path], origins[path] = str(given[name]), f"--{name.replace('_', '-')}"
    for path, text in dotted_flags().items():
        values[path], origins[path] = text, f"--{path}"
    return Layer(values, origins, text=True)


def dotted_flags() -> Mapping[str, str | None]:
    """Return the dotted flags of the running command."""
    given: Mapping[str, str | None] = click.get_current_context().meta.get(_META, {})
    return given


OPTION_PATHS = {name: f"options.{name}" for name in ("backend", "device", "dtype", "seed")}


def with_option_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --backend, --device, --dtype and --seed."""
    for decorate in (
        click.option("--seed", type=int, metavar="N", help="Seeds initial values, shuffling and random ops."),
        click.option("--dtype", metavar="NAME", help="float32 or float64."),
        click.option("--device", metavar="NAME", help="cpu, cuda, or cuda:1 for one GPU of several."),
        click.option("--backend", metavar="NAME", help="eager, compiled, shape_check, or any registered interpreter."),
    ):
        command = decorate(command)
    return command


def _shown(entry: str) -> str:
    """Return an entry as typed, shortened if long."""
    return entry if len(entry) <= 80 else brief(entry)


def read_sizes(text: str) -> dict[str, int]:
    """Parse `B=32,T=16` to a mapping. Raises UsageError."""
    sizes: dict[str, int] = {}
    for entry in filter(None, text.split(",")):
        name, equals, number = (part.strip() for part in entry.partition("="))
        if not (name and equals and number.isdecimal()):
            raise UsageError(f"--at {_shown(entry)}: expected NAME=NUMBER, as in --at B=32,T=16")
        if len(number) > 19 or not 0 < int(number) <= LARGEST_SIZE:
            raise UsageError(f"--at {_shown(entry)}: a size is at least 1 and at most {LARGEST_SIZE}")
        if name in sizes:
            raise UsageError(f"--at {text}: {name} is given twice")
        sizes[name] = int(number)
    return sizes
