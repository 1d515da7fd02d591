"""Tests that need a GPU; where there is none, all are skipped, and one line says why.

OPSTAGE_GPU_SHARD=2/4 runs the second of four parts of equal size; OPSTAGE_GPU_EVERY=50 of each test the first case and
every fiftieth after it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest

from .here import missing, stand_in


@pytest.fixture(scope="session", autouse=True)
def the_gpu() -> Iterator[None]:
    """In a rehearsal, what stands in for it."""
    with stand_in():
        yield


@pytest.hookimpl(trylast=True)  # of what -k has chosen
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    every = int(os.environ.get("OPSTAGE_GPU_EVERY", "1"))
    which, _, of = os.environ.get("OPSTAGE_GPU_SHARD", "1/1").partition("/")
    counts: Counter[str] = Counter()
    kept, left = [], []
    for item in items:
        name = item.nodeid.partition("[")[0]
        turn, shard = divmod(counts[name], int(of))
        counts[name] += 1
        (kept if shard == int(which) - 1 and turn % every == 0 else left).append(item)
    items[:] = kept
    if left:
        config.hook.pytest_deselected(items=left)
    reason = missing()
    if reason:
        for item in items:
            item.add_marker(pytest.mark.skip(reason=reason))
