"""Files and texts that once ended in a traceback, a hang or all the memory there is: each is one clear error now.

The suite that finds such cases is in tests/fuzz.
"""

from __future__ import annotations

import gzip
import io
import json
import string
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage import Spec, UsageError, check
from opstage.cli.commands import read_sizes
from opstage.config import Layer, read_toml
from opstage.data import from_csv, from_idx, from_npy, from_npz
from opstage.interop.weights.mapping import read_name
from opstage.interpreters.graph import record
from opstage.interpreters.graph.text import parse
from opstage.ops.dims import DimScope
from opstage.ops.errors import brief, nearest, printable
from opstage.ops.types import FLOAT32, TensorType
from opstage.runs.settings import configure
from opstage.safetensors_files import read_header, read_tensors
from opstage.training.headers import array_headers

DIGITS = "9" * 5000
LETTERS = list(string.ascii_lowercase)


def npy(shape: str = "(3,)", descr: str = "'<f4'", data: bytes = bytes(12), header: str | None = None) -> bytes:
    text = (header or f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}").encode()
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + data


def archive(
    method: int = zipfile.ZIP_STORED, patch: Callable[[bytearray], None] | None = None, **files: bytes
) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as made:
        for name, data in files.items():
            made.writestr(f"{name}.npy", data)
    packed = bytearray(buffer.getvalue())
    if patch is not None:
        patch(packed)
    return bytes(packed)


def field(offset: int, value: int) -> Callable[[bytearray], None]:
    """Sets two bytes of the first entry in an archive's directory."""

    def patch(packed: bytearray) -> None:
        at = packed.index(b"PK\x01\x02") + offset
        packed[at : at + 2] = value.to_bytes(2, "little")

    return patch


NPY = {
    "terabytes": (npy("(1000000000000,)"), "names .* bytes, but it has 12"),
    "a negative size": (npy("(-3,)"), "sizes are integers that are at least 0"),
    "a size that is true": (npy("(True, 3)"), "sizes are integers"),
    "an overflowing product": (npy("(3037000500, 3037000500)"), "bytes, but it has"),
    "a hundred axes": (npy("(" + "1," * 100 + ")", data=bytes(4)), "axes"),
    "thousands of digits": (npy(f"({DIGITS},)"), "that can be read"),
    "nested deeply": (npy("(" * 500 + ")" * 500), "that can be read"),
    "an open string": (npy(header="{'descr': '"), "that can be read"),
    "no description": (npy(descr="('<f4',)"), "that can be read"),
    "elements that are arrays": (npy(descr="('<f4', (2, 2))"), "its elements are arrays"),
    "objects": (npy(descr="'|O'"), "Object arrays"),
    "texts": (npy(descr="'<U1'"), "holds <U1 values"),
    "another version": (b"\x93NUMPY\7\0" + npy()[8:], "version 7.0"),
    "nothing": (b"", "that can be read"),
}


@pytest.mark.parametrize("name", NPY)
def test_npy(tmp_path: Path, name: str) -> None:
    data, message = NPY[name]
    (tmp_path / "x.npy").write_bytes(data)
    with pytest.raises(UsageError, match=f"^{tmp_path}/x.npy: .*{message}"):
        from_npy(x=tmp_path / "x.npy")


NPZ: dict[str, tuple[bytes | Callable[[], bytes], str]] = {
    # which take a second to pack
    "a bomb": (
        lambda: archive(zipfile.ZIP_DEFLATED, x=npy("(200000000,)", "'|u1'", bytes(200_000_000))),
        "would unpack to",
    ),
    "two that are a bomb together": (
        lambda: archive(zipfile.ZIP_DEFLATED, **dict.fromkeys("xy", npy("(60000000,)", "'|u1'", bytes(60_000_000)))),
        "would unpack to",
    ),
    "an unknown method": (archive(patch=field(10, 97), x=npy()), "method 97"),
    "packed by lzma": (archive(zipfile.ZIP_LZMA, x=npy()), "method 14"),
    "packed by bzip2": (archive(zipfile.ZIP_BZIP2, x=npy()), "method 12"),
    "an encrypted member": (archive(patch=field(8, 1), x=npy()), "encrypted"),
    "a strongly encrypted member": (archive(patch=field(8, 65), x=npy()), "encrypted"),
    "a version to come": (archive(patch=field(6, 109), x=npy()), "version 10.9"),
    "bytes that are no array": (archive(x=b"some bytes"), "not an .npy header"),
    "terabytes": (archive(x=npy("(1000000000000,)")), "bytes, but it has"),
    "objects": (archive(x=npy(descr="'O'")), "Object arrays"),
}


