"""Graphs in files: saved and loaded again, and files that are no graphs."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.interpreters.eager_cpu.interpreter import NumpyOps
from opstage.interpreters.graph import Graph, record
from opstage.interpreters.graph.recorder import replay
from opstage.interpreters.graph.text import FORMAT
from opstage.ops.body import Body
from opstage.ops.errors import UsageError
from opstage.ops.types import FLOAT64, TensorType
from opstage.options import Options
from opstage.safetensors_files import decode, decode_metadata, encode
from tests.graph.recorded import same_graphs

CUTS = (0.0, 0.001, 0.1, 0.5, 0.9, 0.999)


def program(ops: Any, x: Any) -> tuple[Any, ...]:
    noise = np.random.default_rng(0).standard_normal((6, 6))
    total, _ = ops.scan(lambda ops, carry, row: (ops.add(carry, row), None), ops.const(np.arange(6.0)), x)
    return (ops.region("block", lambda ops, x: ops.matmul(x, ops.const(noise)), x), total)


@pytest.fixture
def graph() -> Graph:
    return record(program, [TensorType((6, 6), FLOAT64)], FLOAT64, 3, ["x"])


@pytest.fixture
def file(graph: Graph, tmp_path: Path) -> Path:
    path = tmp_path / "program.graph"
    graph.save(path)
    return path


def test_a_copied_graph_has_the_same_ops(graph: Graph) -> None:
    ops = NumpyOps(Options(dtype="float64"))
    x = np.random.default_rng(1).standard_normal((6, 6))
    copied = copy.deepcopy(graph)
    same_graphs(copied, graph)
    assert all(a.primitive is b.primitive for a, b in zip(copied.body.equations, graph.body.equations, strict=True))
    for before, after in zip(replay(ops, graph, [x]), replay(ops, copied, [x])):
        assert before.tobytes() == after.tobytes()


def test_a_pickled_graph_says_how_to_keep_it(graph: Graph) -> None:
    with pytest.raises(TypeError, match=r"op \w+ cannot be pickled.*graph\.save\(path\)"):
        pickle.dumps(graph)


def test_a_body_that_two_ops_share_is_read_as_one(graph: Graph, tmp_path: Path) -> None:
    at = next(i for i, e in enumerate(graph.body.equations) if e.primitive.name == "scan")
    scan = graph.body.equations[at]
    more = tuple(range(len(graph.body.types), len(graph.body.types) + len(scan.outputs)))
    twice = graph.body.replace(
        equations=(*graph.body.equations, scan._replace(outputs=more)),
        types=(*graph.body.types, *[graph.body.types[slot] for slot in scan.outputs]),
    )
    graph.with_body(twice).save(tmp_path / "twice.graph")
    loaded = Graph.load(tmp_path / "twice.graph").body
    one, other = (e.static["body"] for e in loaded.equations if e.primitive.name == "scan")
    assert one is other and isinstance(one, Body)


def test_the_file_is_one_that_every_reader_of_tensors_reads(graph: Graph, file: Path) -> None:
    data = file.read_bytes()
    metadata = decode_metadata(data, file)
    assert metadata["format"] == FORMAT and metadata["version"] == "1"
    assert metadata["graph"] == str(graph)
    (large,) = (array for array in decode(data, file).values() if array.shape == (6, 6))
    np.testing.assert_array_equal(large, np.random.default_rng(0).standard_normal((6, 6)))


def test_a_failed_save_leaves_the_old_file(graph: Graph, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.read_bytes()

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(UsageError, match="No space left on device; nothing was changed"):
        graph.save(file)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


# Files that are no graphs ---------------------------------------------------------------------------------------------


def refused(file: Path, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        Graph.load(file)
    assert str(error.value).startswith(str(file))


def with_metadata(data: bytes, **changed: str) -> bytes:
    return encode(decode(data, "the file"), decode_metadata(data, "the file") | changed)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        *[
            (lambda data, share=share: data[: int(share * len(data))], "truncated|not a safetensors file")
            for share in CUTS
        ],
        (lambda data: encode({"w": np.zeros(3)}), "expected a graph, got tensors alone"),
        (lambda data: pickle.dumps({"w": [1.0] * 10}, protocol=4), "not a safetensors file but a pickle"),
        (
            lambda data: with_metadata(data, version="2"),
            "version 2 of the format, and this Opstage reads version 1; upgrade Opstage",
        ),
        (lambda data: data.replace(b"scan", b"span", 1), "altered or damaged: the graph's digest does not match"),
        (
            lambda data: data[:-3] + bytes([data[-3] ^ 1]) + data[-2:],
            "altered or damaged: .*the constant .* has other values",
        ),
    ],
    ids=[*[f"cut at {share}" for share in CUTS], "tensors", "a pickle", "a newer version", "its text", "a constant"],
)
def test_a_file_that_is_no_graph_is_refused(change: Callable[[bytes], bytes], why: str, file: Path) -> None:
    file.write_bytes(change(file.read_bytes()))
    refused(file, why)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "none.graph", "cannot be read: No such file")


def test_any_flipped_byte_is_found(file: Path) -> None:
    """Blanks in the header alone say nothing."""
    data = file.read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        at = rng.randrange(len(data))
        if data[at] != ord(" "):
            file.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
            with pytest.raises(UsageError):
                Graph.load(file)


@pytest.mark.parametrize(
    ("old", "new", "why"),
    (
        ("matmul(", "system(", "op 'system' is not known"),
        ("reverse=False", "reverse=__import__('os')", "is not a static parameter"),
        ('"output 0"', '"half \\ud800"', "half of a character"),
    ),
)
def test_a_text_that_was_written_by_hand(file: Path, old: str, new: str, why: str) -> None:
    """With the digest of the new text: as somebody would write who means harm."""
    data = file.read_bytes()
    text = decode_metadata(data, file)["graph"].replace(old, new, 1)
    assert new in text
    file.write_bytes(with_metadata(data, graph=text, digest=hashlib.sha256(text.encode()).hexdigest()))
    refused(file, why)
