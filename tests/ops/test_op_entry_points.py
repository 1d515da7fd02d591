"""Ops that an installed package brings by an entry point: found by name, and refused by name where they are broken."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

import opstage
from opstage import Options, Spec
from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.interpreters.graph.graph import Graph
from opstage.interpreters.graph.recorder import replay
from opstage.ops import catalogue as registered
from opstage.ops.errors import UsageError

Install = Callable[..., None]

GOOD = """
import numpy as np, opstage
doubled = opstage.custom_op("t_doubled", operands=("x",), shape=lambda x: x, kernels={"cpu": lambda x: x + x},
                            vjp=lambda ops, ctx, g: g[0] * 2.0)
other = opstage.custom_op("t_other", operands=("x",), shape=lambda x: x, decomposition=lambda ops, x: x)
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Makes a distribution of one module, with entry points `NAME = VALUE`, in a folder on sys.path."""
    before, modules = set(registered._NAMED), set(sys.modules)

    def make(distribution: str, module: str, text: str, **entries: str) -> None:
        folder = tmp_path / distribution
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (folder / f"{module}.py").write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {value}" for name, value in entries.items()]
        (info / "entry_points.txt").write_text("\n".join([f"[{registered.GROUP}]", *lines, ""]))
        monkeypatch.syspath_prepend(str(folder))
        registered._entries.cache_clear()

    yield make
    for name in set(registered._NAMED) - before:
        registered.unregister(name)
    for name in set(sys.modules) - modules:
        if name.startswith("t_ops_"):
            del sys.modules[name]
    registered._entries.cache_clear()


def test_a_graph_of_an_op_is_read_where_its_package_is_installed(install: Install, tmp_path: Path) -> None:
    install("op_package", "t_ops_good", GOOD, t_doubled="t_ops_good:doubled", t_other="t_ops_good:other")
    assert version("op_package") == "1.0" and "t_ops_good" not in sys.modules
    op = importlib.import_module("t_ops_good").doubled
    text = str(opstage.record(lambda ops, x: op(ops, x) + 1.0, Spec("3")))
    for name in ("t_doubled", "t_other"):
        registered.unregister(name)
    del sys.modules["t_ops_good"]
    assert "t_doubled" in text
    (found,) = replay(NumpyOps(Options()), Graph.parse(text), [np.array([1.0, 2.0, 3.0], np.float32)])
    assert "t_ops_good" in sys.modules
    np.testing.assert_array_equal(found, [3.0, 5.0, 7.0])


@pytest.mark.parametrize(
    ("text", "value", "message"),
    [
        ("import t_ops_missing", "t_ops_one:op", r"t_op' \(t_ops_one:op of broken\) cannot be loaded: ModuleNot"),
        ("raise ValueError('no GPU here')", "t_ops_one:op", r"cannot be loaded: ValueError: no GPU here"),
        (GOOD, "t_ops_one:absent", r"cannot be loaded: AttributeError: .*absent"),
        (GOOD, "t_ops_one:doubled", r"op 't_op': t_ops_one:doubled declares no op of this name"),
        (GOOD.replace("t_other", "add"), "t_ops_one:doubled", r"cannot be loaded: UsageError: .*an op 'add' already"),
    ],
    ids=["import", "raises", "absent", "another name", "taken"],
)
def test_what_is_broken_is_named(text: str, value: str, message: str, install: Install) -> None:
    install("broken", "t_ops_one", text, t_op=value)
    before, whole = set(registered._NAMED), text == GOOD
    for _ in range(2):  # the second time as well: half a module leaves nothing behind
        with pytest.raises(UsageError, match=message):
            registered.registered("t_op")
        assert (set(registered._NAMED) == before) is not whole


def test_two_packages_with_one_name(install: Install) -> None:
    install("first", "t_ops_first", GOOD, t_doubled="t_ops_first:doubled")
    install("second", "t_ops_second", GOOD, t_doubled="t_ops_second:doubled")
    with pytest.raises(UsageError, match=r"op 't_doubled' is declared by (first|second) \(t_ops_\w+:doubled\) and .*"):
        registered.registered("t_doubled")
    assert not {"t_ops_first", "t_ops_second"} & set(sys.modules)


def test_an_op_of_this_process_comes_first(install: Install) -> None:
    install("package", "t_ops_late", GOOD, t_doubled="t_ops_late:doubled")
    mine = opstage.custom_op("t_doubled", operands=("x",), shape=lambda x: x, decomposition=lambda ops, x: x)
    assert registered.registered("t_doubled") is mine.primitive and "t_ops_late" not in sys.modules
    np.testing.assert_array_equal(opstage.run(lambda ops, x: mine(ops, x), np.ones(2)), np.ones(2))
