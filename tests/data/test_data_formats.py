"""CSV and IDX files: what they hold, and errors that name file and row."""

from __future__ import annotations

import gzip
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from opstage.data import from_csv, from_file, from_idx, idx_images
from opstage.ops.errors import UsageError

TABLE = "height,weight,kind\n1.5,2e1,0\n-3,.5,1\n 7 ,8,2\n"


def written(folder: Path, text: str | bytes, name: str = "data.csv") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_table(tmp_path: Path) -> None:
    data = from_csv(written(tmp_path, TABLE))
    assert data.names == ("x", "y")
    assert data["x"].tolist() == [[1.5, 20.0], [-3.0, 0.5], [7.0, 8.0]]
    assert (data["y"].tolist(), data["y"].dtype) == ([0, 1, 2], np.int64)


@pytest.mark.parametrize("label", ["weight", 1, -2])
def test_the_label_is_any_column(tmp_path: Path, label: Any) -> None:
    data = from_csv(written(tmp_path, TABLE), label=label)
    assert data["x"].tolist() == [[1.5, 0], [-3, 1], [7, 2]]
    assert (data["y"].tolist(), data["y"].dtype) == ([20.0, 0.5, 8.0], np.float64)


@pytest.mark.parametrize(
    "text",
    [
        TABLE.replace("\n", "\r\n"),
        "\ufeff" + TABLE,
        TABLE.replace("\n", "\n\n"),
        TABLE.removesuffix("\n"),
        'height,"weight",kind\n"1.5",2e1,"0"\n-3,.5,1\n7,"8",2\n',
    ],
)
def test_the_same_table_written_otherwise(tmp_path: Path, text: str) -> None:
    data = from_csv(written(tmp_path, text))
    assert data["x"].tolist() == [[1.5, 20.0], [-3.0, 0.5], [7.0, 8.0]]
    assert data["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("d.csv", "a;b;y\n1;2;0\n3;4;1\n"),
        ("d.csv", "\ufeffa;b;y\r\n1;2;0\r\n3;4;1\r\n"),
        ("d.csv", "a\tb\ty\n1\t2\t0\n3\t4\t1\n"),
        ("d.tsv", "a\tb\ty\n1\t2\t0\n3\t4\t1\n"),
        ("d.csv", '"a";"b";"y"\n"1";2;0\n3;4;"1"\n'),
        ("d.csv", '"a","b","y"\n1,2,0\n3,4,1\n'),
        ("d.csv", '\n\n"a;a;a;a",b,y\n1,2,0\n3,4,1\n'),
        ("d.csv", "a, in kg;b;y\n1;2;0\n3;4;1\n"),
    ],
)
def test_the_separator_is_recognised(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    for data in (from_csv(path), from_file(path)):
        assert data["x"].tolist() == [[1, 2], [3, 4]]
        assert data["y"].tolist() == [0, 1]


def test_a_separator_that_is_said_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path, "a;b,y\n1,2\n")
    assert from_csv(path, delimiter=",")["x"].tolist() == [[1]]
    with pytest.raises(UsageError, match="row at line 2 has 1 cells"):
        from_csv(path, delimiter=";")


def test_without_header_and_with_another_delimiter(tmp_path: Path) -> None:
    data = from_csv(written(tmp_path, "1;2;3\n4;5;6\n"), header=False, delimiter=";", label=0)
    assert (data["x"].tolist(), data["y"].tolist()) == ([[2, 3], [5, 6]], [1, 4])


