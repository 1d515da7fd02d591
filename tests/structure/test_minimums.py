"""The lower bounds of setup.cfg: each is there, and is the same wherever a package is named."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.minimums import SETUP, declared, lowest, pins

PACKAGE = SETUP.parent / "opstage"
NAMES = {
    "cuda": "cuda-core",
    "typing_extensions": "typing-extensions",
    "numba_cuda": "numba-cuda",
    "PIL": "pillow",
    "nccl": "nccl4py",
}
"""Distributions that are called otherwise than what is imported."""
OPTIONAL = {"IPython", "torch", "jax", "pytest"}
"""What is imported where it is there: to take it apart, or because who imports it has it."""


def test_an_extra_that_is_tested_is_tested_at_its_own_minimum() -> None:
    known = declared()
    for extra in ("plot", "tensorboard", "onnx"):
        for name, version in known[extra].items():
            assert known["test"][name] == version, f"{name} in the extras {extra} and test"


def test_the_pins_are_what_setup_cfg_says() -> None:
    found = dict(pin.split("==") for pin in pins())
    assert found["click"] == declared()["core"]["click"]
    assert {"numba", "llvmlite", "numpy", "pytest", "onnx"} <= found.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a >=1.2, <3", {"a": "1.2"}),
        ("a[x] ==1.2.3\n# b\nb >=2", {"a": "1.2.3", "b": "2"}),
        ("c ==13.0.*", {"c": "13.0"}),
    ],
)
def test_requirements_are_read(text: str, expected: dict[str, str]) -> None:
    assert lowest(text) == expected


def test_a_requirement_without_a_lower_bound_is_an_error() -> None:
    with pytest.raises(ValueError, match="b <3: has no lower bound"):
        lowest("a >=1\nb <3")


def test_whatever_is_imported_is_declared() -> None:
    known = {name for requirements in declared().values() for name in requirements}
    imported: dict[str, Path] = {}
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                names = [node.module]
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "attr", getattr(node.func, "id", "")) in ("import_module", "find_spec")
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and not str(node.args[0].value).startswith(".")
            ):
                names = [str(node.args[0].value)]
            imported |= {name.partition(".")[0]: file for name in names}
    packages = {name for name in imported if name not in sys.stdlib_module_names} - {"opstage", "opstage_pytest"}
    missing = {name: imported[name] for name in packages if NAMES.get(name, name) not in known | OPTIONAL}
    assert missing == {}
