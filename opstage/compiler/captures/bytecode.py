"""The Python names that a function reads, from its bytecode: globals, enclosing variables, attributes.

A read is a *chain*: a name and the attributes accessed from it directly, `self.config.tau`. The use of the value at the
end of a chain (a loop, an index) is not followed, so that value must be compared as a whole; except that a value which
is passed to a function of the program is read by that function.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import resolve_name
from types import CodeType
from typing import Literal, final

Root = Literal["global", "free", "local", "module"]


@final
@dataclass(eq=False, slots=True)
class Read:
    """One chain in the code of a function.

    root        the kind of name: a global (or builtin), an enclosing variable, an argument, or an imported module
    name        the name; of a module, its full name
    attributes  the attributes accessed, in order
    line        the line number
    called      whether the value at its end is called
    writes      whether the last attribute is a method that mutates a container, called with its result unused
    given_to    the chain of the function that is called with the value at its end, if its names are not assigned here
    """

    root: Root
    name: str
    attributes: tuple[str, ...]
    line: int
    called: bool = False
    writes: bool = False
    given_to: Read | None = None


_known: dict[int, tuple[CodeType, tuple[Read, ...]]] = {}  # by id, since hashing a code object hashes all of its code

_SILENT = {"CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}
_ATTRIBUTES_HAVE_FLAGS = sys.version_info >= (3, 12)
_WRITERS = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "setdefault", "update"}


_LOADS = ("LOAD_FAST", "LOAD_GLOBAL", "PUSH_NULL")
_MAKE_ONE = (
    *("BINARY_", "BUILD_", "CALL_FUNCTION_EX", "COMPARE_OP", "CONTAINS_OP", "CONVERT_", "FORMAT_", "GET_ITER", "IS_OP"),
    *("LOAD_CLOSURE", "LOAD_CONST", "LOAD_DEREF", "MAKE_FUNCTION", "UNARY_"),
)
_MAKE_NONE = ("DICT_", "KW_NAMES", "LIST_", "POP_TOP", "SET_", "STORE_FAST")


def list_reads(code: CodeType) -> tuple[Read, ...]:
    """Return all chains in a function's own code; nested functions have code of their own."""
    known = _known.get(id(code))
    if known is None:
        known = _known[id(code)] = code, tuple(_chains(code))
    return known[1]


def _chains(code: CodeType) -> Iterator[Read]:
    every = list(dis.get_instructions(code))
    found = [instruction for instruction in every if instruction.opname not in _SILENT]
    arguments = code.co_varnames[: _arguments(code)]
    imports = list(_imports(found))
    yield from (read for _, read in imports if read.attributes)  # from a import b
    ends: dict[int, Read] = {}  # by the offset of the instruction that loads the value at the end
    line = code.co_firstlineno
    for at, instruction in enumerate(found):
        if instruction.positions is not None and instruction.positions.lineno is not None:
            line = instruction.positions.lineno
        for root, variable, last in _roots(instruction, code):
            roots: list[tuple[Root, str, tuple[str, ...]]] = []
            if root != "local" or variable in arguments:
                roots.append((root, variable, ()))
            if root != "global":
                roots += (("module", read.name, read.attributes) for name, read in imports if name == variable)
            attributes, end = _attributes(found, at + 1) if last else ((), at + 1)
            follows = found[end].opname if end < len(found) else ""
            if last and not attributes and follows in ("STORE_ATTR", "DELETE_ATTR"):
                continue  # written, not read
            if last and root == "local" and follows == "LOAD_SUPER_ATTR":
                continue  # a method of a base class, which is seen when it runs
            for start, name, before in roots:
                read = Read(start, name, (*before, *attributes), line, last and _is_called(found[end - 1]))
                if last:
                    ends[found[end - 1].offset] = read
                yield read
    _find_uses(every, ends)


def _arguments(code: CodeType) -> int:
    return code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)


def _imports(found: list[dis.Instruction]) -> Iterator[tuple[str, Read]]:
    """Yield what import statements load, with the local name that it gets, or an empty one."""
    module, parts = "", False
    for at, instruction in enumerate(found):
        line = (instruction.positions and instruction.positions.lineno) or 0
        stored = next((each for each in found[at + 1 : at + 5] if each.opname in ("STORE_FAST", "STORE_DEREF")), None)
        name = stored.argval if stored is not None else ""
        if instruction.opname == "IMPORT_NAME":
            module = "." * found[at - 2].argval + instruction.argval
            parts = found[at - 1].argval is not None  # from a import b
            if not parts:  # import a.b, import a.b as c
                whole = found[at + 1].opname == "IMPORT_FROM"
                yield name, Read("module", module if whole else module.partition(".")[0], (), line)
        elif instruction.opname == "IMPORT_FROM" and parts:
            yield name, Read("module", module, (instruction.argval,), line)


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


def _find_uses(every: list[dis.Instruction], ends: dict[int, Read]) -> None:
    """Find the calls that use chains: to which callee each is given, and whether the result of each is dropped.

    The stack holds the chain that loaded each value, or None. An instruction with unknown operands empties it.
    """
    assigned = {name for each in every if each.opname.startswith("STORE_") for name in _names(each.argval)}
    stack: list[Read | None] = []
    dropped: Read | None = None  # what was called last, if it mutates a container
    for instruction in every:
        name = instruction.opname
        if name in _SILENT and name != "PUSH_NULL":
            continue
        pops = _pops(instruction)
        if pops is None:
            stack.clear()
            continue
        stack[:0] = [None] * (pops - len(stack))
        used = stack[len(stack) - pops :]
        del stack[len(stack) - pops :]
        if dropped is not None:
            dropped.writes, dropped = name == "POP_TOP", None
        if name in ("CALL", "CALL_KW"):
            callee = used[0] or used[1]
            if callee is not None and callee.attributes and callee.attributes[-1] in _WRITERS:
                dropped = callee
            known = (
                callee is not None
                and callee.root != "module"
                and assigned.isdisjoint((callee.name, *callee.attributes))
            )
            for read in used[2:] if known else ():
                if read is not None:
                    read.given_to = callee
            stack.append(None)
        else:
            read = ends.get(instruction.offset)
            pushes = pops + dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
            stack += [None if name.startswith("LOAD_FAST_") else read] * (pushes - 1) + [read] * (pushes > 0)


def _names(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else (value,)


def _pops(instruction: dis.Instruction) -> int | None:
    """Return the number of values that an instruction takes from the stack; None if that is not known here."""
    name, count = instruction.opname, instruction.arg or 0
    effect = dis.stack_effect(instruction.opcode, instruction.arg, jump=False)
    if name in ("CALL", "CALL_KW"):
        return count + 2 + (name == "CALL_KW")
    if name.startswith(_LOADS):
        return 0
    if name.startswith(_MAKE_ONE):
        return 1 - effect
    return -effect if name.startswith(_MAKE_NONE) else int(name in ("LOAD_ATTR", "LOAD_METHOD")) or None


def imported(name: str, globals: dict[str, object]) -> str:
    """Return the full name of a module in an import by a function with these globals."""
    package = globals.get("__package__")
    return resolve_name(name, package) if name.startswith(".") and isinstance(package, str) else name
