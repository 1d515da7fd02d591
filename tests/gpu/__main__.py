"""All that `make gpu` runs, part by part, each in a process of its own: `python -m tests.gpu [PART …]`.

Every part is run, whatever became of those before it; a table at the end says what became of each, and the exit code is
0 if nothing failed. A part takes less than ten minutes, and one that does not end is ended, and has failed.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

from benchmarks.workloads import ON_GPU

from . import here
from .sanitize import FAMILIES

LIMIT = 570
"""Seconds for a part: where a command may take ten minutes, one part is a command."""

NOTHING_RAN = 5
"""How pytest ends where no test was left: one that needs PyTorch, say, which is not there."""


class Part(NamedTuple):
    """A process: `python` with these words, and these variables in the environment.

    parallel    whether its tests may run in several processes at once
    optional    whether it needs a package that may be left out
    """

    words: tuple[str, ...]
    variables: Mapping[str, str] = {}
    parallel: bool = False
    optional: bool = False


def _tests(file: str, chosen: str = "", **more: bool) -> Part:
    return Part(("-m", "pytest", "-q", "-rs", f"tests/gpu/{file}.py", *(("-k", chosen) if chosen else ())), **more)


def _shards(name: str, count: int, part: Part) -> dict[str, Part]:
    return {f"{name}-{i}": part._replace(variables={"OPSTAGE_GPU_SHARD": f"{i}/{count}"}) for i in range(1, count + 1)}


PARTS: dict[str, Part] = {
    "device": _tests("test_parity", "uploaded or products or index or freeing or memory or keeps or has_not"),
    **_shards("values-eager", 2, _tests("test_parity", "test_values and eager", parallel=True)),
    **_shards("values-compiled", 4, _tests("test_parity", "test_values and compiled", parallel=True)),
    "bad-calls": _tests("test_parity", "test_bad_call", parallel=True),
    **_shards("derivatives-eager", 4, _tests("test_parity", "derivatives and eager", parallel=True)),
    **_shards("derivatives-compiled", 8, _tests("test_parity", "derivatives and compiled", parallel=True)),
    **_shards("fused", 2, _tests("test_fused", parallel=True)),
    "rows": _tests("test_rows"),
    "attention": _tests("test_attention"),
    **_shards("convolution", 2, _tests("test_convolution", parallel=True)),
    "updates": _tests("test_updates"),
    "threads": _tests("test_threads"),
    "replay": _tests("test_replay"),
    "memory": _tests("test_memory"),
    **_shards("pytorch-ops", 4, _tests("test_pytorch_ops", "pytorch and not hessian", parallel=True, optional=True)),
    **_shards("pytorch-second", 4, _tests("test_pytorch_ops", "hessian or refused", parallel=True, optional=True)),
    "pytorch-training": _tests("test_pytorch_training", optional=True),
    "report": Part(("-m", "tests.gpu.report")),
    **{
        f"{tool}-{family}": Part(("-m", "tests.gpu.sanitize", tool, family))
        for family, tools in FAMILIES.items()
        for tool in tools.tools
    },
    **{
        f"steps-{precision}-{workload}": Part(("-m", "tests.gpu.steps", precision, workload))
        for precision in ("fp32", "tf32")
        for workload in ON_GPU
    },
}

REHEARSED = tuple(name for name in PARTS if not name.startswith(("steps", "memcheck", "racecheck")))
"""Those that can be run on a stand-in; the others are measurements, and tools for a GPU."""


class Outcome(NamedTuple):
    """What became of a part: "passed", "failed (1)", "nothing to run" …"""

    said: str
    failed: bool
    seconds: float


def command(part: Part, processes: int) -> list[str]:
    several = part.parallel and processes > 1 and find_spec("xdist") is not None
    return [sys.executable, *part.words, *(["-n", str(processes)] if several else [])]


def run(part: Part, limit: float, processes: int) -> Outcome:
    """Run a part to its end, or until it has taken `limit` seconds."""
    start = time.monotonic()
    process = subprocess.Popen(command(part, processes), env={**os.environ, **part.variables}, start_new_session=True)
    try:
        code = process.wait(limit)
    except BaseException as error:
        os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return Outcome(f"ended after {limit:g} s", True, time.monotonic() - start)
    taken = time.monotonic() - start
    if code == NOTHING_RAN and part.optional:
        return Outcome("nothing to run", False, taken)
    return Outcome("passed" if code == 0 else f"failed ({code})", code != 0, taken)


def table(outcomes: Mapping[str, Outcome], left: Sequence[str]) -> str:
    lines = [f"{name:24} {each.said:18} {each.seconds:7.1f} s" for name, each in outcomes.items()]
    lines += [f"{name:24} {'was not run':18}" for name in left]
    failed = sum(each.failed for each in outcomes.values())
    lines.append(f"{len(outcomes)} of {len(outcomes) + len(left)} parts were run, {failed or 'none'} of them failed")
    return "\n".join(lines)


def main(words: Sequence[str] | None = None, parts: Mapping[str, Part] = PARTS) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu", description="Run what needs a GPU, part by part.")
    parser.add_argument("parts", nargs="*", metavar="PART", help="those to run, by their names or how these begin; all")
    parser.add_argument("--list", action="store_true", help="name the parts")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for each (default: %(default)s)")
    parser.add_argument(
        "--processes", type=int, default=min(8, os.cpu_count() or 1), help="of tests that may be so run"
    )
    given = parser.parse_args(words)
    default = [name for name in parts if not here.REHEARSAL or name in REHEARSED or parts is not PARTS]
    chosen = [name for name in parts if name.startswith(tuple(given.parts))] if given.parts else default
    unknown = [word for word in given.parts if not any(name.startswith(word) for name in parts)]
    if unknown:
        parser.error(f"no part is called {', '.join(unknown)}; there are {', '.join(parts)}")
    if given.list:
        print("\n".join(chosen))
        return 0
    problem = here.main() if parts is PARTS else 0
    if problem:
        return problem
    outcomes: dict[str, Outcome] = {}
    try:
        for number, name in enumerate(chosen, 1):
            print(f"== {number} of {len(chosen)}: {name}", flush=True)
            outcomes[name] = run(parts[name], given.limit, given.processes)
    except KeyboardInterrupt:
        print(table(outcomes, chosen[len(outcomes) :]), flush=True)
        return 130
    print(table(outcomes, chosen[len(outcomes) :]), flush=True)
    return int(any(each.failed for each in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
