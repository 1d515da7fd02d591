"""A minimal linker: loads the object code of compiled kernels into memory.

A kernel is one object file of the format ELF for x86-64 (System V ABI, AMD64 supplement, chapter 4), in which every
reference is an address of 64 bits (R_X86_64_64), to itself or to a function of the C library. Loading means: copy the
sections, write the addresses, make the memory executable. LLVM could do it too, but importing it costs 40 MB.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

ADDRESS, RELATIVE = 1, 24  # R_X86_64_64, R_X86_64_PC64
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_COMMON_LARGE = 0xFF02
_TABLE, _ADDENDS, _EMPTY, _UNWIND = 2, 4, 8, 0x70000001  # section types: SHT_SYMTAB, SHT_RELA, SHT_NOBITS, …
_ALLOCATED = 2
_X86_64, _RELOCATABLE = 62, 1


class CannotLoad(Exception):
    """The object code uses a feature that is not supported here; LLVM may support it."""


class _Section(NamedTuple):
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


class _Symbol(NamedTuple):
    name: str
    section: int
    value: int
    size: int


_mappings: dict[int, tuple[int, int]] = {}  # maps a function's address to the address and size of its memory


def load(code: bytes, entry: str) -> int:
    """Load an object file until `unload`; return the address of its function `entry`. Raises CannotLoad."""
    try:
        sections = list(_sections(code))
        return _placed(code, sections, _symbols(code, sections), entry)
    except (struct.error, IndexError, ValueError, OSError) as error:  # truncated, or executable memory is not allowed
        raise CannotLoad(str(error)) from error


def _placed(code: bytes, sections: list[_Section], symbols: list[_Symbol], entry: str) -> int:
    places: dict[int, int] = {}  # of copied sections
    commons: dict[int, int] = {}  # of symbols with an address of their own
    end = 0
    for i, section in enumerate(sections):
        if section.flags & _ALLOCATED and section.kind != _UNWIND:  # kernels raise nothing, so no unwinding
            places[i] = end = _aligned(end, section.alignment)
            end += section.size
    for i, symbol in enumerate(symbols):
        if symbol.section in (_COMMON, _COMMON_LARGE):  # there, `value` is an alignment
            commons[i] = end = _aligned(end, symbol.value)
            end += symbol.size
    base = _mapped(max(end, 1))
    try:
        address = _linked(code, sections, symbols, entry, places, commons, base, end)
        _make_executable(base, max(end, 1))
    except BaseException:
        _unmap(base, max(end, 1))
        raise
    _mappings[address] = base, max(end, 1)
    return address


def unload(address: int) -> None:
    """Free the memory of a loaded function that no thread runs any more."""
    _unmap(*_mappings.pop(address))


def _linked(
    code: bytes,
    sections: list[_Section],
    symbols: list[_Symbol],
    entry: str,
    places: dict[int, int],
    commons: dict[int, int],
    base: int,
    end: int,
) -> int:
    """Copy the sections to `base` … `end` and relocate them; return the address of the function."""
    memory = memoryview((ctypes.c_ubyte * end).from_address(base)).cast("B")
    for i, place in places.items():
        section = sections[i]
        if section.kind != _EMPTY:
            memory[place : place + section.size] = code[section.offset : section.offset + section.size]

    def address(number: int) -> int:
        symbol = symbols[number]
        if number in commons:
            return base + commons[number]
        if symbol.section == _UNDEFINED:
            return _outside(symbol.name)
        if symbol.section == _ABSOLUTE:
            return symbol.value
        if symbol.section not in places:
            raise CannotLoad(f"{symbol.name or 'a symbol'} is in a section that is not loaded")
        return base + places[symbol.section] + symbol.value

    for section in sections:
        if section.kind == _ADDENDS and section.info in places:
            for at in range(section.offset, section.offset + section.size, 24):
                offset, what, addend = struct.unpack_from("<QQq", code, at)
                kind, to = what & 0xFFFFFFFF, places[section.info] + offset
                if kind not in (ADDRESS, RELATIVE):
                    raise CannotLoad(f"a reference of kind {kind}")
                value = address(what >> 32) + addend - (base + to if kind == RELATIVE else 0)
                struct.pack_into("<Q", memory, to, value % (1 << 64))
    found = [address(i) for i, symbol in enumerate(symbols) if symbol.name == entry and symbol.section != _UNDEFINED]
    if not found:
        raise CannotLoad(f"there is no {entry}")
    return found[0]


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // max(1, alignment)) * max(1, alignment)


def _sections(code: bytes) -> Iterator[_Section]:
    if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 16) != (_RELOCATABLE, _X86_64):
        raise CannotLoad("it is not in the format ELF for x86-64")
    (at,) = struct.unpack_from("<Q", code, 40)
    size, count = struct.unpack_from("<HH", code, 58)
    for i in range(count):
        yield _Section(*struct.unpack_from("<4xIQ8xQQIIQ8x", code, at + i * size))


def _symbols(code: bytes, sections: list[_Section]) -> list[_Symbol]:
    (table,) = (section for section in sections if section.kind == _TABLE)
    names = sections[table.link].offset
    symbols = []
    for at in range(table.offset, table.offset + table.size, 24):
        name, section, value, size = struct.unpack_from("<I2xHQQ", code, at)
        start = names + name
        symbols.append(_Symbol(code[start : code.index(b"\0", start)].decode(), section, value, size))
    return symbols


@cache
def _outside(name: str) -> int:
    """Return the address of a function of the C library or its math library."""
    for library in _libraries():
        try:
            return ctypes.cast(library[name], ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    raise CannotLoad(f"no library has {name}")


@cache
def _libraries() -> tuple[ctypes.CDLL, ...]:
    found = [ctypes.CDLL(None)]
    try:
        found.append(ctypes.CDLL("libm.so.6"))
    except OSError:  # another C library, with both in one
        pass
    return tuple(found)


def _mapped(nbytes: int) -> int:
    """Map memory of `nbytes` and return its address."""
    allocate = ctypes.CDLL(None, use_errno=True).mmap
    allocate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    allocate.restype = ctypes.c_void_p
    readable = mmap.PROT_READ | mmap.PROT_WRITE
    address: int = allocate(None, nbytes, readable, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    if address == ctypes.c_void_p(-1).value:
        raise CannotLoad(f"the system gives no memory: error {ctypes.get_errno()}")
    return address


def _unmap(base: int, nbytes: int) -> None:
    release = ctypes.CDLL(None).munmap
    release.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    release(base, nbytes)


def _make_executable(base: int, nbytes: int) -> None:
    """Make the memory executable and read-only."""
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if protect(base, nbytes, mmap.PROT_READ | mmap.PROT_EXEC) != 0:
        raise CannotLoad(f"the system does not make memory executable: error {ctypes.get_errno()}")
