"""`shapes`: declares the shapes of a program's arguments in a decorator.

    @shapes("x: B 3 32 32", "y: B int64", params=init_params, where=["B <= 512"])
    def loss(ops, params, x, y): ...

The function itself is unchanged; `declared(loss)` returns the declaration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .claims import Claim, read_claims
from .errors import SourceLine, UsageError, nearest
from .spec import Spec
from .types import DTYPES

Program = TypeVar("Program", bound=Callable[..., Any])

_MARK = "__opstage_shapes__"


@dataclass(frozen=True)
class Shapes:
    """The declared shapes of a program's arguments.

    inputs   a Spec for each tensor argument by path: `x`, `batch.x`
    params   parameters: a pytree of Specs, arrays or declarations, or a function without arguments that returns one
    state    the program's state, in the same forms; None for a program without state
    claims   statements about what its outputs read
    """

    inputs: Mapping[str, Spec]
    params: Any = None
    state: Any = None
    claims: tuple[Claim, ...] = ()


def shapes(
    *inputs: str,
    params: Any = None,
    state: Any = None,
    where: Sequence[str] = (),
    claims: Sequence[Claim | str] = (),
) -> Callable[[Program], Program]:
    """Return a decorator that declares the shapes of a program's arguments and leaves the program unchanged.

    inputs   one text per tensor, `NAME: DIMS [DTYPE] [in [LOW, HIGH]]`: `"x: B 3 32 32 in [0, 1]"`, `"y: B int64"`,
             `"batch.x: B T"`; dims and range are as in a Spec, the default dtype is the program's float dtype
    params   the parameters, as in `Shapes`
    state    the state of a program that has one, as in `Shapes`
    where    constraints on the names: `"T <= 1024"`
    claims   statements about what its outputs read in evaluation mode, which a check proves: `"causal:T"`

    `opstage check FILE` checks every decorated function in a file. Raises UsageError for text that cannot be parsed.

    Raises:
        UsageError: declarations that cannot be read.
    """
    read, stated = read_inputs(inputs, where), read_claims(claims)

    def declare(program: Program) -> Program:
        try:
            setattr(program, _MARK, Shapes(read, params, state, stated))
        except (AttributeError, TypeError):
            raise UsageError(f"{program!r} takes no attributes, so no shapes can be declared of it") from None
        return program

    return declare


def declared(program: Any) -> Shapes | None:
    """Return the shapes that `shapes` declared for a program, or None."""
    found = getattr(program, _MARK, None)
    return found if isinstance(found, Shapes) else None


def read_inputs(texts: Sequence[str], where: Sequence[str] = (), source: SourceLine | None = None) -> dict[str, Spec]:
    """Parse texts `NAME: DIMS [DTYPE] [in [LOW, HIGH]]` into Specs by name, with the constraints on the first one.
    Raises UsageError.

    source   the source line of the texts, if it is not the caller's
    """
    where = (where,) if isinstance(where, str) else tuple(where)
    read: dict[str, Spec] = {}
    for text in texts:
        name, spec = _read(text)
        if name in read:
            raise UsageError(f"{text!r}: {name} is given twice")
        read[name] = spec
    if where:
        if not read:
            raise UsageError(f"where={list(where)!r} speaks of no input; name one, such as 'x: B 3 32 32'")
        first = next(iter(read))
        read[first] = read[first].changed(where=where)
    if source is not None:
        for spec in read.values():
            object.__setattr__(spec, "source", source)
    return read


def _read(text: str) -> tuple[str, Spec]:
    example = "expected a name, a colon and dims, such as 'x: B 3 32 32' or 'y: B int64'"
    if not isinstance(text, str):
        raise UsageError(f"{text!r}: {example}")
    name, colon, rest = (part.strip() for part in text.partition(":"))
    if not colon or not name or not all(part.isidentifier() or part.isdecimal() for part in name.split(".")):
        raise UsageError(f"{text!r}: {example}")
    rest, ends = _range_apart(text, rest)
    words = rest.replace(",", " ").split()
    if words and words[0].startswith("(") and words[-1].endswith(")"):  # a shape as Python writes it
        words = " ".join(words)[1:-1].split()
    dtype = words.pop() if words and words[-1] in DTYPES else None
    for word in words[1:] if dtype is None else []:
        if word[-1].isdigit() and word.rstrip("0123456789") in ("float", "int", "uint", "bfloat", "complex"):
            raise UsageError(
                f"{text!r}: unknown dtype {word!r}{nearest(word, DTYPES)}; Opstage has {', '.join(DTYPES)}"
            )
    return name, Spec(" ".join(words), dtype, range=ends)


def _range_apart(text: str, rest: str) -> tuple[str, tuple[float, float] | None]:
    """Split the dims and dtype from the range that follows them."""
    dims, within, ends = rest.rpartition(" in ")
    if not within:
        return rest, None
    try:
        if not (ends.strip().startswith("[") and ends.strip().endswith("]")):
            raise ValueError(ends)
        low, high = map(float, ends.strip()[1:-1].replace(",", " ").split())
    except ValueError:
        raise UsageError(f"{text!r}: a range is two numbers, such as 'x: B 784 in [0, 1]'") from None
    return dims, (low, high)
