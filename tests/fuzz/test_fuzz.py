"""Damaged and hostile inputs, the same ones in every run, to every way into Opstage from outside.

About 25,000 in `make soak`, and a quarter of them in `make test-slow`."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from opstage.ops.errors import UsageError
from tests.searches import share

from . import limits
from .limits import run_cases
from .readers import BY_NAME, READERS, Reader, sweep

SEED = 1
CASES = 20
"""Of each reader so many times its share."""

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_each_is_one_clear_error_or_what_an_independent_reader_reads(reader: Reader) -> None:
    wrong = sweep(reader, SEED, share(CASES * reader.share))
    again = f"python -m tests.fuzz --seed {SEED} --only '{reader.name}'"
    assert not wrong, "\n".join([again, *(f"case {case}: {what} [{where}]" for case, what, where in wrong[:20])])


def test_a_sample_of_onnx_models() -> None:
    """The first of those that the slow test tries in thousands."""
    assert sweep(BY_NAME["onnx"], SEED, 60) == []


# The judge itself -----------------------------------------------------------------------------------------------------


def raises(error: BaseException) -> None:
    raise error


CASES_OF_OURS = {
    "fine": (lambda: None, None),
    "an error that says where": (lambda: raises(UsageError("/a/b: is not a file")), None),
    "an error that does not": (lambda: raises(UsageError("is not a file")), "says not where"),
    "an error of a screenful": (lambda: raises(LookupError("x")), "LookupError"),
    "a hang": (lambda: sum(0 for _ in iter(int, 1)), "OutOfTime"),
    "a hang outside of Python": (lambda: time.sleep(60), "hung"),
    "too much memory": (lambda: bytearray(300 * 2**20), "MemoryError"),
    "a warning": (lambda: limits.warnings.warn("odd", RuntimeWarning, stacklevel=1), "warned"),
    "a dead process": (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended the process"),
    "fine again": (lambda: None, None),
}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_whatever_ends_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SECONDS", 0.05)
    monkeypatch.setattr(limits, "STUCK", 1.0)
    cases = list(CASES_OF_OURS.values())
    wrong = {number: what for number, what, _ in run_cases(lambda n: (cases[n][0], 0, "/a/b"), range(len(cases)))}
    for number, (name, (_, expected)) in enumerate(CASES_OF_OURS.items()):
        assert wrong.get(number, "")[: len(expected or "")] == (expected or ""), name
        assert (number in wrong) == (expected is not None), name
