"""Mutations: of bytes, of text, of JSON and of the parts of containers, drawn by a `random.Random`."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable
from typing import Any, TypeAlias

Mutate: TypeAlias = Callable[[random.Random, bytes], bytes]

NUMBERS = (0, 1, 2, 3, 127, 128, 255, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
_TEXT_NUMBERS = (
    "0", "1", "-1", "2", "3", "7", "16", "17", "64", "-0", "00", "1.5", "1e3", "1e400", "-1e400", "NaN", "Infinity",
    "nan", "inf", "1_000", "4096", "65536", "1000000", "9999999", "10000000", "4294967296", "9223372036854775807",
    "9223372036854775808", "18446744073709551616", "1e99999", "٣", "²", "9" * 40, "9" * 400, "9" * 4300, "9" * 5000,
    "-" + "9" * 5000, "9" * 30000, "0x" + "f" * 4000, "0b" + "1" * 4000,
)  # fmt: skip
_WORDS = (
    "None", "true", "none", "null", "é", "#", "=", ":", ",", "[red]", "<script>", "../..", "//", "**", "%", "+", "-",
    "*", "(", ")", "[", "]", "{", "}", "min", "max", "min(", "lambda", "()", "[]", "body(0)", "real(", "B", "x", "@",
    "if", "\\ud800", "\\u0000", "!", "~", "...", "->", "<=", "==", ">", "1/0", "0/1", ";", "__class__", "\\", '"',
    "'", "\x00", "\x1b[31m", "\u202e", "\ufeff", "\ud800", "\u2028", "\r", " ", "\n", "\t",
)  # fmt: skip
_LONGEST_TEXT = 200_000
_TOKEN = re.compile(r"\d+(?:\.\d+)?|\w+|\s+|[^\w\s]")


# Bytes ----------------------------------------------------------------------------------------------------------------


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    """One to four changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_BYTES)(rng, data)
    return data


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _set(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[_early(rng, len(changed))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(changed)


def _early(rng: random.Random, length: int) -> int:
    """A position, half the time one of the first: headers are there."""
    return rng.randrange(min(length, 64)) if rng.random() < 0.5 else rng.randrange(length)


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _append(rng: random.Random, data: bytes) -> bytes:
    return data + rng.choice((bytes(rng.randrange(1, 64)), rng.randbytes(rng.randrange(1, 64)), data))


def _remove(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + data[start + rng.choice((1, 2, 4, 8, 64)) :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    start = rng.randrange(len(data) + 1)
    return data[:start] + rng.choice((b"\0", b"\xff" * 8, rng.randbytes(rng.randrange(1, 16)))) + data[start:]


def _number(rng: random.Random, data: bytes) -> bytes:
    changed, size = bytearray(data), rng.choice((1, 2, 4, 8))
    if len(changed) >= size:
        at = min(_early(rng, len(changed)), len(changed) - size)
        number = rng.choice(NUMBERS) % 2 ** (8 * size)
        changed[at : at + size] = number.to_bytes(size, rng.choice(("little", "big")))
    return bytes(changed)


def _move(rng: random.Random, data: bytes) -> bytes:
    size = rng.choice((1, 4, 16))
    a, b = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    return data[:a] + data[b : b + size] + data[a + size :]


_BYTES: tuple[Mutate, ...] = (_flip, _flip, _set, _truncate, _append, _remove, _insert, _number, _number, _move)


# Text -----------------------------------------------------------------------------------------------------------------


def mutate_text(rng: random.Random, data: bytes) -> bytes:
    """Tokens and lines changed; now and then bytes."""
    if rng.random() < 0.05:
        return mutate_bytes(rng, data)
    text = data.decode("utf-8", "surrogateescape")
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(_TEXT)(rng, text)[:_LONGEST_TEXT]
    return text.encode("utf-8", "surrogatepass" if "\ud800" in text else "surrogateescape")


def _tokens(text: str) -> list[str]:
    return _TOKEN.findall(text) or [""]


def _change_token(rng: random.Random, text: str) -> str:
    tokens = _tokens(text)
    tokens[rng.randrange(len(tokens))] = rng.choice((*_WORDS, *_TEXT_NUMBERS))
    return "".join(tokens)


def _inflate_number(rng: random.Random, text: str) -> str:
    tokens = _tokens(text)
    numbers = [i for i, token in enumerate(tokens) if token[:1].isdigit()]
    if not numbers:
        return _change_token(rng, text)
    tokens[rng.choice(numbers)] = rng.choice(_TEXT_NUMBERS)
    return "".join(tokens)


def _insert_token(rng: random.Random, text: str) -> str:
    tokens = _tokens(text)
    tokens.insert(rng.randrange(len(tokens) + 1), rng.choice((*_WORDS, *_TEXT_NUMBERS, *tokens[:50])))
    return "".join(tokens)


def _remove_token(rng: random.Random, text: str) -> str:
    tokens = _tokens(text)
    del tokens[rng.randrange(len(tokens))]
    return "".join(tokens)


def _swap_tokens(rng: random.Random, text: str) -> str:
    tokens = _tokens(text)
    a, b = rng.randrange(len(tokens)), rng.randrange(len(tokens))
    tokens[a], tokens[b] = tokens[b], tokens[a]
    return "".join(tokens)


def _repeat_token(rng: random.Random, text: str) -> str:
    tokens = _tokens(text)
    at = rng.randrange(len(tokens))
    end = at + rng.choice((1, 2, 3, 6))
    tokens[at:end] = tokens[at:end] * rng.choice((2, 8, 60, 500, 5000))
    return "".join(tokens)


def _nest(rng: random.Random, text: str) -> str:
    tokens = _tokens(text)
    at = rng.randrange(len(tokens))
    opened, closed = rng.choice(
        (("(", ")"), ("[", "]"), ("{", "}"), ("-(", ")"), ("min(1,", ")"), ("[[", "]]"), ("{a=", "}"))
    )
    depth = rng.choice((3, 30, 100, 300, 1000, 20000))
    tokens[at] = opened * depth + tokens[at] + closed * (depth if rng.random() < 0.8 else 0)
    return "".join(tokens)


def _power(rng: random.Random, text: str) -> str:
    """Sums, products and powers that grow."""
    tokens = _tokens(text)
    names = [token for token in tokens if token.isidentifier()][:12] or ["B", "T"]
    sums = "(" + rng.choice("+-*").join(rng.choice(names) + str(i % 7) for i in range(rng.choice((2, 5, 12)))) + "+1)"
    grown = sums
    for _ in range(rng.choice((1, 2, 5))):
        grown = rng.choice(
            (
                f"({grown})**{rng.choice((2, 3, 8, 16))}",
                f"({grown}*{sums})",
                f"({grown}//{sums})",
                f"min({grown}, {sums})",
                f"({grown}%{rng.choice(names)})",
                f"max({grown}, 7, {rng.choice(names)})",
            )
        )
    tokens[rng.randrange(len(tokens))] = grown
    return "".join(tokens)


def _change_lines(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    at = rng.randrange(len(lines))
    match rng.randrange(4):
        case 0:
            del lines[at]
        case 1:
            lines[at:at] = [lines[at]] * rng.choice((1, 10, 2000))
        case 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        case _:
            lines[at] = rng.choice((" ", "  ", "\t", "#")) + lines[at]
    return "".join(lines)


_TEXT: tuple[Callable[[random.Random, str], str], ...] = (
    _change_token, _change_token, _inflate_number, _inflate_number, _insert_token, _insert_token, _remove_token,
    _swap_tokens, _repeat_token, _nest, _power, _change_lines, _change_lines,
)  # fmt: skip


# JSON -----------------------------------------------------------------------------------------------------------------

_RAW = {
    "@@digits@@": "9" * 5000,
    "@@deep@@": "[" * 3000 + "]" * 3000,
    "@@deeper@@": '{"a":' * 60000 + "1" + "}" * 60000,
    "@@infinite@@": "Infinity",
    "@@nan@@": "NaN",
    "@@float@@": "1e400",
    "@@surrogate@@": '"\\ud800"',
    "@@control@@": '"\\u001b[31m\\u0000\\u202e"',
}
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 1.5, -0.0, "", "x", "0", "1", [], {}, [[]], [0], {"a": 1}),
    *(10**9, 2**31, 2**63, 2**64, 10**30, 10**400, "y" * 5000),
    *_RAW,
)


def mutate_json(rng: random.Random, data: bytes) -> bytes:
    """Values removed, repeated, exchanged and replaced by those of other types; now and then the text changed."""
    if rng.random() < 0.15:
        return mutate_text(rng, data)
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        document = change_json(rng, document)
    return raw_json(document)


def raw_json(document: Any) -> bytes:
    """The document as text, where the names of `_RAW` stand for what `json` would not write."""
    text = json.dumps(document)
    for name, raw in _RAW.items():
        text = text.replace(json.dumps(name), raw)
    return text.encode()


def change_json(rng: random.Random, document: Any) -> Any:
    """The document with one change, at any depth."""
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        entries = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
        for key, value in entries:
            places.append((node, key))
            walk(value)

    walk(document)
    if not places or rng.random() < 0.02:
        return copy.deepcopy(rng.choice(_VALUES))
    # the top of a document as often as its depths, of which there are more
    node, key = rng.choice(places[: rng.choice((8, 40, len(places)))])
    other, other_key = rng.choice(places)
    match rng.randrange(8):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[rng.choice(("x", "", "@@surrogate@@", "\x1b[31m", f"{key}x", "z" * 3000))] = node.pop(key)
        case 1:
            node[key:key] = [node[key]] * rng.choice((1, 3, 1000))
        case 2:
            try:
                node[key] = json.loads(json.dumps(other[other_key]))
            except (KeyError, IndexError):
                pass
        case 3 if isinstance(node[key], int) and abs(node[key]) < 2**63:
            node[key] = rng.choice((node[key] + 1, node[key] - 1, -node[key], float(node[key]), str(node[key])))
        case 3 if isinstance(node[key], str):
            node[key] = mutate_text(rng, node[key].encode("utf-8", "replace")).decode("utf-8", "replace")
        case _:
            node[key] = copy.deepcopy(rng.choice(_VALUES))
    return document
