"""Standard output that may fail before the command ends: a closed pipe, a full disk, a lost terminal."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AbstractContextManager, suppress
from types import TracebackType
from typing import Any, Self, final

import click

from ..ops.errors import RankError
from ..ops.untrusted import printable
from ..runs.run import Watcher
from ..training.fit import EpochResult
from .commands import report_at_once

UNHEARD = 128 + getattr(signal, "SIGPIPE", 13)
"""The exit code of a command with closed output, as after SIGPIPE."""


def silence() -> None:
    """Redirect standard output, with its buffered text, to the null device."""
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@final
class Voice:
    """Writes to standard output until that fails.

    Then a run that is kept in a directory continues silently; any other ends with exit code UNHEARD.
    """

    def __init__(self, kept: os.PathLike[str] | None):
        self._kept = kept
        self.heard = True

    def say(self, line: str) -> None:
        """Write a line."""
        if self.heard:
            try:
                click.echo(printable(line))
            except OSError as error:
                self.lost(error)

    def lost(self, error: OSError) -> None:
        """Handle a failure of standard output."""
        self.heard = False
        silence()
        if self._kept is None:
            raise click.exceptions.Exit(UNHEARD)
        with suppress(OSError):
            reason = error.strerror or str(error)
            click.echo(f"opstage: no more output ({reason}); the run goes on and is kept in {self._kept}", err=True)


@final
class Audible(AbstractContextManager["Audible"]):
    """A watcher that stops showing progress once standard output fails."""

    def __init__(self, watcher: Watcher, voice: Voice):
        self._watcher = watcher
        self._voice = voice

    def __enter__(self) -> Self:
        self._try("__enter__")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._try("__exit__", kind, error, trace)
        if isinstance(error, RankError):
            report_at_once(error)

    def step(self, epoch: int, step: int, loss: float, samples: int) -> None:
        """Show a step."""
        self._try("step", epoch, step, loss, samples)

    def epoch(self, result: EpochResult) -> None:
        """Show an epoch."""
        self._try("epoch", result)

    def _try(self, method: str, *arguments: Any) -> None:
        if self._voice.heard:
            try:
                getattr(self._watcher, method)(*arguments)
            except OSError as error:
                self._voice.lost(error)
