"""The end of a command that runs as several processes: one reports the reason, and no other waits forever."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import click

from ..distributed.processes import ENDED, NotJoinedError, launched
from ..ops.errors import RankError, UsageError

if TYPE_CHECKING:
    from ..distributed.fabric import Fabric

_PATIENCE = 5.0
"""Seconds within which a failing process reports the error and ends all others."""


def speaks() -> bool:
    """Whether this process prints messages: the only one, or the first."""
    return launched()[0] == 0


def tell_launcher(code: int) -> None:
    """Record how process 0 has ended, for `opstage launch`: once one has died, mpiexec always returns 0."""
    if launched()[0] == 0 and (path := os.environ.get(ENDED)):
        with suppress(OSError), open(path, "x") as file:  # the record of an earlier failure stays
            file.write(str(code))


def conclude(text: str, code: int, error: BaseException) -> int:
    """Report on standard error why one of several processes ends; return its exit code."""
    if isinstance(error, NotJoinedError):
        click.echo(text if error.speaks else "the same here, see process 0: MPI does not join this process", err=True)
        return code
    if launched()[1] == 1:
        click.echo(text, err=True)
        return code
    from ..distributed.processes import world
    from ..experiment.together import DisagreementError, agree

    try:
        fabric = world()
    except NotJoinedError:  # nobody can be told: each says what is wrong
        click.echo(text, err=True)
        return code
    except UsageError as missing:
        if not speaks():
            time.sleep(_PATIENCE)  # if process 0 has the same error, it reports it and ends all
        click.echo(f"opstage: {missing}", err=True)
        return 2
    if not fabric.agreed:  # the others are about to report what they have, or why they end
        try:
            agree(fabric, {}, text.removeprefix("opstage: "))
        except DisagreementError as known:
            error, text = known, f"opstage: {known}"
        except RankError:
            pass
    if isinstance(error, DisagreementError):
        if speaks():
            click.echo(text, err=True)
        return code
    if not _report(fabric, text, error):
        time.sleep(_PATIENCE)  # the failing process ends all, with its exit code
    fabric.abort(code)
    return code


def report_at_once(error: RankError) -> None:
    """Report the failure of another process before this one writes the files of its run, which takes a while."""
    from ..distributed.processes import world

    _report(world(), f"opstage: {error}", error)


_REPORTS: list[bool] = []


def _report(fabric: Fabric, text: str, error: BaseException) -> bool:
    """Tell all other processes of an error, once; report it, and return True, if this process is the one to do so."""
    if not _REPORTS:
        _REPORTS.append(fabric.fail(error))
        if _REPORTS[0]:
            click.echo(f"{text}\n  (said by process {launched()[0]} of {launched()[1]})", err=True)
    return _REPORTS[0]
