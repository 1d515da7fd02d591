"""Imports point one way only: down the house of ARCHITECTURE.md."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import opstage
from opstage.ops.protocol import Ops

ROOT = Path(opstage.__file__).parent

# From the top of the house down; a part may import itself and what stands below it.
HOUSE = (
    "__main__",
    "cli",
    "runs",
    "planning",
    "testing",
    "callbacks",
    "transform",
    "derived",
    "verification",  # the slopes of a search are moved by an optimizer
    "torch",
    "onnx",
    "interop",
    "training",
    "optim",
    "compilation",
    "api",
    "program_arguments",
    "facts",
    "debug",
    "interpreters",
    "models",
    "data",
    "init",
    "options",
    "config",
    "safetensors_files",
    "pages",
    "files",
    "source_files",
    "ops",
    "threads",
)
# Within ops, likewise: the vocabulary stands below the rules and methods.
OPS = ("derived", "composites", "catalogue", "protocol", "families", "rule_helpers", "primitive")
FAMILIES = {base.__module__.rpartition(".")[2] for base in Ops.__bases__}
COMPOSITES = ("adaptive_pooling", "advanced_indexing", "arrangement", "ctc", "interpolation")
COMPOSITES += ("recurrent", "statistics")

# Within interpreters and analysis, likewise: what stands on one line is one floor, whose parts may know each other.
FLOORS = (
    ("graph.cuda",),
    ("eager_cuda",),
    ("codegen.cuda",),
    ("gpu",),
    ("gpus",),
    ("immediate",),
    ("anomaly",),
    ("shape_check",),
    ("custom_ops",),
    ("transposition",),
    ("graph",),  # a graph's methods call what shows and exports it
    ("eager_cpu",),
    ("codegen.cpu",),
    ("distributed",),
    ("native",),
    ("analysis",),
    ("codegen",),
    ("scalar",),
    ("captures",),
    ("registry",),
    ("base_program",),
    ("transparent",),
    # a derivative is a run of an interpreter, and interpreters give derivatives
    (
        *("batched_control", "batching", "batching_rules"),
        *("cond", "control_flow", "derivatives", "forward_mode", "fused_call", "interpreter", "scan", "tape", "tracer"),
        "remat",
        "while_loop",
    ),
)

AMONG_INTERPRETERS = ("interpreters", "analysis", "compiler", "distributed", "transforms")
LATE = {("transforms/interpreter.py", "analysis.intervals.bounds")}
"""What a method of every interpreter imports when it is called, from a floor above."""

PUBLIC = {ROOT / "training" / "weights.py"}
"""The documented names of functions in a part above, which nothing below imports."""

FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part_of(module: str, house: tuple[str, ...]) -> str | None:
    first = module.split(".")[0]
    first = "interpreters" if first in AMONG_INTERPRETERS else first
    if house is OPS:
        first = "families" if first in FAMILIES else "composites" if first in COMPOSITES else first
    return first if first in house else None


@cache
def imports_of(path: Path, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """(line, dotted path beneath opstage) of every import of Opstage's own, wherever it stands in the file."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                target = ".".join((*base, *(node.module or "").split("."))).strip(".")
                names = [f"{target}.{alias.name}".strip(".") for alias in node.names]
                found += [(node.lineno, name) for name in names]
            elif node.module and node.module.split(".")[0] == "opstage":
                found.append((node.lineno, ".".join(node.module.split(".")[1:])))
        elif isinstance(node, ast.Import):
            found += [
                (node.lineno, ".".join(alias.name.split(".")[1:]))
                for alias in node.names
                if alias.name.split(".")[0] == "opstage"
            ]
    return [(line, name) for line, name in found if name]


def upward(path: Path, house: tuple[str, ...], inside: str) -> list[str]:
    relative = path.relative_to(ROOT)
    module = relative.with_suffix("").parts
    package = module[:-1]
    prefix = f"{inside}." if inside else ""
    mine = part_of(".".join(module).removeprefix(prefix), house)
    wrong = []
    for line, target in imports_of(path, package):
        if inside and not target.startswith(prefix):
            continue
        theirs = part_of(target.removeprefix(prefix), house)
        if mine is not None and theirs is not None and house.index(theirs) < house.index(mine):
            wrong.append(f"{relative}:{line}: {mine} imports {theirs}")
    return wrong


def test_every_part_has_its_place() -> None:
    parts = {path.relative_to(ROOT).with_suffix("").parts[0] for path in FILES}
    assert parts == {*HOUSE, *AMONG_INTERPRETERS}


def upward_within_ops() -> list[str]:
    # types alone, of what rules are written against: at run time it would be a circle, which Python refuses
    allowed = {f"{part} imports protocol" for part in ("families", "rule_helpers", "primitive")}
    found = [wrong for path in FILES if path.is_relative_to(ROOT / "ops") for wrong in upward(path, OPS, "ops")]
    return [wrong for wrong in found if wrong.split(": ")[1] not in allowed]


def floor_of(module: str) -> int | None:
    """The number of the floor of a module in interpreters, or beside them, counted from the top."""
    names = module.split(".")[:1] if module.startswith(("analysis", "distributed")) else module.split(".")[1:3]
    parts = (".".join(names), names[0] if names else "")
    return next((i for i, floor in enumerate(FLOORS) if any(part in floor for part in parts)), None)


def lines_for_type_checkers(path: Path) -> set[int]:
    blocks = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    return {line for block in blocks for line in range(block.lineno, (block.end_lineno or 0) + 1)}


def upward_within_interpreters(path: Path) -> list[str]:
    module = path.relative_to(ROOT).with_suffix("").parts
    mine = floor_of(".".join(module))
    assert mine is not None, f"{path.relative_to(ROOT)} has no floor"
    file = path.relative_to(ROOT).as_posix()
    every = [(line, to) for line, to in imports_of(path, module[:-1]) if (file, to) not in LATE]
    found = [(line, to, floor_of(to)) for line, to in every if to.split(".")[0] in AMONG_INTERPRETERS]
    wrong = [(line, to) for line, to, theirs in found if theirs is not None and theirs < mine]
    unseen = lines_for_type_checkers(path) if wrong else ()
    return [f"{file}:{line} imports {to}" for line, to in wrong if line not in unseen]


def test_no_import_points_up() -> None:
    """In the package, within ops and within interpreters: in one process, which parses all files once."""
    assert [wrong for path in FILES if path not in PUBLIC for wrong in upward(path, HOUSE, "")] == []
    assert upward_within_ops() == []
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] in AMONG_INTERPRETERS]
    files = [path for path in files if path.name != "__init__.py" or path.parent.parent != ROOT]
    assert [wrong for path in files for wrong in upward_within_interpreters(path)] == []


def test_models_know_ops_init_and_data_alone() -> None:
    for path in (ROOT / "models").glob("*.py"):
        for line, target in imports_of(path, ("models",)):
            assert target.split(".")[0] in ("ops", "init", "data", "models"), f"{path.name}:{line} imports {target}"


def test_families_know_no_array_library() -> None:
    """Rules are programs over Ops: families and derived ops never compute with NumPy."""
    for path in [ROOT / "ops" / f"{name}.py" for name in (*FAMILIES, "derived")]:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module or ""]
            assert not [n for n in names if n.split(".")[0] in ("numpy", "scipy", "numba")], (
                f"{path.name}:{node.lineno}"
            )
