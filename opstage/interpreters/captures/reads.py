"""The Python names that a function reads, from its bytecode: globals, enclosing variables, attributes.

A read is a *chain*: a name and the attributes accessed from it directly, `self.config.tau`. The use of the value at the
end of a chain (a call, a loop, an index) is not followed, so that value must be compared as a whole.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from importlib.util import resolve_name
from types import CodeType
from typing import Literal, NamedTuple

Root = Literal["global", "free", "local", "module"]


class Read(NamedTuple):
    """One chain in the code of a function.

    root        the kind of name: a global (or builtin), an enclosing variable, an argument, or an imported module
    name        the name; of a module, its full name
    attributes  the attributes accessed, in order
    writes      whether the last one is a method that mutates a container, called with its result unused
    called      whether what stands at its end is called
    line        the line number
    """

    root: Root
    name: str
    attributes: tuple[str, ...]
    writes: bool
    called: bool
    line: int


_known: dict[int, tuple[CodeType, tuple[Read, ...]]] = {}  # by id, since hashing a code object hashes all of its code

_SILENT = {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}
_ATTRIBUTES_HAVE_FLAGS = sys.version_info >= (3, 12)
_WRITERS = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "setdefault", "update"}


def reads_of(code: CodeType) -> tuple[Read, ...]:
    """Return all chains in a function's own code; nested functions have code of their own."""
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = code, tuple(dict.fromkeys(_chains(code)))
    return known[1]


def _chains(code: CodeType) -> Iterator[Read]:
    found, effects = _instructions(code)
    arguments = _arguments(code)
    aliases: dict[str, tuple[str, tuple[str, ...]]] = {}
    module, parts, line = "", False, code.co_firstlineno
    for at, instruction in enumerate(found):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        name = instruction.opname
        if name == "IMPORT_NAME":
            module = "." * found[at - 2].argval + instruction.argval
            stored = next((i for i in found[at + 1 : at + 5] if i.opname == "STORE_FAST"), None)
            parts = found[at - 1].argval is not None  # from a import b
            if stored is not None and not parts:  # import a.b, import a.b as c
                whole = found[at + 1].opname == "IMPORT_FROM" or "." not in module
                aliases[stored.argval] = module if whole else module.partition(".")[0], ()
        elif name == "IMPORT_FROM" and parts:
            yield Read("module", module, (instruction.argval,), False, False, line)
            if found[at + 1].opname == "STORE_FAST":
                aliases[found[at + 1].argval] = module, (instruction.argval,)
        for root, variable, last in _roots(instruction, code):
            before: tuple[str, ...] = ()
            if root == "local" and variable in aliases:
                root, (variable, before) = "module", aliases[variable]
            elif root == "local" and variable not in arguments:
                continue
            attributes, end = _attributes(found, at + 1) if last else ((), at + 1)
            follows = found[end].opname if end < len(found) else ""
            if last and not attributes and follows in ("STORE_ATTR", "DELETE_ATTR"):
                continue  # written, not read
            if last and root == "local" and follows == "LOAD_SUPER_ATTR":
                continue  # a method of a base class, which is seen when it runs
            writes = bool(attributes) and attributes[-1] in _WRITERS and _result_unused(found, effects, end)
            called = last and _is_called(found[end - 1])
            yield Read(root, variable, (*before, *attributes), writes, called, line)


def _arguments(code: CodeType) -> set[str]:
    count = code.co_argcount + code.co_kwonlyargcount
    count += bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return set(code.co_varnames[:count])


def _roots(instruction: dis.Instruction, code: CodeType) -> list[tuple[Root, str, bool]]:
    """Return the names that an instruction loads, and whether the next attributes belong to each."""
    name, value = instruction.opname, instruction.argval
    if name in ("LOAD_GLOBAL", "LOAD_NAME"):
        return [("global", value, True)]
    if name in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"):
        return [("free" if value in code.co_freevars else "local", value, True)]
    if name == "STORE_FAST_LOAD_FAST":
        return [("local", value[1], True)]
    if name.startswith("LOAD_FAST"):
        names = value if isinstance(value, tuple) else (value,)
        return [("local", each, each is names[-1]) for each in names]
    return []


def _attributes(found: list[dis.Instruction], at: int) -> tuple[tuple[str, ...], int]:
    """Return the attributes accessed from there on, and the position after them."""
    attributes: list[str] = []
    if at < len(found) and found[at].opname == "COPY" and at + 1 < len(found) and found[at + 1].opname == "LOAD_ATTR":
        at += 1  # the object is kept for the store of `o.name += 1`
    while at < len(found) and found[at].opname in ("LOAD_ATTR", "LOAD_METHOD"):
        attributes.append(found[at].argval)
        at += 1
    return tuple(attributes), at


def _is_called(instruction: dis.Instruction) -> bool:
    """Whether an instruction loads a callee; unknown for locals."""
    name, flag = instruction.opname, bool((instruction.arg or 0) & 1)
    return name == "LOAD_METHOD" or (flag and (name == "LOAD_GLOBAL" or name == "LOAD_ATTR" and _ATTRIBUTES_HAVE_FLAGS))


def _instructions(code: CodeType) -> tuple[list[dis.Instruction], list[int]]:
    """Return the effective instructions, and the stack effect of each, including no-ops before it."""
    found, effects, before = [], [], 0
    for instruction in dis.get_instructions(code):
        effect = before + (
            dis.stack_effect(instruction.opcode, instruction.arg, jump=False) if _acts(instruction) else 0
        )
        if instruction.opname in _SILENT:
            before = effect
        else:
            found.append(instruction)
            effects.append(effect)
            before = 0
    return found, effects


def _acts(instruction: dis.Instruction) -> bool:
    return instruction.opname not in ("CACHE", "EXTENDED_ARG", "NOP")


def _result_unused(found: list[dis.Instruction], effects: list[int], at: int) -> bool:
    """Whether the result of the method call with arguments from there on is dropped; False if there are branches."""
    height = 0  # above the method and its object
    for i in range(at, len(found) - 1):
        height += effects[i]
        if height < 0:
            return found[i].opname.startswith("CALL") and found[i + 1].opname == "POP_TOP"
        if "JUMP" in found[i].opname or found[i].opname in ("FOR_ITER", "SEND"):
            return False
    return False


def imported(name: str, globals: dict[str, object]) -> str:
    """Return the full name of a module in an import by a function with these globals."""
    package = globals.get("__package__")
    return resolve_name(name, package) if name.startswith(".") and isinstance(package, str) else name
