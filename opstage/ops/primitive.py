"""The definition of an op: its name, operands, shape rule, derivative rules, decomposition and cost, in one value.

A primitive's block in the catalogue is the only place that defines these; every interpreter reads them from here.
Derivative rules and decompositions are programs over `Ops`, so one copy of the mathematics serves all interpreters.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from enum import Enum
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, TypeAlias, TypeVar

from .dims import Dim, DimScope
from .errors import LocatedError, OpstageError, ProgramError
from .infix import written
from .static_arguments import raise_invalid
from .types import TensorType, is_float, require_sizes, show_shape

if TYPE_CHECKING:
    from .protocol import Ops


# Properties of ops that passes rely on: the kind, and the effects -----------------------------------------------------


class Kind(Enum):
    """How the elements of an op's results depend on those of its operands.

    The kind licenses transformations: an op with a wrong kind computes wrong numbers. OPAQUE licenses nothing.
    """

    __hash__ = object.__hash__  # members are singletons, and Enum's own hash is Python code

    POINTWISE = "pointwise"
    """Each element is the same function of the operands' elements at its index (add, exp, select)."""
    LAYOUT = "layout"
    """Each element is an element of an operand, selected by types and static parameters (reshape, slice, concat)."""
    REDUCTION = "reduction"
    """Each element is the same function of all elements along some axes (sum, max, argmax)."""
    CONTRACTION = "contraction"
    """Each element is a sum of products with one factor from each of two operands (matmul, convolution)."""
    COLLECTIVE = "collective"
    """Each element also depends on other ranks of a mesh: computed by the mesh's interpreter, not by a kernel."""
    OPAQUE = "opaque"
    """Anything else, and the default: computed by its own kernel or decomposition."""


class Effect(Enum):
    """A side effect: anything other than results that only depend on operands and static parameters."""

    __hash__ = object.__hash__

    DRAWS = "draws"
    """Random bits: draws are not merged, and not made before the program runs."""
    RAISES = "raises"
    """May raise for values of its operands, such as an index out of range; removed if its results are unused."""
    EXTERNAL = "external"
    """An external effect (printing, counting, sending): it runs once per run, whether or not its results are used, and
    never ahead of time. In a loop, the backward pass repeats it if a derivative reads its results. The results are
    zeros: a program compiled for a GPU continues with those, and the host runs the op after its launches."""


ONCE_PER_RUN = frozenset({Effect.DRAWS, Effect.EXTERNAL})
"""Ops with one of these are never merged, and never computed before the program runs."""


# The definition of an op: its name, operands, shape rule, derivative rules, decomposition and cost, in one value ------

R = TypeVar("R", bound=Any)
M = TypeVar("M", bound=Callable[..., Any])
R_co = TypeVar("R_co", covariant=True)
Static: TypeAlias = Mapping[str, Any]
"""Static parameters by name: int, Dim, Fraction, DimFloat, float, bool, str, None, a closed body, or tuples of them."""

NO_STATIC: Static = {}
Row: TypeAlias = tuple[R, ...]
Some: TypeAlias = "tuple[R | None, ...]"
Types: TypeAlias = tuple[TensorType, ...]
Ints: TypeAlias = tuple[int, ...]
_NUMBERS = frozenset({float, int, bool})


def distinct(static: Static) -> tuple[Any, ...]:
    """Return the values of static parameters as cache keys that distinguish -0.0 from 0.0.

    Only numbers are asked whether they are 0: of an expression in sizes that may be undecided.
    """
    return tuple([value if type(value) not in _NUMBERS or value else repr(value) for value in static.values()])


class Context(Protocol[R_co]):
    """The forward call as seen by a vjp rule, in addition to the cotangents.

    `saved` is aligned with the primitive's `saves`; an entry that no needed cotangent reads is None. `inputs` and
    `outputs` are the types of all operands present and of all outputs and residuals.
    """

    @property
    def needs(self) -> tuple[bool, ...]: ...
    @property
    def saved(self) -> tuple[R_co, ...]: ...
    @property
    def inputs(self) -> tuple[TensorType, ...]: ...
    @property
    def outputs(self) -> tuple[TensorType, ...]: ...


class ShapeRule(Protocol):
    """Types of the operands present -> types of outputs, then residuals; raises ShapeError or DtypeError."""

    def __call__(self, *operands: TensorType, **static: Any) -> tuple[TensorType, ...]: ...


class Vjp(Protocol):
    """Cotangents of the outputs -> cotangents of the operands present, None where `ctx.needs` is False."""

    def __call__(
        self, ops: Ops[R], ctx: Context[R], cotangents: tuple[R, ...], /, **static: Any
    ) -> tuple[R | None, ...]: ...


