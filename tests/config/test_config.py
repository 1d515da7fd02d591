"""Configuration in layers: conversions, origins, TOML lines, and every message a wrong value gets."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import pytest

from opstage.config import Layer, Mismatch, convert, merge, read_toml, toml_literal
from opstage.ops.errors import UsageError


@dataclass(frozen=True)
class Inner:
    depth: int = 2
    shape: tuple[int, ...] = (1, 2)


@dataclass(frozen=True)
class Outer:
    rate: float = 0.5
    name: Literal["left", "right"] = "left"
    inner: Inner = field(default_factory=Inner)
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise ValueError("rate must not be negative")
        if self.limit is not None and self.limit < self.inner.depth:
            raise ValueError("limit is below inner.depth")


SCHEMA = {"outer": Outer}


def merged(*layers: Layer) -> Outer:
    result: Outer = merge(SCHEMA, layers).sections["outer"]
    return result


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (True, bool, True),
        (3, int, 3),
        (3, float, 3.0),
        ("a", str, "a"),
        ("a/b", Path, Path("a/b")),
        ([1, 2], tuple[int, ...], (1, 2)),
        ([1, 0.5], tuple[float, float], (1.0, 0.5)),
        ("left", Literal["left", "right"], "left"),
        (None, int | None, None),
        ("none", float | None, None),
        (2, float | None, 2.0),
    ],
)
def test_values_convert(value: object, annotation: object, expected: object) -> None:
    found = convert(value, annotation)
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("value", "annotation", "message"),
    [
        ("3", int, "'3' is not an integer"),
        (True, int, "True is not an integer"),
        (1, bool, "1 is not true or false"),
        (1.5, int, "1.5 is not an integer"),
        ("x", float, "'x' is not a number"),
        (10**400, float, "too large"),
        ("lefd", Literal["left", "right"], "did you mean 'left'?"),
        (3, tuple[int, ...], "3 is not a list, each an integer"),
        ([1], tuple[int, int], "is not a list of 2: an integer, an integer"),
        ([1, "x"], tuple[int, ...], "'x' is not an integer"),
        ("x", int | None, "'x' is not an integer"),
    ],
)
def test_wrong_types_say_what_was_expected(value: object, annotation: object, message: str) -> None:
    with pytest.raises(Mismatch, match=message.replace("?", r"\?")):
        convert(value, annotation)


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("6", int, 6),
        ("-6", int, -6),
        ("1e-3", float, 1e-3),
        ("true", bool, True),
        ("0", bool, False),
        ("64,128", tuple[int, ...], (64, 128)),
        ("[64, 128]", tuple[int, ...], (64, 128)),
        ("", tuple[int, ...], ()),
        ("0.9,0.99", tuple[float, float] | None, (0.9, 0.99)),
        ("none", float | None, None),
        ("none", str, "none"),
    ],
)
def test_flags_are_read_by_their_type(text: str, annotation: object, expected: object) -> None:
    assert convert(text, annotation, text=True) == expected


@pytest.mark.parametrize(
    "value", [True, 0, -3, 1e-05, 2.5e300, "plain", 'quote " back \\ é\n\t\x7f\x01', (1, 2), (), ("a",)]
)
def test_literals_are_read_back_by_the_standard_library(value: object) -> None:
    found = tomllib.loads(f"x = {toml_literal(value)}")["x"]
    assert (tuple(found) if isinstance(value, tuple) else found) == value


def test_later_layers_win_and_keep_their_origins() -> None:
    low = Layer.of({"outer": {"rate": 1, "inner": {"depth": 5}}}, "low")
    high = Layer({"outer.inner.depth": "7"}, {"outer.inner.depth": "--outer.inner.depth"}, text=True)
    result = merge(SCHEMA, [low, high])
    assert result.sections["outer"] == Outer(rate=1.0, inner=Inner(depth=7))
    assert result.origins == {
        "outer.rate": "low",
        "outer.name": "default",
        "outer.inner.depth": "--outer.inner.depth",
        "outer.inner.shape": "default",
        "outer.limit": "default",
    }


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"outer": {"rat": 1}}, r"here: \[outer\] has no key 'rat' \(did you mean 'rate'\?\); it has rate, name"),
        ({"outer": {"depth": 1}}, r"did you mean 'inner.depth'\?"),
        ({"outr": {"rate": 1}}, r"here: no table \[outr\] \(did you mean 'outer'\?\)"),
        ({"rate": 1}, r"here: no key 'rate' outside the tables \(did you mean 'outer.rate'\?\)"),
        ({"outer": {"rate": "x"}}, r"here: outer.rate: 'x' is not a number"),
        ({"outer": {"rate": float("nan")}}, r"here: outer.rate: nan is not finite"),
        ({"outer": {"rate": -1}}, r"^here: rate must not be negative"),
        ({"outer": {"inner": 3}}, r"here: \[outer\] has no key 'inner'"),
    ],
)
def test_what_does_not_fit_is_an_error_that_names_its_origin(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        merged(Layer.of(values, "here"))


def test_values_that_only_together_do_not_fit_name_both_origins() -> None:
    layers = Layer.of({"outer.rate": 1}, "innocent"), Layer.of({"outer.limit": 1}, "guilty")
    with pytest.raises(UsageError, match=r"^guilty: limit is below"):
        merged(*layers)


def test_toml_lines_are_those_of_the_keys(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text(
        "\n".join(
            [
                "# first",  # 1
                "[a]",  # 2
                'text = """',  # 3
                "fake = 1",  # 4
                '"""',  # 5
                "list = [",  # 6
                "  1, # [",  # 7
                "]",  # 8
                "after = 2",  # 9
                '[a."b"]',  # 10
                "c.d = 3",  # 11
                "one = '['",  # 12
                "two = 1",  # 13
            ]
        )
    )
    layer = read_toml(file)
    assert {path: int(origin.rpartition(":")[2]) for path, origin in layer.origins.items()} == {
        "a.text": 3,
        "a.list": 6,
        "a.after": 9,
        "a.b.c.d": 11,
        "a.b.one": 12,
        "a.b.two": 13,
    }
    assert layer.values["a.b.c.d"] == 3


def test_files_that_are_no_toml_are_one_error(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    with pytest.raises(UsageError, match=r"s\.toml: cannot read the configuration: No such file"):
        read_toml(file)
    file.write_text("[a\n")
    with pytest.raises(UsageError, match=r"s\.toml: not a TOML file: .*line 1"):
        read_toml(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match=r"s\.toml: not a TOML file"):
        read_toml(file)
