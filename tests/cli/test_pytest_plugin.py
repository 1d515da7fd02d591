"""The pytest plugin, in a run of pytest's own."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

import pytest

from opstage import Spec, UsageError
from opstage.testing import assert_shapes
from tests.docs.blocks import blocks

ROOT = Path(__file__).resolve().parents[2]
pytest_plugins = ["pytester"]

TESTS = """
import pytest
from opstage import Spec

params = {"w": Spec("10 64")}

@pytest.mark.shapes("x: B 64", "y: B int64", params=params)
def test_right(ops, params, x, y):
    return ops.cross_entropy(ops.linear(params["w"], None, x), y)

@pytest.mark.shapes("x: B 60", "y: B int64", params=params)
def test_wrong(ops, params, x, y):
    return ops.cross_entropy(ops.linear(params["w"], None, x), y)

@pytest.mark.shapes("z: B 60")
def test_misnamed(ops, x):
    return x

@pytest.mark.xfail(reason="known")
@pytest.mark.shapes("x: B 60", "y: M")
def test_known(ops, x, y):
    return ops.add(x, y)

@pytest.mark.skip(reason="later")
@pytest.mark.shapes("x: B")
def test_later(ops, x):
    raise RuntimeError

class TestModel:
    width = 10

    @pytest.mark.shapes("x: B")
    def test_method(self, ops, x):
        return ops.broadcast_to(ops.sum(x), shape=(self.width,))

@pytest.mark.shapes("x: B")
@pytest.mark.parametrize("n", [1, 2])
def test_parameters(ops, x, n):
    return x

def test_other():
    pass

@pytest.mark.shapes("x: B")
def helper(ops, x):
    raise RuntimeError
"""


def test_programs_are_checked_in_place_of_being_called(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_inprocess("-p", "no:opstage", "-p", "opstage_pytest", "-p", "no:cacheprovider", "-rA")
    result.assert_outcomes(passed=3, failed=3, xfailed=1, skipped=1)
    result.stdout.fnmatch_lines(
        [
            "*test_wrong*",
            "test_wrong, the forward pass:",
            "error[[]shape]: linear: weight is (out=10, in=64) but x is (B, 60)*",
            "  --> *.py:12:30",
            '12 |     return ops.cross_entropy(ops.linear(params["w"], None, x), y)',
            "*written at test_*.py:10",
        ],
        consecutive=False,
    )
    text = result.stdout.str()
    assert "test_misnamed has no argument 'z'" in text and "takes no parameters" in text
    assert "opstage_pytest.py" not in text and "Traceback" not in text


def test_the_guides_own_test(pytester: pytest.Pytester) -> None:
    for block in blocks(ROOT / "docs" / "guide" / "checking-in-ci.md"):
        if block.path:
            (pytester.path / block.path).write_text(block.text)
    pytester.syspathinsert()
    plugins = ("-p", "no:opstage", "-p", "opstage_pytest", "-p", "no:cacheprovider")
    pytester.runpytest_inprocess(*plugins, "test_classifier.py").assert_outcomes(passed=2)


def test_the_plugin_does_not_load_opstage_by_itself() -> None:
    code = "import sys, opstage_pytest; sys.exit('opstage' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_the_package_registers_it() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options.entry_points"]["pytest11"].split() == ["opstage", "=", "opstage_pytest"]
    assert setup["options"]["py_modules"] == "opstage_pytest"


def test_shapes_are_asserted() -> None:
    def product(ops, x, y):  # type: ignore[no-untyped-def]
        return ops.matmul(x, y)

    assert assert_shapes(product, "x: B N", "y: N M").ok
    assert assert_shapes(product, x=Spec("B N"), y=Spec("N M")).ok
    with pytest.raises(AssertionError, match=r"product, the forward pass:\n\nerror\[shape\]: matmul"):
        assert_shapes(product, "x: B N", "y: M N")
    assert assert_shapes(product, "x: B N", "y: M N", where=["M == N"]).ok
    with pytest.raises(UsageError, match="no argument 'z'"):
        assert_shapes(product, "z: B N")
