"""The process that checks a user's file: it receives a request and writes the outcomes to a file.

A worker forks it. Without workers it is started for that file: the first argument is then the folder, and the request
comes on standard input, which stays open while the parent lives.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import NoReturn

from ...interpreters.shape_check.formats import to_document
from .request import Request

RESULT = "outcomes.json"
TRACE = "trace.txt"
READ = "read.json"


def main() -> None:
    """Check one file, in a process started for it."""
    folder = Path(sys.argv[1])
    text = sys.stdin.readline()
    _follow_parent()
    run(folder, Request.read(text))


def run(folder: Path, request: Request) -> NoReturn:
    """Check a file and end the process; the folder then has the outcomes, or on a crash the stack trace."""
    _limit_memory(request.memory_limit)
    with open(folder / TRACE, "w") as trace:
        from ...loading import import_from_text
        from .cache import Witness
        from .user import check_user

        witness = Witness(folder)
        import_from_text()
        faulthandler.enable(trace)
        faulthandler.dump_traceback_later(request.time_limit, exit=True, file=trace)
        documents = [to_document(outcome) for outcome in check_user(request)]
        faulthandler.cancel_dump_traceback_later()
        sys.stdout.flush()
        sys.stderr.flush()
        (folder / READ).write_text(json.dumps(witness.read()))
        result = json.dumps(documents)
        (folder / f"{RESULT}.new").write_text(result)
        os.replace(folder / f"{RESULT}.new", folder / RESULT)
    os._exit(0)  # threads started by the user's file do not keep the process alive


def _follow_parent() -> None:
    """End when the parent ends, and give the user's file an empty standard input."""
    lifeline = os.dup(0)
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    os.close(empty)

    def follow() -> None:
        while os.read(lifeline, 64):
            pass
        if hasattr(os, "killpg"):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _limit_memory(limit: int | None) -> None:
    """Make an allocation beyond `limit` bytes raise MemoryError, if the system supports such a limit."""
    if limit is None:
        return
    try:
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit if most < 0 else min(limit, most), most))
    except (ImportError, ValueError, OSError):
        return
