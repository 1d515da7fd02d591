"""Settings for the whole suite."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import settings

from tests.long import long_tests

if "PYTEST_XDIST_WORKER" in os.environ:
    # one worker a core: a BLAS that starts a thread per core in each of them stalls them all (read when NumPy loads)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # the same for the pool of threads: those that wait sleep, where by default they keep a core from another worker
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # a suite that a shell starts in the background inherits SIGINT ignored, and so would what it interrupts
    signal.signal(signal.SIGINT, signal.default_int_handler)

MEMORY = Path("/dev/shm")
ROOM = 4 << 30
"""Bytes; a whole suite leaves 50 MB behind."""


def has_room(folder: Path) -> bool:
    """Whether tests may write there, in memory, whatever they write."""
    if not (hasattr(os, "statvfs") and os.access(folder, os.W_OK | os.X_OK)):
        return False
    there = os.statvfs(folder)
    return there.f_bavail * there.f_frsize >= ROOM and not there.f_flag & getattr(os, "ST_NOEXEC", 0)


if has_room(MEMORY):
    # files that must outlive a crash are synced, 20,000 in a suite, which takes a disk 2 ms each and memory none
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))

settings.register_profile("opstage", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("opstage")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The modules and the tests, millions of objects, live as long as the process: the garbage collector, which tests
    call to see what is dropped, need not look through them each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()
        gc.callbacks.append(slow_collections)


class SlowCollections:
    """Notes whether a collection has looked through much: it is called by the garbage collector, which takes a tenth of
    a second to count what is frozen."""

    LONG = 0.03
    """Seconds of this process: a whole collection takes 5 ms where all is frozen, 60 once tests have left a few hundred
    thousand objects in tables that live as long as the process, and 500 where nothing is."""

    def __init__(self) -> None:
        self.met = False
        self._began = 0.0

    def __call__(self, phase: str, what: dict[str, int]) -> None:
        if what["generation"] < 2:
            return
        now = time.process_time()
        if phase == "start":
            self._began = now
        elif now - self._began > self.LONG:
            self.met = True


slow_collections = SlowCollections()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Tests leave tables behind, and recordings unfreeze all, to find a function of which they know the code alone
    (opstage/compiler/captures); they would see a function that stood for `gc.unfreeze`."""
    try:
        return (yield)
    finally:
        if slow_collections.met:
            freeze_again()
            slow_collections.met = False


class WorkerReports:
    """Runs a test in a worker, and sends what says something of it.

    A worker sends the process that started it three reports of each test, and when it begins and ends: for most tests
    that takes the two longer than the test. Whatever did not pass, has output or took time is sent as ever."""

    LONG = 0.005
    """Seconds; `--durations` leaves out what took less."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        for report in runtestprotocol(item, log=False, nextitem=nextitem):
            if report.when == "call" or not report.passed or report.sections or report.duration >= self.LONG:
                item.ihook.pytest_runtest_logreport(report=report)
        return True


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") and not config.getoption("xmlpath", None):
        config.pluginmanager.register(WorkerReports())


def freeze_again() -> None:
    """Freeze what a test has unfrozen or left behind. What was dropped is collected before, since nothing frozen is."""
    gc.collect()
    gc.freeze()


LONGEST = ("test_the_recipe_", "test_many_more_", "test_verdicts_", "test_seeds_reach_", "test_plans_of_many_")
"""How the names of tests begin that take minutes each."""


@pytest.hookimpl(tryfirst=True)  # before tests are left out by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks of the tests that take long. The longest first: one that begins last keeps one core busy for minutes, and
    all others wait."""
    for item in items:
        if item.nodeid in long_tests():
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: not item.name.startswith(LONGEST))
