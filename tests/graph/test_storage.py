"""Graphs in files: saved and loaded again, and files that are no graphs."""

from __future__ import annotations

import copy
import hashlib
import os
import pickle
import random
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
from opstage.tensors import decode, decode_metadata, encode
from tests.graph.same import same_graphs


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


def rewritten(file: Path, old: str, new: str) -> None:
    """The file with another text, and the digest of that one: as somebody would write who means harm."""
    data = file.read_bytes()
    metadata = decode_metadata(data, file)
    assert old in metadata["graph"]
    text = metadata["graph"].replace(old, new, 1)
    metadata |= {"graph": text, "digest": hashlib.sha256(text.encode()).hexdigest()}
    file.write_bytes(encode(decode(data, file), metadata))


def refused(file: Path, why: str) -> None:
    with pytest.raises(UsageError, match=why) as error:
        Graph.load(file)
    assert str(error.value).startswith(str(file))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    refused(tmp_path / "none.graph", "cannot be read: No such file")


@pytest.mark.parametrize("share", (0.0, 0.001, 0.1, 0.5, 0.9, 0.999))
def test_a_truncated_file(file: Path, share: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    refused(file, "truncated|not a safetensors file")


def test_a_file_of_tensors_alone(file: Path) -> None:
    file.write_bytes(encode({"w": np.zeros(3)}))
    refused(file, "holds tensors but no graph")


def test_a_pickle(file: Path) -> None:
    file.write_bytes(pickle.dumps({"w": [1.0] * 10}, protocol=4))
    refused(file, "not a safetensors file but a pickle")


def test_a_newer_version(file: Path) -> None:
    data = file.read_bytes()
    file.write_bytes(encode(decode(data, file), decode_metadata(data, file) | {"version": "2"}))
    refused(file, "version 2 of the format, and this Opstage reads version 1; upgrade Opstage")


def test_an_altered_text(file: Path) -> None:
    data = file.read_bytes()
    assert data.count(b"scan") == 1
    file.write_bytes(data.replace(b"scan", b"span"))
    refused(file, "altered or damaged: the graph's digest does not match")


def test_an_altered_constant(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    refused(file, "altered or damaged: .*the constant .* has other values")


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
        ("matmul(", "system(", "no op 'system'"),
        ("reverse=False", "reverse=__import__('os')", "is not a static parameter"),
        ('"output 0"', '"half \\ud800"', "half of a character"),
    ),
)
def test_a_text_that_was_written_by_hand(file: Path, old: str, new: str, why: str) -> None:
    rewritten(file, old, new)
    refused(file, why)
