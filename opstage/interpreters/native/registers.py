"""Vectors of 64 bytes as values of kernels: what a loop keeps in registers from iteration to iteration.

A mask is an integer whose bit i says whether lane i takes part; memory at lanes that do not is not touched. LLVM makes
of all this what the processor has: one instruction each with AVX-512, several elsewhere.

As in `memory`, these exist once numba is imported, so this module is imported by what compiles.
"""

# mypy: disable-error-code="attr-defined, call-arg, misc, no-untyped-call, no-untyped-def, untyped-decorator"
from __future__ import annotations

from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

from llvmlite import ir
from numba import types
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, register_model

BYTES = 64
_I32, _I64 = ir.IntType(32), ir.IntType(64)


class Vector(types.Type):
    """Numba's name for a vector of `lanes` numbers."""

    def __init__(self, scalar: str, lanes: int):
        self.scalar, self.lanes = scalar, lanes
        super().__init__(name=f"Vector({scalar} x {lanes})")


@register_model(Vector)
class VectorModel(PrimitiveModel):
    """One value of LLVM."""

    def __init__(self, manager: Any, vector: Vector):
        scalars = {"float32": ir.FloatType(), "float64": ir.DoubleType(), "int64": _I64}
        super().__init__(manager, vector, ir.VectorType(scalars[vector.scalar], vector.lanes))


