"""What `make gpu` runs: each part whatever became of the others, and nothing that the simulator alone can do."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu import __main__ as runner
from tests.gpu import here, sanitize
from tests.gpu.__main__ import PARTS, REHEARSED, Part

ROOT = Path(__file__).resolve().parents[3]
GPU = ROOT / "tests" / "gpu"


def program(text: str, **more: bool) -> Part:
    return Part(("-c", text), **more)


GOOD, BAD = program("print('ran')"), program("raise SystemExit(3)")
ENDLESS = program("while True: pass")


def run(parts: dict[str, Part], *words: str, capfd: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = runner.main(list(words), parts)
    return code, capfd.readouterr().out.splitlines()


def test_every_part_is_run_and_one_failure_is_the_status_of_all(capfd: pytest.CaptureFixture[str]) -> None:
    code, lines = run({"first": GOOD, "second": BAD, "third": GOOD}, capfd=capfd)
    assert code == 1 and lines.count("ran") == 2
    assert [line.split()[:2] for line in lines[-4:-1]] == [
        ["first", "passed"],
        ["second", "failed"],
        ["third", "passed"],
    ]
    assert "failed (3)" in lines[-3] and lines[-1] == "3 of 3 parts were run, 1 of them failed"
    code, lines = run({"first": GOOD, "third": GOOD}, capfd=capfd)
    assert (code, lines[-1]) == (0, "2 of 2 parts were run, none of them failed")


def test_a_part_that_does_not_end_is_ended_and_has_failed(capfd: pytest.CaptureFixture[str]) -> None:
    code, lines = run({"endless": ENDLESS, "after": GOOD}, "--limit", "0.5", capfd=capfd)
    assert code == 1 and "ended after 0.5 s" in lines[-3] and "passed" in lines[-2]


def test_a_part_without_tests_has_failed_unless_it_needs_what_may_be_left_out(
    capfd: pytest.CaptureFixture[str],
) -> None:
    nothing = "raise SystemExit(5)"
    assert run({"part": program(nothing)}, capfd=capfd)[0] == 1
    code, lines = run({"part": program(nothing, optional=True)}, capfd=capfd)
    assert code == 0 and "nothing to run" in lines[-2]


def test_parts_are_chosen_by_how_their_names_begin(capfd: pytest.CaptureFixture[str]) -> None:
    parts = {"values-1": GOOD, "values-2": GOOD, "memory": BAD}
    code, lines = run(parts, "values", capfd=capfd)
    assert code == 0 and lines[-1].startswith("2 of 2")
    assert run(parts, "--list", "memory", capfd=capfd) == (0, ["memory"])
    with pytest.raises(SystemExit):
        run(parts, "valleys", capfd=capfd)
    assert "no part is called valleys; there are values-1, values-2, memory" in capfd.readouterr().err


def test_tests_run_in_several_processes_where_they_may_and_can(monkeypatch: pytest.MonkeyPatch) -> None:
    alone, several = Part(("-m", "pytest")), Part(("-m", "pytest"), parallel=True)
    assert "-n" not in runner.command(alone, 4) and "-n" not in runner.command(several, 1)
    assert runner.command(several, 4)[-2:] == ["-n", "4"]
    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    assert "-n" not in runner.command(several, 4)


# What the parts are ---------------------------------------------------------------------------------------------------


def imports(path: Path) -> Iterator[str]:
    """The modules that a file imports as soon as it is imported itself."""
    package = ".".join(path.relative_to(ROOT).with_suffix("").parts[:-1])
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package if node.level == 1 else ""
            module = ".".join(filter(None, (base, node.module)))
            yield module
            yield from (f"{module}.{name.name}" for name in node.names)


def reached(path: Path, seen: set[Path]) -> Iterator[str]:
    if path in seen:
        return
    seen.add(path)
    for name in imports(path):
        yield f"{path.relative_to(ROOT)} imports {name}"
        file = ROOT / (name.replace(".", "/") + ".py")
        if name.startswith("tests.") and file.is_file():
            yield from reached(file, seen)


@pytest.mark.parametrize("path", sorted(GPU.glob("*.py")), ids=lambda path: path.name)
def test_no_test_for_a_gpu_needs_the_simulator(path: Path) -> None:
    of_the_simulator = ("gpu.simulator", "gpu.scheduler", "greenlet", "tests.cuda.traffic", "tests.cuda.running")
    found = [
        line
        for line in reached(path, set())
        if any(name in line.partition(" imports ")[2] for name in of_the_simulator)
    ]
    assert not found


def test_every_file_of_tests_is_in_a_part() -> None:
    named = {word for part in PARTS.values() for word in part.words if word.endswith(".py")}
    assert named == {f"tests/gpu/{path.name}" for path in GPU.glob("test_*.py")}
    assert {family.file for family in sanitize.FAMILIES.values()} <= {path.name for path in GPU.glob("test_*.py")}


def test_what_shares_memory_of_a_block_is_looked_at_for_races() -> None:
    parts = {
        f"racecheck-{name}" for name in ("attention", "norms", "losses", "updates", "softmax", "reductions", "products")
    }
    assert parts <= set(PARTS)


def test_a_part_takes_less_than_ten_minutes() -> None:
    assert runner.LIMIT < 600


def test_where_there_is_no_gpu_nothing_is_run_and_a_line_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in ("NUMBA_ENABLE_CUDASIM", "OPSTAGE_GPU_REHEARSAL")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu.here"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode in (0, 1, 2)
    if done.returncode:
        assert done.stdout.startswith("make gpu: nothing was run: ") and done.stderr == ""


def test_packages_that_are_not_at_hand_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(here, "_there", lambda module: module not in ("numba_cuda", "cuda.core"))
    assert here.main() == 2
    assert "not at hand are numba-cuda, cuda-core; see docs/testing-on-a-gpu.md" in capsys.readouterr().out


# A rehearsal ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in REHEARSED if not re.search(r"pytorch|-[2-9]$", name)])
def test_a_little_of_each_part_can_be_run(name: str) -> None:
    environment = {"NUMBA_ENABLE_CUDASIM": "1", "OPSTAGE_GPU_REHEARSAL": "1", "OPSTAGE_GPU_EVERY": "500"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.gpu", name, "--processes", "1"],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


COLLECT = """
import json, sys, pytest

for words in json.loads(sys.argv[1]):
    assert pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", *words]) == 0, words
"""


@pytest.mark.slow
def test_every_family_of_kernels_has_tests() -> None:
    """In one process, which imports what they need once."""
    words = [[f"tests/gpu/{family.file}", "-k", family.chosen] for family in sanitize.FAMILIES.values()]
    environment = {**os.environ, "NUMBA_ENABLE_CUDASIM": "1", "OPSTAGE_GPU_REHEARSAL": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COLLECT, json.dumps(words)], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