class Jvp(Protocol):
    """Tangents of the operands present (None when zero) -> tangents of the outputs (None when zero)."""

    def __call__(
        self,
        ops: Ops[R],
        primals: tuple[R, ...],
        outputs: tuple[R, ...],
        tangents: tuple[R | None, ...],
        /,
        **static: Any,
    ) -> tuple[R | None, ...]: ...


class Decomposition(Protocol):
    """A composite in terms of other ops; returns outputs, then residuals."""

    def __call__(self, ops: Ops[R], /, *operands: R, **static: Any) -> tuple[R, ...]: ...


class Linearity(Enum):
    """Ops that are their own derivative, and need no jvp rule."""

    JOINT = "joint"
    """Linear in all float operands jointly (reshape, concat, pad with 0): the tangent is the op on the tangents."""
    EACH = "each"
    """Linear in each float operand separately (matmul): the tangent is a sum over the operands."""


class Cost(NamedTuple):
    """Arithmetic and memory traffic of one call, as exact expressions in dims."""

    flops: Dim
    bytes: Dim


def elementwise_flops(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, **static: Any) -> Dim:
    """Count one operation per element of the first output."""
    return outputs[0].size


def no_flops(inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], /, **static: Any) -> Dim:
    """Count nothing: data movement only."""
    return 0


