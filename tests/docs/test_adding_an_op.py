"""docs/adding-an-op.md, done literally: its blocks go into a copy of the package, and the copy's tests of them run.

Both ops then are all that the page promises: differentiable twice, fused, predicted in memory, in ONNX, on a device.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from pathlib import Path

import pytest

from tests.docs.blocks import DOCS, ROOT, Block, blocks, run_python

DOCUMENT = DOCS / "adding-an-op.md"
COPIED = (
    *("opstage", "docs", "tests/samples", "tests/conformance", "tests/structure", "tests/graph", "tests/interop"),
    *("tests/memory", "tests/cuda", "tests/docs", "tests/numbers", "tests/ops"),
)
OPS = ("logit", "lisht")


def end_of(place: str, source: str) -> int:
    """The index of the line before which a block with this place goes."""
    if place == "at the end":
        return len(source.splitlines())
    body = ast.parse(source).body
    if place == "with the imports":
        return max(node.end_lineno or 0 for node in body if isinstance(node, ast.Import | ast.ImportFrom))
    kind, _, name = place.rpartition(" ")
    for node in body:
        if kind == "in class" and isinstance(node, ast.ClassDef) and node.name == name:
            return node.end_lineno or 0
        targets = [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        if kind == "in" and any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return (node.end_lineno or 0) - 1  # before the closing bracket
        if kind == "before" and name in [
            getattr(target, "id", getattr(target, "name", "")) for target in (node, *targets)
        ]:
            return node.lineno - 1
    raise AssertionError(f"there is no place {place!r}")


def put(block: Block, root: Path) -> None:
    """Put a block where its first line says."""
    file = root / block.path
    source = file.read_text()
    lines = source.splitlines()
    at = end_of(block.place, source)
    kind = block.place.split()[0]
    blank_lines = {"at": 2, "in": 1 if "class" in block.place else 0, "with": 0, "before": 0}[kind]
    apart = [""] * blank_lines if file.suffix == ".py" else []
    after = ["", ""] if kind == "before" else []
    lines[at:at] = [*apart, *block.text.splitlines(), *after]
    file.write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("op")
    for folder in COPIED:
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (
        "setup.cfg",
        *(f"tests/{name}.py" for name in ("__init__", "conftest", "processes", "process_server", "searches", "long")),
        "tests/long_tests.txt",
    ):
        shutil.copy(ROOT / file, root / file)
    shutil.copy(ROOT / "tests/docs/whole_op.py", root)
    for block in blocks(DOCUMENT):
        put(block, root)
    return root


PROGRAM = """
import json
import numpy as np
import opstage
assert opstage.__file__.startswith({root!r})
options = opstage.Options(dtype="float64")
x = np.array([0.25, 0.5])
def total(ops, x):
    return ops.sum(ops.{op}(x))
assert opstage.check(total, opstage.Spec("N")).ok
value, gradient = opstage.value_and_grad(total, x, options=options)
(curvature,) = opstage.hvp(total, (x,), (np.ones(2),), options=options)
print(json.dumps([float(value), *gradient, *curvature]))
"""

# At (1/4, 1/2): the sum, its gradient and its second derivatives; both by hand.
EXPECTED = {
    "logit": [-1.0986122886681098, 16 / 3, 4.0, -128 / 9, 0.0],
    "lisht": [0.29228824423093214, 0.4799223746053036, 0.8553410237429735, 1.7649161079081144, 1.2094644752400612],
}


DEVICE_TESTS = (
    ("test_values", "logit-edges"),
    ("test_values", "lisht-matrix"),
    ("test_first_derivatives", "logit-inside"),
    ("test_first_derivatives", "lisht-matrix"),
    ("test_bad_call", "logit-integers"),
)


@pytest.mark.parametrize("op", OPS)
def test_op_runs_in_programs(op: str, copy: Path) -> None:
    printed = run_python("-c", PROGRAM.format(root=str(copy), op=op), cwd=copy, path=[copy])
    assert json.loads(printed) == pytest.approx(EXPECTED[op], rel=1e-14, abs=1e-14)


def test_conformance_and_completeness_of_both(copy: Path) -> None:
    """Values on every interpreter and dtype, derivatives of both orders, shapes, bad calls, and no place forgotten."""
    suites = ["tests/conformance", "tests/structure/test_completeness.py"]
    chosen = " or ".join([*OPS, "test_completeness"])
    output = run_python("-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", chosen, *suites, cwd=copy, path=[copy])
    for ran in ("test_values_on_all_others[logit-edges]", "test_second_derivatives[lisht-matrix]"):
        assert f"{ran} PASSED" in output


EDITS = {"## A core op: logit": 6, "## A composite op: lisht": 3}


def test_the_page_counts_its_edits() -> None:
    """An edit is a file; the rows of the page's table are those of its blocks."""
    page = DOCUMENT.read_text()
    words = {6: "six", 3: "three"}
    core, composite = EDITS.values()
    assert f"a core op is {words[core]} edits and a composite is {words[composite]}" in " ".join(page.split())
    first, rest = page.split("## A composite op: lisht")
    for edits, text, column in ((core, first, 2), (composite, rest, 3)):
        files = set(re.findall(r"^# (\S+\.\w+), ", text, re.MULTILINE))
        assert len(files) == edits
        named = [row.split("|")[column].strip(" `") for row in first.splitlines() if row.startswith("| the ")]
        assert sorted(file for file in files if file.endswith(tuple(named))) == sorted(files)
        assert sum("/" in name for name in named) == edits


def asked(op: str, copy: Path) -> dict[str, list[float]]:
    """What `whole_op.py` finds of an op in the copy; it compares values itself."""
    answers: dict[str, list[float]] = json.loads(run_python("whole_op.py", op, cwd=copy, path=[copy]))
    return answers


@pytest.mark.parametrize("op", OPS)
def test_op_is_one_fused_kernel_exported_and_predicted(op: str, copy: Path) -> None:
    found = asked(op, copy)
    assert found.pop("eager kernels", 1) == 1  # logit has a kernel in NumPy
    for backend in ("eager", "compiled"):
        predicted, counted = found.pop(f"memory {backend}")
        assert predicted == pytest.approx(counted, rel=0.02)
    assert found == {"compiled value": [1, 1, {}], "compiled gradient": [1, 1, {}]}


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS)
def test_op_is_one_kernel_on_a_device(op: str, copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    assert asked(op, copy) == {"eager kernels": 1, "compiled kernels": 1}


@pytest.mark.slow
def test_ops_pass_the_suite_of_a_device(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_ENABLE_CUDASIM", "1")
    chosen = " or ".join([*OPS, "every_core_op"])
    words = ("-m", "pytest", "-v", "-p", "no:cacheprovider", "-k", chosen, "tests/cuda/test_conformance.py")
    output = run_python(*words, cwd=copy, path=[copy])
    both = [f"{test}[{sample}-{backend}]" for test, sample in DEVICE_TESTS for backend in ("eager", "compiled")]
    for ran in (*both, "test_every_core_op_has_a_kernel"):
        assert f"{ran} PASSED" in output, output