@pytest.mark.parametrize("name", NPZ)
def test_npz(tmp_path: Path, name: str) -> None:
    data, message = NPZ[name]
    (tmp_path / "d.npz").write_bytes(data if isinstance(data, bytes) else data())
    with pytest.raises(UsageError, match=f"^{tmp_path}/d.npz: .*{message}"):
        from_npz(tmp_path / "d.npz")
    if name not in ("terabytes", "two that are a bomb together"):  # only the headers are looked at
        with pytest.raises(UsageError, match=f"^{tmp_path}/d.npz: .*{message}"):
            array_headers(tmp_path / "d.npz")


def test_a_damaged_stream_is_said_to_be_one(tmp_path: Path) -> None:
    data = bytearray(archive(zipfile.ZIP_DEFLATED, x=npy("(3000,)", data=np.arange(3000, dtype=np.float32).tobytes())))
    data[200:400] = bytes(200)
    (tmp_path / "d.npz").write_bytes(data)
    with pytest.raises(UsageError, match="cannot read 'x'"):
        from_npz(tmp_path / "d.npz")


def test_what_numpy_writes_is_read_as_numpy_reads_it(tmp_path: Path) -> None:
    arrays = {
        "plain": np.arange(12.0).reshape(3, 4),
        "columns": np.asfortranarray(np.arange(12.0).reshape(3, 4)),
        "swapped": np.arange(3, dtype=">i4"),
        "mask": np.array([True, False, True]),
        "scalars": np.ones((3, 0), np.float32),
    }
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "d.npz", **arrays)
        dataset = from_npz(tmp_path / "d.npz")
        for name, array in arrays.items():
            np.testing.assert_array_equal(dataset[name], array)
            assert dataset[name].dtype == array.dtype.newbyteorder("=") and dataset[name].flags.writeable
            header = array_headers(tmp_path / "d.npz")[name]
            assert header.shape == array.shape and header.dtype == array.dtype


def test_idx_files_that_promise_terabytes(tmp_path: Path) -> None:
    header = b"\0\0\x08\x02" + (2**20).to_bytes(4, "big") * 2
    for name, data in {
        "x": header,
        "x.gz": gzip.compress(header),
        "x.more": gzip.compress(header + bytes(10**6)),
    }.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match=f"^{tmp_path}/{name}: "):
            from_idx(x=tmp_path / name)


def test_idx_sizes_that_no_array_has(tmp_path: Path) -> None:
    for axes in (3, 200):
        sizes = (0).to_bytes(4, "big") + b"\xff" * 4 * (axes - 1)
        (tmp_path / "x").write_bytes(b"\0\0\x0e" + bytes([axes]) + sizes)
        with pytest.raises(UsageError, match=f"^{tmp_path}/x: .*which no array has"):
            from_idx(x=tmp_path / "x")


def test_a_cell_of_many_characters_is_not_shown_whole(tmp_path: Path) -> None:
    (tmp_path / "d.csv").write_text(f"a,b\n{'(' * 20_000},1\n")
    with pytest.raises(UsageError, match="column a is") as caught:
        from_csv(tmp_path / "d.csv")
    assert len(str(caught.value)) < 600


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize("shape", ["[Infinity]", "[1e400]", "[-2]", "[2.0]", '["2"]', "[true, 2]", f"[{DIGITS}]", "{}"])
def test_sizes_in_a_safetensors_header_are_natural_numbers(tmp_path: Path, shape: str) -> None:
    header = json.dumps({"a": {**ENTRY, "shape": "HERE"}}).replace('"HERE"', shape).encode()
    (tmp_path / "w").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(UsageError, match=f"^{tmp_path}/w: "):
        read_header(tmp_path / "w")