def test_a_long_table_comes_whole(tmp_path: Path) -> None:
    table = np.random.default_rng(0).standard_normal((9000, 3))
    text = "a,b,c\n" + "".join(",".join(map(repr, row)) + "\n" for row in table.tolist())
    data = from_csv(written(tmp_path, text))
    assert np.array_equal(np.column_stack([data["x"], data["y"]]), table)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the dataset is empty"),
        ("\n\n", "the dataset is empty"),
        ("a,b\n", "the dataset is empty: expected a row after the names"),
        ("1,2\n3,4\n", "line 1 holds numbers where the columns' names are expected; header=False takes it for a row"),
        (
            "a;b\n1,5;2\n",
            "row at line 2: column a is '1,5'; expected a finite number, with a decimal point instead of the comma",
        ),
        ("1,5;2;3\n1,5;2;3\n", "line 1 holds '1,5' where the columns' names are expected"),
        ("a,b\n1;2\n", "row at line 2 has 1 cells; expected 2; does ';' separate the cells of this file?"),
        ("a,b\n1\t2,3\n", "column a is '1\\t2'; expected a finite number; does a tab separate the cells of this file?"),
        (",a,y\n0,1,2\n", "line 1: column 1 lacks a name; name it, or leave it out: pandas"),
        ("a|b\n1|2\n", "has one column, 'a|b'; expected the label's and at least one more. Cells are separated by"),
        ("a\n1\n", "has one column, 'a'; expected the label's and at least one more"),
        (TABLE + "1,2\n", "row at line 5 has 2 cells; expected 3"),
        (TABLE + "\n\n1,2,3,4\n", "row at line 7 has 4 cells; expected 3"),
        (TABLE + "1,,3\n", "row at line 5: column weight is empty"),
        (TABLE + "1,tall,3\n", "row at line 5: column weight is 'tall'; expected a finite number"),
        (TABLE + "1,2,nan\n", "row at line 5: column kind is 'nan'; expected a finite number"),
        (TABLE + "inf,2,3\n", "row at line 5: column height is 'inf'; expected a finite number"),
        (TABLE + "1_000,2,3\n", "row at line 5: column height is '1_000'; expected a finite number"),
        (TABLE + '1,"2,3\n', "row at line 5: not CSV: unexpected end of data"),
        (TABLE.encode() + b"1,\xff\xfe,2\n", "not UTF-8"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not UTF-8"),
        ("a,b\n" + "1,2\n" * 5000 + "1,x\n", "row at line 5002: column b is 'x'"),
        ("a,b\n1,2\n1,x\n", "b is 'x'; expected a finite number, as in the rows before: a column of classes"),
        ("a,b\n" + "1,1\n" * 5000 + "1,01\n", "row at line 5002: column b is '01'; another row has '1', the same"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str | bytes, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        from_csv(path)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"label": "kinds"},
            "no column is called 'kinds' (did you mean 'kind'?); the columns are height, weight, kind",
        ),
        ({"label": 3}, "label=3 is not one of its 3 columns"),
        ({"label": "kind", "header": False}, "header=False says that columns have none"),
        ({"label": 1.0}, "label=1.0; expected a column's name or its position"),
        ({"label": True}, "label=True; expected a column's name or its position"),
        ({"label": ["kind"]}, "label=['kind']; expected a column's name or its position"),
        ({"delimiter": ""}, "delimiter=''; expected one character"),
        ({"delimiter": "||"}, "delimiter='||'; expected one character"),
        ({"delimiter": 1}, "delimiter=1; expected one character"),
        ({"limit": 0}, "limit=0; expected a number of rows, at least 1"),
        ({"limit": -1}, "limit=-1; expected a number of rows, at least 1"),
        ({"limit": 1.5}, "limit=1.5; expected a number of rows, at least 1"),
    ],
)
def test_bad_arguments(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        from_csv(written(tmp_path, TABLE), **how)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "line 1 holds numbers where the columns' names are expected"),
        ("5,1,setosa\n4,1,virginica\n", "line 1 holds numbers"),
        ("-1,a\n2,b\n", "line 1 holds numbers"),
        ("nan,a\n2,b\n", "line 1 holds numbers"),
        ("5,setosa\n4,virginica\n3,setosa\n", "row at line 3: column setosa is 'setosa'; so is the first line"),
        ("a,kind\n1,u\na,kind\n2,v\n", "row at line 3: column a is 'a'; so is the first line"),
    ],
)
def test_a_first_line_that_is_a_row_is_not_lost(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as error:
        from_csv(path)
    assert problem in str(error.value) and "header=False takes it for a row" in str(error.value)


@pytest.mark.parametrize("names", ["0,1,2,y", "1,2,3,y", "2019,2020,2021,y", "a,b,7,y", "y2,1e,x3,y"])
def test_names_that_count_are_names(tmp_path: Path, names: str) -> None:
    data = from_csv(written(tmp_path, f"{names}\n.5,.5,.5,u\n1,1,1,v\n"))
    assert data.columns == (tuple(names.split(",")[:3]), ("y",)) and data["x"].tolist() == [[0.5] * 3, [1.0] * 3]


def test_without_header_no_row_is_lost(tmp_path: Path) -> None:
    data = from_csv(written(tmp_path, "5,setosa\n4,virginica\n3,setosa\n"), header=False)
    assert data["x"].tolist() == [[5.0], [4.0], [3.0]] and data["y"].tolist() == [0, 1, 0]


@pytest.mark.parametrize(
    ("cell", "exact"),
    [
        *[(str(2**53), True), ("1e300", True), ("123456789012345678.0", True), ("0" * 30 + "1", True)],
        *[(str(2**53 + 1), False), (str(-(2**53) - 1), False), (f"+{2**60}", False), ("1" * 40, False)],
    ],
)
def test_integers_that_a_float_would_round_are_refused(tmp_path: Path, cell: str, exact: bool) -> None:
    for text in (f"a,b,y\n1,{cell},0\n", f"a,b,y\n1,2,{cell}\n"):
        path = written(tmp_path, text)
        if exact:
            data = from_csv(path)
            assert float(cell) in (data["x"][0, 1], data["y"][0])
        else:
            with pytest.raises(UsageError, match=r"row at line 2: column [by] is .* none beyond 2\*\*53"):
                from_csv(path)


@pytest.mark.parametrize("name", ["DATA.CSV", "data.csv.gz", "Data.Csv.GZ", "data.tsv.gz", "DATA.TSV"])
def test_names_in_capitals_and_gzipped_tables(tmp_path: Path, name: str) -> None:
    text = (TABLE if "csv" in name.lower() else TABLE.replace(",", "\t")).encode()
    path = written(tmp_path, gzip.compress(text) if name.lower().endswith("gz") else text, name)
    data = from_file(path)
    assert data["x"].tolist() == [[1.5, 20.0], [-3.0, 0.5], [7.0, 8.0]] and data["y"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("damage", [lambda data: data[:-9], lambda data: data[:20], lambda data: b"a,y\n1,2\n"])
def test_damaged_gzipped_tables(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    path = written(tmp_path, damage(gzip.compress(TABLE.encode() * 50)), "data.csv.gz")
    with pytest.raises(UsageError, match=r"data\.csv\.gz: cannot be read: "):
        from_csv(path)


def test_two_columns_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="two columns are called 'a'; the columns are a, a, b"):
        from_csv(written(tmp_path, "a,a,b\n1,2,3\n"), label="a")


def test_zeros_in_front_of_every_label_are_one_way_to_write_numbers(tmp_path: Path) -> None:
    assert from_csv(written(tmp_path, "a,month\n01,01\n1,02\n1,01\n"))["y"].tolist() == [1, 2, 1]


def test_no_table(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.csv: no such file"):
        from_csv(tmp_path / "none.csv")
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        from_csv(tmp_path)


CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx(array: np.ndarray[Any, Any]) -> bytes:
    kind = array.dtype.str[1:]
    header = bytes([0, 0, CODES[kind], array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", list(CODES))
def test_every_type_and_rank(tmp_path: Path, kind: str, packed: bool) -> None:
    for shape in [(5,), (4, 3), (2, 3, 4), (3, 1, 2, 2)]:
        array = (np.arange(np.prod(shape)).reshape(shape) * 7 - 3).astype(kind)
        path = written(tmp_path, gzip.compress(idx(array)) if packed else idx(array), "some-idx")
        found = from_idx(x=path)["x"]
        assert found.dtype == np.dtype(kind) and found.dtype.isnative
        assert np.array_equal(found, array)


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    images = np.random.default_rng(0).integers(0, 256, (6, 5, 4)).astype(np.uint8)
    images[0, 0, :2] = 0, 255
    written(tmp_path, gzip.compress(idx(images)), "train-images-idx3-ubyte.gz")
    written(tmp_path, gzip.compress(idx(np.arange(6, dtype=np.uint8))), "train-labels-idx1-ubyte.gz")
    return tmp_path


def test_images_with_their_labels(mnist: Path) -> None:
    data = from_file(mnist / "train-images-idx3-ubyte.gz")
    assert (data["x"].shape, data["x"].dtype, data["y"].dtype) == ((6, 1, 5, 4), np.float32, np.int64)
    assert data["x"][0, 0, 0, :2].tolist() == [0, 1]
    assert data["y"].tolist() == list(range(6))
    with pytest.raises(UsageError, match=r"holds uint8 of shape \(6,\); expected images"):
        idx_images(mnist / "train-labels-idx1-ubyte.gz", mnist / "train-labels-idx1-ubyte.gz")
    with pytest.raises(UsageError, match=r"expected labels, integers of \(n,\)"):
        idx_images(mnist / "train-images-idx3-ubyte.gz", mnist / "train-images-idx3-ubyte.gz")
    with pytest.raises(UsageError, match="expected a name with 'images'"):
        from_file(mnist / "train-labels-idx1-ubyte.gz")


GOOD = idx(np.arange(12, dtype=np.int16).reshape(3, 4))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "wrong magic number (the file is empty)"),
        (b"\x89PNG\r\n\x1a\n", "wrong magic number 89 50 4e 47; an IDX file begins with 00 00, a type from 08, 09, 0b"),
        (b"\0\0\x0a\1" + GOOD[4:], "wrong magic number 00 00 0a 01"),
        (GOOD[:4], "its header ends too early: 2 axes, and 0 bytes for their sizes"),
        (b"\0\0\x08\0", "its header ends too early: 0 axes"),
        (b"\0\0\x08\xff" + bytes(40), "its header ends too early: 255 axes, and 40 bytes"),
        (b"\0\0\x0b\2" + struct.pack(">2I", 2**32 - 1, 2**32 - 1), "its header names sizes (4294967295, 4294967295)"),
        (GOOD[:-1], "sizes (3, 4), which take 24 bytes, but the file has 23"),
        (GOOD + b"\0", "sizes (3, 4), which take 24 bytes, but it has more"),
        (b"\0\0\x08\2" + struct.pack(">2I", 0, 3), "the dataset is empty (shape (0, 3))"),
        (gzip.compress(GOOD[:-1], mtime=0), "which take 24 bytes, but it has only 23"),
        (gzip.compress(GOOD, mtime=0)[:-9], "cannot be read: Compressed file ended before"),
        (gzip.compress(b"\0\0\x08\2" + struct.pack(">2I", 2**32 - 1, 2**20), mtime=0), "but the file can unpack to"),
        (gzip.compress(GOOD, mtime=0)[:4] + b"\xff" * 30, "cannot be read"),
        (idx(np.array([1.0, np.nan])), "row 1 holds nan"),
    ],
)
def test_bad_idx_files(tmp_path: Path, data: bytes, message: str) -> None:
    path = written(tmp_path, data, "images-idx3-ubyte")
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        from_idx(x=path)
    assert str(error.value).startswith(f"{path}: ")


def test_no_idx_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="none-idx: no such file"):
        from_idx(x=tmp_path / "none-idx")


def save_npz(folder: Path) -> Path:
    np.savez(folder / "data.npz", x=np.ones((2, 3)), y=np.arange(2))
    return folder / "data.npz"


@pytest.mark.parametrize("make", [save_npz, lambda folder: written(folder, "a,b,c,y\n1,1,1,0\n1,1,1,1\n")])
def test_a_file_of_any_format(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    data = from_file(make(tmp_path))
    assert (data["x"].tolist(), data["y"].tolist()) == ([[1, 1, 1]] * 2, [0, 1])


def test_a_file_of_no_known_format(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.feather: unknown format; expected a name such as data\.npz"):
        from_file(tmp_path / "data.feather")