class Primitive:
    """An op. Compared and hashed by identity.

    operands    names in order; a trailing `?` marks an optional one (if absent, the static `has_<name>` is False), a
                leading `*` one that stands for any number of tensors
    outputs     names of the outputs that users see; `residuals` names those for derivative rules
    saves       what the vjp reads: names of operands, outputs or residuals; a mapping lists the operands whose
                cotangents read each, so that the tape only keeps what is needed
    decomposition   the op in terms of others; an op without one is *core*, and every executing interpreter has a kernel
    expandable      the meaning of a vjp or jvp next to a decomposition. False, the default: it *defines* the
                    derivative, which may differ from that of the decomposition (a straight-through estimator,
                    clipping), and is always used. True: it *equals* the derivative of the decomposition, which may be
                    used instead, and is used for a missing rule and for derivatives of derivatives that involve float
                    residuals
    differentiable  False: no cotangent or tangent passes (comparisons, integer results, random bits, detach)
    kind        what passes may assume about its elements; OPAQUE, the default, is safe for any op
    effects     its side effects; none by default
    flops       its arithmetic; by default one operation per element of the first output, none for a LAYOUT
    view        the result shares its operand's memory, so no bytes move
    recomputes  its vjp repeats what it needs, rather than have it kept from the forward pass
    declared    by a user, with `opstage.custom_op` or `opstage.custom_vjp`, whose fields messages mention
    """

    __slots__ = (
        "name",
        "operands",
        "outputs",
        "residuals",
        "shape_rule",
        "vjp",
        "jvp",
        "linearity",
        "saves",
        "decomposition",
        "expandable",
        "flops",
        "differentiable",
        "view",
        "kind",
        "effects",
        "declared",
        "recomputes",
        "saved_memo",
        "_optional",
        "__weakref__",
    )

    zero_cotangents = True
    """Whether the vjp gets zeros for an output without a cotangent; otherwise it gets None."""

    keeps_more = False
    """Whether a tape calls `keeping` to bind it."""

    def __init__(
        self,
        name: str = "",
        *,
        operands: tuple[str, ...] = (),
        shape: Callable[..., tuple[TensorType, ...]],
        outputs: tuple[str, ...] = ("out",),
        residuals: tuple[str, ...] = (),
        vjp: Callable[..., Any] | None = None,
        jvp: Callable[..., Any] | Linearity | None = None,
        saves: tuple[str, ...] | Mapping[str, tuple[str, ...]] = (),
        decomposition: Callable[..., Any] | None = None,
        expandable: bool | None = None,
        kind: Kind = Kind.OPAQUE,
        effects: Collection[Effect] = (),
        flops: Callable[..., Dim] | None = None,
        differentiable: bool = True,
        view: bool = False,
        declared: bool = False,
    ):
        self.outputs = outputs
        self.residuals = residuals
        self.shape_rule: ShapeRule = shape
        self.vjp: Vjp | None = vjp
        self.linearity = jvp if isinstance(jvp, Linearity) else None
        self.jvp: Jvp | None = _linear_jvp(self, jvp) if isinstance(jvp, Linearity) else jvp
        self.decomposition: Decomposition | None = decomposition
        ruled = vjp is not None or jvp is not None
        self.expandable = decomposition is not None and (not ruled if expandable is None else expandable)
        self.kind = kind
        self.effects = frozenset(effects)
        self.flops: Callable[..., Dim] = flops or (no_flops if kind is Kind.LAYOUT else elementwise_flops)
        self.differentiable = differentiable
        self.view = view
        self.declared = declared
        self.recomputes = declared
        self.saved_memo: dict[tuple[Any, ...], tuple[int, ...]] = {}
        self._called(name, operands, saves)
        if expandable and decomposition is None:
            raise ProgramError(f"primitive {name} is expandable=True but lacks a decomposition")
        if ruled and not differentiable:
            raise ProgramError(f"primitive {name} has a derivative rule that differentiable=False would never use")
        if differentiable and vjp is None and not self.expandable:
            raise self.without_rule("vjp")

    def _called(
        self, name: str, operands: tuple[str, ...], saves: tuple[str, ...] | Mapping[str, tuple[str, ...]]
    ) -> None:
        self.name = name
        self.operands = operands
        self._optional = tuple([f"has_{operand[:-1]}" for operand in operands if operand[-1] == "?"])
        self.saves: dict[str, tuple[str, ...]] = (
            dict(saves) if isinstance(saves, Mapping) else {saved: tuple(map(_bare, operands)) for saved in saves}
        )

    def method(self, function: M) -> M:
        """Make the method of `Ops` whose signature and docstring these are: it names the op and its operands, and its
        annotations say how static parameters are brought into canonical form."""
        from .method import of_signature

        made, operands = of_signature(self, function)
        self._called(function.__name__, operands, self.saves if self.operands else _every(self.saves))
        return made

    def __repr__(self) -> str:
        return self.name

    def __copy__(self) -> Primitive:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Primitive:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"op {self} cannot be pickled, nor can what holds it; a graph is kept by graph.save(path)")

    @property
    def core(self) -> bool:
        """Return whether every executing interpreter must have a kernel for it."""
        return self.decomposition is None and self.kind is not Kind.COLLECTIVE

    def without_rule(self, rule: str) -> ProgramError:
        """Return the error for a derivative that needs the missing rule `rule`."""
        if self.declared:
            return ProgramError(
                f"{self} lacks a {rule}, which this derivative needs: give it "
                f"one, {rule}= of custom_op or def{rule} of "
                "custom_vjp, or say differentiable=False to custom_op"
            )
        if self.core:
            return ProgramError(f"{self} is core and differentiable but lacks a {rule}")
        return ProgramError(
            f"{self} declares a custom derivative rule but not {rule}: as its rules define its derivative "
            f"(expandable=False), that of its decomposition is not used in their place; give it a {rule}=, or say "
            "expandable=True if its rules equal the derivative of its decomposition"
        )

    def require_closed(self, residuals: tuple[Any, ...]) -> None:
        """Raise ProgramError if a derivative of the op's derivative needs tangents of `residuals` that are
        undefined."""
        if not self.expandable and any(is_float(residual.dtype) for residual in residuals):
            raise ProgramError(
                f"{self} has float residuals and rules that define its derivative (expandable=False), so nothing says "
                "how its residuals move in a derivative of its derivative: make its rules read operands and outputs "
                "alone, or say expandable=True if they equal the derivative of its decomposition"
            )

    def infer(self, operands: tuple[TensorType, ...], static: Static, region: str = "") -> tuple[TensorType, ...]:
        """Return the types of outputs and residuals; errors are located at this op and the user's line."""
        try:
            return self._types(operands, static)
        except LocatedError as error:
            operator = written()
            if operator is not None:
                operator.rewrite(error, self, operands)
            else:
                error.reason += self._another_order(operands, static)
            error.place(self.name, region)
            raise

    def _types(self, operands: tuple[TensorType, ...], static: Static) -> tuple[TensorType, ...]:
        raise_invalid(static)
        types = self.shape_rule(*operands, **static)
        for type_ in types:
            require_sizes(type_.shape)
        return types

    def accepts(self, operands: tuple[TensorType, ...], static: Static, scope: DimScope | None = None) -> bool:
        """Return whether the shape rule accepts these operands; with `scope`, for every size that is allowed there."""
        noted = 0 if scope is None else len(scope.conditions)
        try:
            self._types(operands, static)
            return scope is None or len(scope.conditions) == noted
        except (OpstageError, ValueError, TypeError, IndexError):
            return False
        finally:
            if scope is not None:
                del scope.conditions[noted:]

    def other_orders(
        self, operands: tuple[TensorType, ...], static: Static, scope: DimScope | None = None
    ) -> list[tuple[int, ...]]:
        """Return the orders that the shape rule accepts, as the numbers of the operands: none if it accepts theirs."""
        orders = permutations(range(len(operands)))
        fits = [order for order in orders if self.accepts(tuple([operands[i] for i in order]), static, scope)]
        return [] if tuple(range(len(operands))) in fits else fits

    def _another_order(self, operands: tuple[TensorType, ...], static: Static) -> str:
        """Return a hint if operands of distinct roles, such as a weight and labels, fit in exactly one other order."""
        names = self.operand_names(static, len(operands))
        sizes = [size for operand in operands for size in operand.shape]
        if (
            not 2 <= len(names) <= 5
            or sum(len(name) == 1 for name in names) > 1
            or any(not isinstance(size, int) for size in sizes)
        ):
            return ""
        fitting = {tuple([operands[i] for i in order]) for order in self.other_orders(operands, static)}
        if len(fitting) != 1:
            return ""
        others = ", ".join([f"{name} {show_shape(each.shape)}" for name, each in zip(names, *fitting)])
        return f"; the operands of {self} are {', '.join(names)}, in this order: they would fit as {others}"

    def cost(self, inputs: tuple[TensorType, ...], outputs: tuple[TensorType, ...], static: Static) -> Cost:
        """Return the cost: flops by the op's formula; bytes read each operand and write each output once (none for a
        view)."""
        traffic: Dim = 0
        if not self.view:
            for tensor in (*inputs, *outputs):
                traffic = traffic + tensor.nbytes
        return Cost(self.flops(inputs, outputs, **static), traffic)

    def operand_names(self, static: Static, count: int) -> tuple[str, ...]:
        """Return the names of the operands present in a call with `count` of them."""
        names: list[str] = []
        for operand in self.operands:
            if operand.endswith("?"):
                if static.get(f"has_{operand[:-1]}", True):
                    names.append(operand[:-1])
            elif operand.startswith("*"):
                names.extend(f"{operand[1:]}[{i}]" for i in range(count - len(self.operands) + 1))
            else:
                names.append(operand)
        return tuple(names)

    def keeping(self, ops: Any, needs: tuple[bool, ...], static: Static) -> Static:
        """Return the static parameters with which a tape over `ops` binds the op, given the operands that need a vjp.

        Additional outputs may follow the op's regular ones.
        """
        return static

    def saved_positions(self, needs: tuple[bool, ...], static: Static) -> tuple[int, ...]:
        """Return the position of each of `saves` among operands + outputs + residuals; -1 for one that is not kept.

        Memoised by `needs` and by the optional operands present.
        """
        optional = self._optional
        key = needs if not (static and optional) else (needs, *[static.get(flag, True) for flag in optional])
        positions = self.saved_memo.get(key)
        if positions is None:
            present = self.operand_names(static, len(needs))
            wanted = {name.split("[")[0] for name, needed in zip(present, needs) if needed}
            every = (*present, *self.outputs, *self.residuals)
            positions = tuple(
                every.index(saved) if saved in every and wanted.intersection(readers) else -1
                for saved, readers in self.saves.items()
            )
            self.saved_memo[key] = positions
        return positions