def test_shapes_of_tensors_that_no_array_has(tmp_path: Path) -> None:
    for number, shape in enumerate(([], [0, 2**62, 4])):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
        if number == 0:
            entry = {"dtype": "F32", "shape": [1] * 65, "data_offsets": [0, 4]}
        header = json.dumps({"a": entry}).encode()
        path = tmp_path / f"w{number}"
        path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(entry["data_offsets"][1]))
        with pytest.raises(UsageError, match=f"^{path}: .*(which no array has|can be read)"):
            read_tensors(path)


def test_names_of_tensors_may_hold_any_number() -> None:
    assert read_name(f"layers.{DIGITS}.weight").role == "weight"
    assert nearest("x" * 100_000, ["y" * 100_000, "x" * 99_999]) == ""


# Texts ----------------------------------------------------------------------------------------------------------------

TOML = {
    "brackets": "a = " + "[" * 5000 + "]" * 5000,
    "tables within tables": "a = " + "{a = " * 5000 + "1" + "}" * 5000,
    "a key of many parts": "a." * 20_000 + "a = 1",
    "a header of many parts": "[" + "a." * 20_000 + "a]",
    "thousands of digits": f"a = {DIGITS}",
    "megabytes": "#" * 2**20,
    "quotes that do not close": 'a = "' + '\\"' * 30_000,
    "bytes that are no text": "a = \udcff",
}


@pytest.mark.parametrize("name", TOML)
def test_toml(tmp_path: Path, name: str) -> None:
    (tmp_path / "c.toml").write_bytes(TOML[name].encode("utf-8", "surrogateescape"))
    with pytest.raises(UsageError, match=f"^{tmp_path}/c.toml: "):
        read_toml(tmp_path / "c.toml")


