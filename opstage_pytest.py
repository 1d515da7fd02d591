"""The pytest plugin: a test that is a program, checked on shapes in place of being called.

    @pytest.mark.shapes("x: B 3 32 32", "y: B int64", params=init_params, where=["B <= 512"])
    def test_loss(ops, params, x, y):
        return cross_entropy(ops, network(ops, params, x), y)

It stands beside the package, not in it, so that pytest loads it without Opstage, which waits for the first such test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import pytest

MARK = "shapes"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{MARK}(*inputs, params=None, state=None, where=(), step=None, train=True, strict=False, optimizer=None, "
        "options=None, claims=()): the test is a program of Opstage; its shapes are checked, and it is not called",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector: pytest.Module | pytest.Class, name: str, obj: object) -> pytest.Item | None:
    marks = [mark for mark in _marks(obj) if mark.name == MARK]
    if not marks or not collector.istestfunction(obj, name):
        return None
    return ShapesItem.from_parent(collector, name=name, program=obj, mark=marks[0])


@final
class ShapesItem(pytest.Item):
    """A test whose function is a program; it fails with what the check finds."""

    def __init__(self, *, program: Any, mark: pytest.Mark, **more: Any):
        super().__init__(**more)
        self._function = program
        self._mark = mark
        for other in _marks(program):
            self.add_marker(getattr(pytest.mark, other.name)(*other.args, **other.kwargs))

    def runtest(self) -> None:
        from opstage.testing import assert_declared, read_mark

        if any(mark.name == "parametrize" for mark in _marks(self._function)):
            pytest.fail("a test marked with shapes takes no parameters: write a program for each", pytrace=False)
        shapes, more = read_mark(self._mark.args, self._mark.kwargs, self._function)
        assert_declared(self._program(), shapes, **more)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        from opstage import OpstageError

        if isinstance(excinfo.value, (AssertionError, OpstageError)):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, int, str]:
        code = getattr(self._function, "__code__", None)
        return self.path, code.co_firstlineno - 1 if code is not None else 0, self.name

    def _program(self) -> Callable[..., Any]:
        """The function, bound to a new instance where it is a method."""
        parent = self.parent
        program: Callable[..., Any] = (
            getattr(parent.obj(), self.name) if isinstance(parent, pytest.Class) else self._function
        )
        return program


def _marks(obj: object) -> list[pytest.Mark]:
    """The marks of a function itself."""
    found = getattr(obj, "pytestmark", [])
    return [mark for mark in found if isinstance(mark, pytest.Mark)] if isinstance(found, list) else []
