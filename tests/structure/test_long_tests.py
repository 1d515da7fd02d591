"""The list of tests that take long names tests that exist, and leaves each file something in the quick suite."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from tests.long import STAY, chosen, long_tests, timed

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_names_tests_that_exist() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for test in long_tests():
        file, _, name = test.partition("::")
        named[file].add(name.partition("[")[0])
    for file, functions in named.items():
        assert not file.startswith(STAY), file
        tree = ast.parse((ROOT / file).read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert functions <= defined, f"{file}: {sorted(functions - defined)}; see tests/long.py"


def test_what_took_long_is_chosen_and_each_file_keeps_a_test() -> None:
    lines = [
        "1.50s call     tests/a/test_x.py::test_one[1 and 2]",
        "0.20s call     tests/a/test_x.py::test_two",
        "0.10s setup    tests/a/test_x.py::test_two",
        "0.05s call     tests/a/test_x.py::test_three",
        "4.00s call     tests/a/test_y.py::test_one",
        "2.00s call     tests/a/test_y.py::test_two",
        "9.00s call     tests/structure/test_z.py::test_one",
        "22517 passed in 166.22s",
    ]
    seconds = timed(lines)
    assert seconds["tests/a/test_x.py::test_two"] == 0.2 + 0.1
    one, two, four = (f"tests/a/test_x.py::test_{name}" for name in ("one[1 and 2]", "two", "four"))
    assert sorted(chosen(seconds, ())) == [one, two, "tests/a/test_y.py::test_one"]
    assert four in chosen(seconds, [four]), "what was chosen before stays so, though it was not timed"