def _linear_jvp(primitive: Primitive, linearity: Linearity) -> Jvp:
    def apply(ops: Ops[R], refs: tuple[R, ...], static: Static) -> tuple[R, ...]:
        return ops.bind(primitive, refs, static)[: len(primitive.outputs)]

    def joint(
        ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R | None, ...], /, **static: Any
    ) -> tuple[R | None, ...]:
        refs: list[R] = []
        for x, tangent in zip(primals, tangents):
            if tangent is not None:
                refs.append(tangent)
            elif is_float(x.dtype):
                refs.append(ops.full(shape=x.shape, value=0.0, dtype=x.dtype))
            else:
                refs.append(x)
        return apply(ops, tuple(refs), static)

    def each(
        ops: Ops[R], primals: tuple[R, ...], outputs: tuple[R, ...], tangents: tuple[R | None, ...], /, **static: Any
    ) -> tuple[R | None, ...]:
        total: tuple[R, ...] | None = None
        for i, tangent in enumerate(tangents):
            if tangent is not None:
                term = apply(ops, (*primals[:i], tangent, *primals[i + 1 :]), static)
                total = term if total is None else tuple(ops.add(a, b) for a, b in zip(total, term))
        return total if total is not None else (None,) * len(primitive.outputs)

    return joint if linearity is Linearity.JOINT else each


def _every(saves: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | Mapping[str, tuple[str, ...]]:
    """Return the declaration: readers by name, or names that each operand's cotangent reads."""
    return saves if any(saves.values()) else tuple(saves)


def _bare(operand: str) -> str:
    return operand.strip("*?")
