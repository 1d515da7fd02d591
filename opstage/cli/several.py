"""The end of a command that is one of several processes: one of them says why, and none of the others waits."""

from __future__ import annotations

import os
import time
from contextlib import suppress

import click

from ..interpreters.mesh.processes import ENDED, launched
from ..ops.errors import UsageError

_PATIENCE = 5.0
"""Seconds in which a process that fails has said so, and ended all others."""


def speaks() -> bool:
    """Whether this process is the one that talks: the only one, or the first."""
    return launched()[0] == 0


def tell_launcher(code: int) -> None:
    """Note how process 0 has ended, for `opstage launch`: once one has died, mpiexec says 0 whatever happens."""
    if launched()[0] == 0 and (path := os.environ.get(ENDED)):
        with suppress(OSError), open(path, "x") as file:  # what a process that failed has noted stays
            file.write(str(code))


def conclude(text: str, code: int, error: BaseException) -> int:
    """Say on standard error why this command ends, in one of several processes; its exit code."""
    if launched()[1] == 1:
        click.echo(text, err=True)
        return code
    from ..experiment.together import DisagreementError, agree
    from ..interpreters.mesh.processes import world
    from ..ops.errors import RankError

    try:
        fabric = world()
    except UsageError as missing:
        if not speaks():
            time.sleep(_PATIENCE)  # if process 0 lacks it as well, it says so, and ends all
        click.echo(f"opstage: {missing}", err=True)
        return 2
    if not fabric.agreed:  # the others are about to say what they have, or why they end
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
    if fabric.fail(error):
        click.echo(f"{text}\n  (said by process {launched()[0]} of {launched()[1]})", err=True)
    else:
        time.sleep(_PATIENCE)  # whoever failed ends all, with its exit code
    fabric.abort(code)
    return code
