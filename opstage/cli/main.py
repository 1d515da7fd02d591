"""The commands and how they end: 0 done, 1 findings, 2 unusable input, 130 interrupted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from .. import __version__
from ..ops.errors import OpstageError
from ..options import Options

INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="opstage")
def cli() -> None:
    """Write a model once; run it, differentiate it and check its shapes by choosing an interpreter."""


def main() -> None:
    """The console script: errors that Opstage raises on purpose become one message and exit code 2."""
    try:
        code = cli.main(standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)
    except OpstageError as error:
        click.echo(f"opstage: {error}", err=True)
        sys.exit(2)


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


from . import check, info, train  # noqa: E402  they add themselves to `cli`

__all__ = ["check", "cli", "info", "main", "train"]
