"""How far the searches through random programs go.

A search draws the same programs in every run, so that what it finds comes back. `make test-slow` goes through a quarter
of them, and `make soak` through all: after a change of the checker, the passes or the code generator.
"""

from __future__ import annotations

import os

FULL = os.environ.get("OPSTAGE_SEARCH") == "full"


def share(programs: int) -> int:
    """The number of these programs that this run goes through."""
    return programs if FULL else programs // 4
