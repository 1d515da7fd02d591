"""Mutations of files that hold others: archives, headers before bytes, documents with a checksum."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import re
import struct
import warnings
import zipfile
from collections.abc import Sequence
from functools import cache
from typing import Any

from .mutations import NUMBERS, Mutate, change_json, mutate_bytes, mutate_json, mutate_text, raw_json


def gzipped(inner: Mutate) -> Mutate:
    """The unpacked bytes changed, and packed anew."""
    return lambda rng, data: gzip.compress(inner(rng, gzip.decompress(data)), mtime=0)


def mutate_npy(rng: random.Random, data: bytes) -> bytes:
    """The header's text changed, its length right again; now and then the version, or the bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    length = int.from_bytes(data[8:10], "little")
    header, rest = data[10 : 10 + length], data[10 + length :]
    if rng.random() < 0.4:
        descr, shape = rng.choice(_DESCRIPTIONS), rng.choice(_SHAPES)
        order = rng.choice(("False", "True", "1", "[]"))
        header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    else:
        header = mutate_text(rng, header)
    version = rng.choice((1, 1, 1, 2, 3))
    prefix = len(header).to_bytes(2, "little") if version == 1 and len(header) < 65536 else b""
    if not prefix:
        version, prefix = max(version, 2), len(header).to_bytes(4, "little")
    return b"\x93NUMPY" + bytes([version, 0]) + prefix + header + rest


_DESCRIPTIONS = [
    "'<f4'", "'|O'", "'O'", "'<U5'", "'|S8'", "'|S9999999999'", "'<f2'", "'>i8'", "'<c16'", "'<M8[s]'", "'|V16'",
    "'V99999999999'", "'<f99'", "''", "None", "3", "'|b1'", "[('a','<f4')]", "[('a','<f4',(1000000,1000000))]",
    "'f4,i4'", "('<f4',(2,2))", "[[]]", "[('a',)]", "[('a','|O')]", "'<f8'", "'float'", "()", "('<f4',)",
    "{'names':['a'],'formats':['O']}", "'bool'",
]  # fmt: skip
_SHAPES = (
    "()", "(3,)", "(3, 4)", "(-1,)", "(-3, -4)", "(0,)", "(0, 10)", "(4, 0)", "(1000000000000,)",
    "(1000000, 1000000)", "(2**60,)", "(9223372036854775807,)", "(9223372036854775808,)", "(3037000500, 3037000500)",
    "(True, 4)", "(3.0,)", "('3',)", "3", "[3]", "None", "(1,)*99", "(4611686018427387904, 4, 0)",
    "(" + "1," * 70 + ")", "(" + "9" * 4000 + ",)", "(" + "9" * 6000 + ",)", "(" * 500 + ")" * 500,
)  # fmt: skip


def mutate_zip(inner: Mutate, others: Sequence[bytes]) -> Mutate:
    """Members changed by `inner` and packed anew, or packed otherwise, or the archive's own bytes changed."""

    def mutate(rng: random.Random, data: bytes) -> bytes:
        if rng.random() < 0.3:
            return mutate_bytes(rng, data)
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = [(name, archive.read(name)) for name in archive.namelist()]
        at = rng.randrange(len(members))
        name, content = members[at]
        method = zipfile.ZIP_STORED
        match rng.randrange(8):
            case 0:
                method = rng.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA))
            case 1:
                members[at] = (
                    rng.choice(
                        ("x", ".npy", "y.npy", "x.npy", "../x.npy", "\x1b[31m.npy", "é.npy", "a/b.npy", "z" * 3000)
                    ),
                    content,
                )
            case 2:
                members[at] = (name, rng.choice((b"", b"bytes", *others)))
            case 3:
                rng.choice((members.clear, members.pop, lambda: members.append(members[0])))()
            case 4 if rng.random() < 0.1:
                return bomb(rng.choice((10**6, 30 * 10**6, 150 * 10**6, 300 * 10**6)))
            case _:
                members[at] = (name, inner(rng, content))
        return _packed(rng, members, method)

    return mutate


def _packed(rng: random.Random, members: Sequence[tuple[str, bytes]], method: int) -> bytes:
    """An archive of the members, and then perhaps a field of one of its headers set to something else."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name that is there twice
        with zipfile.ZipFile(buffer, "w", method, compresslevel=1) as archive:
            for name, content in members:
                archive.writestr(name, content)
    packed = bytearray(buffer.getvalue())
    if rng.random() < 0.4:
        entries = [m.start() for m in re.finditer(b"PK\x01\x02", packed)]
        if entries:
            at = rng.choice(entries)
            local = int.from_bytes(packed[at + 42 : at + 46], "little")
            # (offset in the directory, in the local header, size): flags, method, date, CRC, sizes, name's length …
            central, own, size = rng.choice(
                ((8, 6, 2), (10, 8, 2), (16, 14, 4), (20, 18, 4), (24, 22, 4), (28, 26, 2), (30, 28, 2), (42, 0, 4))
            )
            number = rng.choice((*NUMBERS, 1, 8, 9, 12, 14, 93, 95, 99, 0x0801, 0x2001)) % 2 ** (8 * size)
            for start in {at + central, local + own if own and rng.random() < 0.7 else at + central}:
                if start + size <= len(packed):
                    packed[start : start + size] = number.to_bytes(size, "little")
    return bytes(packed)


@cache
def bomb(size: int) -> bytes:
    """A .npz file with one array of `size` bytes, all zero."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({size // 4}, 4), }}".ljust(117) + "\n"
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w") as file,
    ):
        file.write(b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header.encode())
        for _ in range(size // 10**6):
            file.write(bytes(10**6))
    return buffer.getvalue()


def mutate_safetensors(rng: random.Random, data: bytes) -> bytes:
    """The JSON header changed, its length right again; now and then the bytes."""
    if rng.random() < 0.3:
        return mutate_bytes(rng, data)
    length = int.from_bytes(data[:8], "little")
    header = mutate_json(rng, data[8 : 8 + length])
    return len(header).to_bytes(8, "little") + header + data[8 + length :]


def mutate_signed(rng: random.Random, data: bytes) -> bytes:
    """A checkpoint's manifest changed, and its checksum right again."""
    if rng.random() < 0.15:
        return rng.choice((mutate_bytes, mutate_json))(rng, data)
    document = json.loads(data)
    document.pop("sha256")
    for _ in range(rng.choice((1, 1, 2, 3))):
        changed = change_json(rng, document)
        if not isinstance(changed, dict):
            break
        document = changed
    return sign(document)


def sign(document: dict[str, Any]) -> bytes:
    """The manifest with the checksum that it should have."""
    try:
        raw = json.loads(raw_json(document))
    except (ValueError, RecursionError):  # what no checksum can be made of
        raw = {}
    digest = hashlib.sha256(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    return raw_json({**document, "sha256": digest})


def mutate_graph_file(rng: random.Random, data: bytes) -> bytes:
    """The text within a graph's file changed, its digest right again."""
    if rng.random() < 0.25:
        return mutate_safetensors(rng, data)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header["__metadata__"]
    metadata["graph"] = mutate_text(rng, metadata["graph"].encode()).decode("utf-8", "replace")
    metadata["digest"] = hashlib.sha256(metadata["graph"].encode()).hexdigest()
    packed = json.dumps(header).encode()
    return len(packed).to_bytes(8, "little") + packed + data[8 + length :]