@pytest.mark.parametrize("text", [DIGITS, "9" * 100, "-" + DIGITS, "(" * 9000, "x" * 9000])
def test_flags_of_many_characters(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--run\.epochs: ") as caught:
        configure("mlp", flags=[Layer({"run.epochs": text}, {"run.epochs": "--run.epochs"}, text=True)], environ={})
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("text", [f"B={DIGITS}", "B=9223372036854775808", "B=0", "x" * 9000])
def test_sizes_of_many_digits(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--at ") as caught:
        read_sizes(text)
    assert len(str(caught.value)) < 600


SIZES = {
    "thousands of digits": DIGITS,
    "a power of powers": "((((9**16)**16)**16)**16)",
    "a power of sums": "(((a+b+c+d)**16)**16)",
    "a product of sums": "*".join(f"({name}+1)" for name in LETTERS),
    "a power of a sum of many": "(" + "+".join(LETTERS) + ")**8",
    "a name to the 65536th": "(((a**16)**16)**16)**16",
    "quotients of sums": "(a+b+c)**9//(a+1)//((b+c+1)**9//(a+2))**9",
    "nested minima": "min(a, b+" * 60 + "1" + ")" * 60,
    "a minimum of many": "min(" + ",".join(str(2000 - n) + "*a" for n in range(250)) + ")",
    "signs": "-" * 1500 + "a",
    "a long sum in parentheses": "(" * 150 + "a" + ")" * 150 + "+1" * 10,
    "beyond any array": "9223372036854775808",
    "a hexadecimal number": "0xff",
    "a number that runs into a name": "3if",
}
WITHIN_LIMITS = ("a long sum in parentheses",)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_that_explode(name: str) -> None:
    text = SIZES[name].replace(" ", "")
    spec = Spec(text)
    if name in WITHIN_LIMITS:
        assert str(spec.bind(DimScope(), FLOAT32).shape[0]) == "a + 10"
        return
    with pytest.raises(UsageError, match=r"^cannot read the dim expression") as caught:
        spec.bind(DimScope(), FLOAT32)
    assert len(str(caught.value)) < 600


def test_a_product_of_all_letters_can_be_bounded() -> None:
    """Each name is at least 1: multiplied out around that, the product has 67 million terms."""
    product = "*".join(LETTERS)
    report = check(
        lambda ops, x: ops.reshape(x, shape=(x.shape[0] * x.shape[1],)),
        Spec(f"{product} a", where=[f"{product} <= 4096"]),
    )
    assert report.ok


@pytest.mark.parametrize(
    "shape", [" ".join(["1"] * 65), "x" * 30_000, "4294967296 4294967296", (2**63,), (2**40, 2**40), (10**400,)]
)
def test_shapes_that_no_array_has(shape: Any) -> None:
    with pytest.raises(UsageError) as caught:
        Spec(shape).bind(DimScope(), FLOAT32)
    assert len(str(caught.value)) < 600


# Graphs ---------------------------------------------------------------------------------------------------------------

TEXT = """graph 1: float32, seed 7
size B
file m.py = "m.py"
input 0 x: (B, 3) float32
%1: (B, 3) float32 = relu(%x)  # @1 m.py:3 block
output y = %1
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("seed 7", f"seed {DIGITS}"),
        ("graph 1", f"graph {DIGITS}"),
        ("input 0", f"input {DIGITS}"),
        ("input 0", "input 9999999"),
        ("(B, 3) float32 = relu", f"({DIGITS}, 3) float32 = relu"),
        ("@1", f"@{DIGITS}"),
        ("m.py:3", f"m.py:{DIGITS}"),
        ("output y = %1", f"output y = %{DIGITS}"),
        ("block", f"block#{DIGITS}"),
        ("block", "/".join(["block"] * 100)),
        ("relu(%x)", "relu(%x, c=" + "(" * 150 + "1" + ")" * 150 + ")"),
        ("relu(%x)", f"relu(%x, c={DIGITS})"),
        ("relu(%x)", f"scale(%x, c={DIGITS[:400]})"),
        ("relu(%x)", "relu(%x, c=real((((B+1)**16)**16)**16))"),
        ("relu(%x)", "scale(%x, c=" + "B + " * 900 + "1)"),
        ("%1: (B", "const %2: (1,) float32 = [1e39]\n%1: (B"),
        ("(B, 3) float32\n%1", f"({2**62}, {2**62}) float32\n%1"),
        ('"m.py"', '"\\ud800"'),
        ("output y", 'output "\\ud800"'),
    ],
)
def test_graph_texts(old: str, new: str) -> None:
    assert old in TEXT
    with pytest.raises(UsageError) as caught:
        parse(TEXT.replace(old, new))
    assert len(str(caught.value)) < 2000


def test_a_graph_without_outputs_is_drawn() -> None:
    graph = parse(TEXT.replace("output y = %1\n", ""))
    assert graph.to_svg().startswith("<svg") and "relu" in graph.to_dot() and "relu" in graph.to_html()


def test_static_parameters_are_those_of_their_op() -> None:
    with pytest.raises(UsageError, match=r"operands or static parameters are not those of layer_norm"):
        parse(
            "graph 1: float32, seed 0\ninput 0 x: (2, 3) float32\n"
            "%1: (2, 3) float32, %2: (2, 1) float32, %3: (2, 1) float32 = "
            'layer_norm(%x, eps="x", has_gamma=False, has_beta=False)  # @1\noutput y = %1\n'
        )


def test_a_loop_whose_counts_are_none_of_its_operands() -> None:
    def turn(ops: Any, carry: Any, row: Any) -> Any:
        return ops.add(carry, row), None

    types = [TensorType((3,), FLOAT32), TensorType((5, 3), FLOAT32)]
    text = str(record(lambda ops, w, x: [ops.scan(turn, w, x)[0]], types, FLOAT32, 0, ["w", "x"]))
    assert "carries=1" in text
    for count in ("1.0", "9", "-1", "True"):
        with pytest.raises(UsageError):
            parse(text.replace("carries=1", f"carries={count}"))


# Messages -------------------------------------------------------------------------------------------------------------


def test_messages_hold_nothing_that_a_terminal_obeys() -> None:
    assert str(UsageError("\x1b[31mred\x07\u202e\ud800\nnext\tline")) == "\\x1b[31mred\\x07\\u202e\\ud800\nnext\tline"
    assert printable("déjà vu → 3·B") == "déjà vu → 3·B"
    assert len(str(UsageError("x" * 10**6))) < 6000


def test_values_are_shown_in_a_line() -> None:
    assert brief(10**5000) == "an integer of about 5,001 digits" or "digits" in brief(10**5000)
    assert brief(3) == "3" and brief("x") == "'x'"
    for value in ("x" * 10**6, [10**5000] * 1000, {"a" * 9999: ["b"] * 9999}):
        assert len(brief(value)) < 1000