@cache
def registers(dtype: str) -> SimpleNamespace:
    """The functions for numbers of one dtype. Addresses are in bytes; `v` and `w` are vectors, `m` is a mask.

    load(a), store(a, v)          all lanes
    load_some(a, m)               lanes of m, 0 elsewhere
    load_pairs(a, m)              every second number, at lanes of m
    load_all_pairs(a)             every second number
    load_apart(a, step, m)        numbers `step` bytes apart, at lanes of m
    store_some(a, v, m)           lanes of m
    splat(x), total(v)             x in every lane; the sum of all lanes
    add(v, w), divide(v, w), fma(v, w, u)        v + w; v / w; v·w + u
    rises(v, w)                   the mask of v > w or nan in v
    choose(m, v, w)               v at lanes of m, w elsewhere
    positions(p, step)            the int64s p, p + step, …, which have their own choose_ and store_some_
    """
    size = 4 if dtype == "float32" else 8
    lanes = BYTES // size
    scalar = ir.FloatType() if dtype == "float32" else ir.DoubleType()
    real, kind = getattr(types, dtype), Vector(dtype, lanes)
    vector, whole = ir.VectorType(scalar, lanes), ir.VectorType(_I64, lanes)
    flags, bits = ir.VectorType(ir.IntType(1), lanes), ir.IntType(lanes)
    address = types.intp
    name = f"v{lanes}f{size * 8}"

    def intrinsic_of(result: Any, *operands: Any) -> Callable[[Callable[..., Any]], Any]:
        """Decorates `(builder, *values) -> value`."""
        arguments = ", ".join(f"a{i}" for i in range(len(operands)))

        def decorate(build: Callable[..., Any]) -> Any:
            def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
                value = build(builder, *values)
                return context.get_dummy_value() if value is None else value

            scope = {"signature": result(*operands), "generate": generate}
            exec(f"def {build.__name__}(typing, {arguments}):\n    return signature, generate", scope)
            return intrinsic(scope[build.__name__])

        return decorate

    def flags_of(builder: Any, mask: Any) -> Any:
        return masked(builder, mask, lanes)

    def mask_of(builder: Any, chosen: Any) -> Any:
        return builder.zext(builder.bitcast(chosen, bits), _I64)

    def pointer(builder: Any, at: Any, to: Any = vector) -> Any:
        return builder.inttoptr(at, to.as_pointer())

    def masked_load(builder: Any, at: Any, chosen: Any) -> Any:
        function = ir.FunctionType(vector, [vector.as_pointer(), _I32, flags, vector])
        load = declared(builder, function, f"llvm.masked.load.{name}.p0")
        return builder.call(load, [pointer(builder, at), _I32(size), chosen, ir.Constant(vector, None)])

    def masked_store(builder: Any, at: Any, value: Any, chosen: Any, of: Any, label: str, align: int) -> None:
        function = ir.FunctionType(ir.VoidType(), [of, of.as_pointer(), _I32, flags])
        store = declared(builder, function, f"llvm.masked.store.{label}.p0")
        builder.call(store, [value, pointer(builder, at, of), _I32(align), chosen])

    def steps(builder: Any, first: Any, step: Any) -> Any:
        counted = ir.Constant(whole, list(range(lanes)))
        return builder.add(splatted(builder, first, whole), builder.mul(splatted(builder, step, whole), counted))

    @intrinsic_of(kind, address)
    def load(builder, at):
        return builder.load(pointer(builder, at), align=size)

    @intrinsic_of(types.void, address, kind)
    def store(builder, at, value):
        builder.store(value, pointer(builder, at), align=size)

    @intrinsic_of(kind, address, types.intp)
    def load_some(builder, at, mask):
        return masked_load(builder, at, flags_of(builder, mask))

    @intrinsic_of(types.void, address, kind, types.intp)
    def store_some(builder, at, value, mask):
        masked_store(builder, at, value, flags_of(builder, mask), vector, name, size)

    @intrinsic_of(kind, address, types.intp)
    def load_pairs(builder, at, mask):
        chosen = flags_of(builder, mask)
        none = ir.Constant(flags, None)
        parts = []
        for half in range(2):
            order = [half * lanes // 2 + i // 2 if i % 2 == 0 else lanes for i in range(lanes)]
            spread = builder.shuffle_vector(chosen, none, ir.Constant(ir.VectorType(_I32, lanes), order))
            parts.append(masked_load(builder, builder.add(at, _I64(half * BYTES)), spread))
        return builder.shuffle_vector(*parts, ir.Constant(ir.VectorType(_I32, lanes), list(range(0, 2 * lanes, 2))))

    @intrinsic_of(kind, address)
    def load_all_pairs(builder, at):
        # The second half starts with the last number of the first, so that nothing behind the last pair is read.
        halves = [
            builder.load(pointer(builder, builder.add(at, _I64(start * size))), align=size) for start in (0, lanes - 1)
        ]
        order = [*range(0, lanes, 2), *range(lanes + 1, 2 * lanes, 2)]
        return builder.shuffle_vector(*halves, ir.Constant(ir.VectorType(_I32, lanes), order))

    @intrinsic_of(kind, address, types.intp, types.intp)
    def load_apart(builder, at, step, mask):
        pointers = ir.VectorType(scalar.as_pointer(), lanes)
        function = ir.FunctionType(vector, [pointers, _I32, flags, vector])
        gather = declared(builder, function, f"llvm.masked.gather.{name}.v{lanes}p0")
        places = builder.inttoptr(steps(builder, at, step), pointers)
        return builder.call(gather, [places, _I32(size), flags_of(builder, mask), ir.Constant(vector, None)])

    @intrinsic_of(kind, real)
    def splat(builder, number):
        return splatted(builder, number, vector)

    @intrinsic_of(real, kind)
    def total(builder, value):
        function = ir.FunctionType(scalar, [scalar, vector])
        reduced = declared(builder, function, f"llvm.vector.reduce.fadd.{name}")
        return builder.call(reduced, [ir.Constant(scalar, 0.0), value], fastmath=("reassoc",))

    @intrinsic_of(kind, kind, kind)
    def add(builder, left, right):
        return builder.fadd(left, right)

    @intrinsic_of(kind, kind, kind)
    def divide(builder, left, right):
        return builder.fdiv(left, right)

    @intrinsic_of(kind, kind, kind, kind)
    def fma(builder, left, right, addend):
        function = ir.FunctionType(vector, [vector] * 3)
        return builder.call(declared(builder, function, f"llvm.fma.{name}"), [left, right, addend])

    @intrinsic_of(types.intp, kind, kind)
    def rises(builder, value, best):
        greater = builder.fcmp_ordered(">", value, best)
        return mask_of(builder, builder.or_(greater, builder.fcmp_unordered("uno", value, value)))

    @intrinsic_of(kind, types.intp, kind, kind)
    def choose(builder, mask, left, right):
        return builder.select(flags_of(builder, mask), left, right)

    whole_kind = Vector("int64", lanes)

    @intrinsic_of(whole_kind, types.intp, types.intp)
    def positions(builder, first, step):
        return steps(builder, first, step)

    @intrinsic_of(whole_kind, types.intp, whole_kind, whole_kind)
    def choose_positions(builder, mask, left, right):
        return builder.select(flags_of(builder, mask), left, right)

    @intrinsic_of(types.void, address, whole_kind, types.intp)
    def store_some_positions(builder, at, value, mask):
        masked_store(builder, at, value, flags_of(builder, mask), whole, f"v{lanes}i64", 8)

    return SimpleNamespace(
        lanes=lanes, size=size, load=load, store=store, load_some=load_some, store_some=store_some,
        load_pairs=load_pairs, load_all_pairs=load_all_pairs, load_apart=load_apart, splat=splat, total=total,
        add=add, divide=divide, fma=fma, rises=rises, choose=choose, positions=positions,
        choose_positions=choose_positions, store_some_positions=store_some_positions,
    )  # fmt: skip


def splatted(builder: Any, number: Any, vector: Any) -> Any:
    """A vector with the number in every lane."""
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), number, _I32(0))
    zeros = ir.Constant(ir.VectorType(_I32, vector.count), None)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def masked(builder: Any, mask: Any, lanes: int) -> Any:
    """A mask as a vector of flags."""
    return builder.bitcast(builder.trunc(mask, ir.IntType(lanes)), ir.VectorType(ir.IntType(1), lanes))


def declared(builder: Any, kind: Any, name: str) -> Any:
    """An intrinsic function of LLVM."""
    module = builder.module
    return module.globals.get(name) or ir.Function(module, kind, name)
