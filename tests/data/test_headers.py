"""Headers of files, read without their tensors: of safetensors, of .npz and .csv files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from opstage import Spec, UsageError
from opstage.safetensors_files import encode, read_header, read_tensors
from opstage.training.headers import array_headers, check_checkpoint, check_data

TENSORS = {"a.w": np.zeros((3, 4), np.float32), "b": np.ones(5, np.int64), "m": np.zeros((), bool)}


def test_a_header_says_what_the_tensors_are(tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(encode(TENSORS, {"made": "here"}))
    header = read_header(tmp_path / "t.safetensors")
    assert {name: tensor.shape for name, tensor in header.items()} == {
        name: array.shape for name, array in read_tensors(tmp_path / "t.safetensors").items()
    }
    assert {name: (tensor.dtype, tensor.kind) for name, tensor in header.items()} == {
        "a.w": ("F32", "f"),
        "b": ("I64", "i"),
        "m": ("BOOL", "b"),
    }


def _file(header: object, rest: bytes = b"") -> bytes:
    text = json.dumps(header).encode() if not isinstance(header, bytes) else header
    return len(text).to_bytes(8, "little") + text + rest


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "its header is missing"),
        (b"PK\x03\x04" + bytes(20), "a pickle"),
        ((1 << 60).to_bytes(8, "little") + b"{}", "its header would have"),
        ((500).to_bytes(8, "little") + b"{}", "truncated"),
        (_file(b"{{"), "does not list tensors"),
        (_file([1, 2]), "does not list tensors"),
        (_file({"a": {"dtype": "F32"}}), "does not list tensors"),
        (_file({"a": {**ENTRY, "shape": ["x"]}}), "does not list tensors"),
        (_file({"a": ENTRY}, b"1234"), "would end at byte"),
        (_file({"a": ENTRY}, b"12345678abc"), "would end at byte"),
    ],
)
def test_a_header_that_cannot_be_used(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "t.safetensors").write_bytes(data)
    with pytest.raises(UsageError, match=message):
        read_header(tmp_path / "t.safetensors")


def test_a_named_dim_has_one_size_in_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "t.safetensors").write_bytes(encode({"v": np.zeros((7, 4)), "w": np.zeros((8, 4))}))
    path = tmp_path / "t.safetensors"
    assert check_checkpoint(path, {"v": Spec("V 4"), "w": Spec("W 4")}) == ()
    (finding,) = check_checkpoint(path, {"v": Spec("V 4"), "w": Spec("V 4")})
    assert finding.rule == "checkpoint" and "it has 8 on axis 0, but V is 7 in params.v" in finding.reason


def test_arrays_of_data_files(tmp_path: Path) -> None:
    big = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (4, 3), (0, 0))
    np.savez_compressed(tmp_path / "d.npz", x=big, y=np.zeros(4, np.uint8))
    (tmp_path / "d.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    assert {name: (h.shape, h.dtype) for name, h in array_headers(tmp_path / "d.npz").items()} == {
        "x": ((4, 3), np.dtype(np.float32)),
        "y": ((4,), np.dtype(np.uint8)),
    }
    assert array_headers(tmp_path / "d.csv")["x"].shape == (2, 2)
    assert check_data(tmp_path / "d.csv", {"x": Spec("B 2"), "y": Spec("B", "int64")}) == ()
    assert check_data(tmp_path / "d.npz", {"x": Spec("B N", where=["N <= 3"]), "y": Spec("B", "int64")}) == ()
    (finding,) = check_data(tmp_path / "d.npz", {"x": Spec("B N", where=["N <= 2"]), "y": Spec("B", "int64")})
    assert finding.rule == "batch" and "N <= 2" in finding.reason


def test_only_the_header_of_an_npz_file_is_read(tmp_path: Path) -> None:
    """The array's bytes are not there at all, and nobody asks for them."""
    import io
    import zipfile

    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f4", "fortran_order": False, "shape": (10**9, 10**3)})
    with zipfile.ZipFile(tmp_path / "huge.npz", "w") as archive:
        archive.writestr("x.npy", head.getvalue())
    assert array_headers(tmp_path / "huge.npz")["x"].shape == (10**9, 10**3)
    assert check_data(tmp_path / "huge.npz", {"x": Spec("B 1000")}, 32) == ()


@pytest.mark.parametrize("data", [b"", b"hello", b"PK\x03\x04"])
def test_data_files_that_are_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "d.npz").write_bytes(data)
    with pytest.raises(UsageError, match=r"d\.npz: not a \.npz file"):
        array_headers(tmp_path / "d.npz")
    with pytest.raises(UsageError, match="no such file"):
        array_headers(tmp_path / "missing.npz")
