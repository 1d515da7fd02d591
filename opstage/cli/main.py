"""The console script. Before the commands, it imports only the Ctrl-C handling."""

from __future__ import annotations

import os
import sys

from .exit_codes import INTERRUPTED, EndAtOnce, say_interrupted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .commands import cli as cli


def main() -> None:
    """Run the command of `sys.argv` and end the process with its exit code."""
    try:
        with EndAtOnce():
            from .commands import run
        code = run()
        if "_OPSTAGE_ENDED" in os.environ:
            from .commands import tell_launcher

            tell_launcher(code)
    except KeyboardInterrupt:
        say_interrupted()
        code = INTERRUPTED
    sys.exit(code)


def __getattr__(name: str) -> object:
    """Import `cli`, the group of commands, lazily."""
    if name != "cli":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .commands import cli

    return cli
