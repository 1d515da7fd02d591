"""The tests that take long: `make test` leaves them to `make test-slow`.

A few hundred of the tests take half of the time of all. `long_tests.txt` names them, as they were timed when the whole
suite ran, so that what is quick stays so without a mark at each; a test of a minute has a mark of its own. Each file
keeps a test in the quick suite, and the tests of the house (structure/) and the parts that samples/parts.py deals stay
there.

    python -m pytest -n 2 -m "not slow" --durations=0 > durations.txt
    python -m tests.long durations.txt

writes the list anew: the tests that are in it now, and those that took long.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

LIST = Path(__file__).with_name("long_tests.txt")
LONG = 0.25
"""Seconds of a core, setup included."""
STAY = ("tests/structure/", "tests/conformance/", "tests/eager_cpu/test_fast_kernels.py")


@cache
def long_tests() -> frozenset[str]:
    """The ids of tests."""
    return frozenset(LIST.read_text().splitlines())


def timed(lines: Iterable[str]) -> dict[str, float]:
    """The seconds of each test, from what `--durations` prints."""
    seconds: dict[str, float] = defaultdict(float)
    for line in lines:
        found = re.match(r"([\d.]+)s (?:setup|call|teardown) +(\S.*)", line)
        if found:
            seconds[found[2]] += float(found[1])
    return seconds


def chosen(seconds: dict[str, float], known: Iterable[str]) -> Iterator[str]:
    """Those that take long or did before, but for the shortest of a file that would keep none."""
    known = frozenset(known)
    of_file: dict[str, list[str]] = defaultdict(list)
    for test in {**dict.fromkeys(known, LONG), **seconds}:
        of_file[test.partition("::")[0]].append(test)
    for file, tests in of_file.items():
        long = [test for test in tests if test in known or seconds[test] >= LONG]
        if file.startswith(STAY):
            continue
        if len(long) == len(tests):
            long.remove(min(long, key=lambda test: (seconds.get(test, LONG), test)))
        yield from long


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        LIST.write_text("\n".join(sorted(chosen(timed(file), long_tests() if LIST.exists() else ()))) + "\n")
