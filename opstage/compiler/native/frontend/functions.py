"""Translate functions to LLVM: their variables, statements and calls of each other."""

from __future__ import annotations

import ast
from typing import Any, final

from llvmlite import ir

from ..access import write_scopes
from . import types as arrays
from .expressions import Expressions
from .types import (
    INT64,
    UINT64,
    VOID,
    WORDS,
    CannotCompile,
    FunctionSource,
    Kinds,
    Known,
    ScalarKind,
    Value,
    source_of,
)


class _Restart(Exception):
    """Raised if a variable or the result has another kind than assumed."""


@final
class Module:
    """An LLVM module, and the functions in it by source and argument kinds."""

    def __init__(self) -> None:
        self.module = ir.Module("kernel")
        self._made: dict[Any, tuple[Any, Kinds]] = {}
        self._held: list[Any] = []  # objects that keys refer to by id

    def function(
        self, source: FunctionSource, key: Any, arguments: tuple[Kinds, ...], flags: tuple[str, ...]
    ) -> tuple[Any, Kinds]:
        """Return the function for arguments of these kinds, and the kind of its result."""
        full = (key, arguments, flags)
        if full not in self._made:
            if len(arguments) != len(source.parameters):
                takes = f"{source.name} takes {len(source.parameters)} arguments, not {len(arguments)}"
                raise CannotCompile(f"{source.file}: {takes}")
            self._held.append(key)
            name = f"{source.name}.{len(self._made)}"
            self._made[full] = _finished(self, source, name, arguments, flags)
        return self._made[full]


def lowered(source: FunctionSource, entry: str) -> str:
    """Return the LLVM text of a kernel `(lo, hi, worker, arguments)`, as the function `entry`, with its callees."""
    module = Module()
    function, _ = module.function(source, source.name, (INT64, INT64, INT64, UINT64), ())
    function.name = entry
    function.linkage = ""
    function.attributes.discard("alwaysinline")
    write_scopes(module.module)
    return str(module.module)


def _finished(
    module: Module, source: FunctionSource, name: str, arguments: tuple[Kinds, ...], flags: tuple[str, ...]
) -> tuple[Any, Kinds]:
    variables: dict[str, Kinds] = {}
    result: Kinds | None = None
    while True:
        made = _Function(module, source, name, arguments, flags, variables, result)
        try:
            made.write()
        except _Restart:
            variables, result = made.kinds, made.result
            made.forget()
            continue
        return made.function, made.result if made.result is not None else VOID


@final
class _Function(Expressions):
    def __init__(
        self,
        module: Module,
        source: FunctionSource,
        name: str,
        arguments: tuple[Kinds, ...],
        flags: tuple[str, ...],
        kinds: dict[str, Kinds],
        result: Kinds | None,
    ):
        self.made, self.source, self.flags, self.kinds, self.result = module, source, flags, kinds, result
        self.arguments = arguments
        types = [kind.type for argument in arguments for kind in _flat(argument)]
        function_type = ir.FunctionType(_type_of(result if result is not None else VOID), types)
        self.function = ir.Function(module.module, function_type, module.module.get_unique_name(name))
        self.function.linkage = "internal"
        self.function.attributes.add("alwaysinline")
        self.function.attributes.add("nounwind")
        self.places: dict[str, Any] = {}
        self.loops: list[tuple[Any, Any]] = []  # the targets of `continue` and `break`
        self.entry = self.function.append_basic_block("entry")
        self.allocations = ir.IRBuilder(self.entry)
        self.builder = ir.IRBuilder(self.function.append_basic_block("body"))
        self.body = self.builder.block

    def forget(self) -> None:
        module = self.made.module
        del module.globals[self.function.name]

    def write(self) -> None:
        remaining = iter(self.function.args)
        for name, kind in zip(self.source.parameters, self.arguments):
            self.assign(name, _packed(kind, remaining), self.source.body[0])
        self.statements(self.source.body)
        if not self.builder.block.is_terminated:
            if self.result is None or self.result is VOID:
                self.builder.ret_void()
            else:
                self.builder.unreachable()
        self.allocations.position_at_end(self.entry)  # intrinsics may have allocated too
        self.allocations.branch(self.body)

    # Variables -------------------------------------------------------------------------------------------------------

    def assign(self, name: str, value: Any, node: ast.AST) -> None:
        kind = kind_of(value)
        known = self.kinds.get(name)
        if known is None:
            self.kinds[name] = kind
        elif known != kind:
            joined = self.joined(known, kind)
            if joined is None:
                raise self.source.fail(node, f"variable {name} has two types, {known} and {kind}")
            if joined != known:
                self.kinds[name] = joined
                raise _Restart
        kind = self.kinds[name]
        if name not in self.places:
            self.places[name] = self._place(kind, name)
        self._put(self.places[name], self.to_kind(value, kind, node), kind)

    def read(self, name: str) -> Any:
        return self._take(self.places[name], self.kinds[name])

    def _place(self, kind: Kinds, name: str) -> Any:
        if isinstance(kind, Known):
            return None
        if isinstance(kind, tuple):
            return [self._place(each, name) for each in kind]
        return self.allocations.alloca(kind.type, name=name)

    def _put(self, place: Any, value: Any, kind: Kinds) -> None:
        if isinstance(kind, Known):
            return
        if isinstance(kind, tuple):
            for each in zip(place, value, kind):
                self._put(*each)
        else:
            self.builder.store(value.ir, place)

    def _take(self, place: Any, kind: Kinds) -> Any:
        if isinstance(kind, Known):
            return kind.object
        if isinstance(kind, tuple):
            return tuple([self._take(*each) for each in zip(place, kind)])
        return Value(kind, self.builder.load(place))

    # Statements ------------------------------------------------------------------------------------------------------

    def statements(self, body: list[ast.stmt]) -> None:
        for statement in body:
            if self.builder.block.is_terminated:
                return
            write = getattr(self, f"_{type(statement).__name__.lower()}", None)
            if write is None:
                raise self.source.fail(statement, f"a statement {type(statement).__name__} is not supported")
            write(statement)

    def _pass(self, node: ast.Pass) -> None:
        pass

    def _expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.evaluate(node.value)

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self._assigned(target, value)

    def _assigned(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.assign(target.id, value, target)
        elif isinstance(target, ast.Tuple):
            if isinstance(value, Value) and value.kind is WORDS:
                places = [self.builder.gep(value.ir, [INT64.type(i)]) for i in range(len(target.elts))]
                value = tuple([Value(INT64, self.builder.load(place)) for place in places])
            if not isinstance(value, tuple) or len(value) != len(target.elts):
                raise self.source.fail(target, "the values of a tuple and their names differ in number")
            for part, each in zip(target.elts, value):
                self._assigned(part, each)
        elif isinstance(target, ast.Subscript):
            owner = self.evaluate(target.value)
            if not arrays.is_array(owner):
                self.builder.store(self.number(value, INT64, target).ir, self.element(target, owner))
            elif not arrays.store(self.builder, owner, self.place(target, owner), value):
                raise self.source.fail(target, f"{value!r} as an element of {owner[0].dtype} is not supported")
        else:
            raise self.source.fail(target, "a target other than a name, tuple or element is not supported")

    def _augassign(self, node: ast.AugAssign) -> None:
        target = node.target
        self._assigned(target, self.evaluate(ast.copy_location(ast.BinOp(target, node.op, node.value), node)))

    def _return(self, node: ast.Return) -> None:
        value = None if node.value is None else self.evaluate(node.value)
        kind = VOID if value is None else kind_of(value)
        if self.result is None or self.result != kind:
            joined = kind if self.result is None else self.joined(self.result, kind)
            if joined is None:
                raise self.source.fail(node, f"the function returns two types, {self.result} and {kind}")
            if joined != self.result:
                self.result = joined
                if joined is not VOID:
                    raise _Restart
        if value is None:
            self.builder.ret_void()
        else:
            self.builder.ret(_struct(self.builder, self.to_kind(value, self.result, node), self.result))

    def _if(self, node: ast.If) -> None:
        condition = self.condition(node.test)
        if condition.constant is not None:
            self.statements(node.body if condition.constant else node.orelse)
            return
        then, otherwise, after = [self.builder.append_basic_block(name) for name in ("then", "otherwise", "after")]
        self.builder.cbranch(condition.ir, then, otherwise)
        for block, body in ((then, node.body), (otherwise, node.orelse)):
            self.builder.position_at_end(block)
            self.statements(body)
            if not self.builder.block.is_terminated:
                self.builder.branch(after)
        self.builder.position_at_end(after)

    def _while(self, node: ast.While) -> None:
        test, body, after = [self.builder.append_basic_block(name) for name in ("test", "iteration", "after")]
        self.builder.branch(test)
        self.builder.position_at_end(test)
        self.builder.cbranch(self.condition(node.test).ir, body, after)
        self.builder.position_at_end(body)
        self._iteration(node.body, test, after)
        self.builder.position_at_end(after)

    def _iteration(self, body: list[ast.stmt], again: Any, after: Any) -> None:
        self.loops.append((again, after))
        self.statements(body)
        self.loops.pop()
        if not self.builder.block.is_terminated:
            self.builder.branch(again)

    def _break(self, node: ast.Break) -> None:
        self.builder.branch(self.loops[-1][1])

    def _continue(self, node: ast.Continue) -> None:
        self.builder.branch(self.loops[-1][0])

    def _for(self, node: ast.For) -> None:
        call = node.iter
        if not (isinstance(call, ast.Call) and self.evaluate(call.func) is range) or not isinstance(
            node.target, ast.Name
        ):
            raise self.source.fail(node, "a loop over something other than a range is not supported")
        numbers = [self.number(self.evaluate(each), INT64, call) for each in call.args]
        start, stop = (Value(INT64, ir.Constant(INT64.type, 0)), numbers[0]) if len(numbers) == 1 else numbers[:2]
        step = numbers[2] if len(numbers) == 3 else Value(INT64, ir.Constant(INT64.type, 1))
        builder, known = self.builder, step.constant
        if known is None:
            end, by = self._iterations(start.ir, stop.ir, step.ir), ir.Constant(INT64.type, 1)
            first, sign = ir.Constant(INT64.type, 0), "<"
        else:
            end, by, first, sign = stop.ir, step.ir, start.ir, "<" if known > 0 else ">"
        counter = self.allocations.alloca(INT64.type)
        builder.store(first, counter)
        names = "test", "iteration", "again", "after"
        test, body, again, after = [builder.append_basic_block(name) for name in names]
        builder.branch(test)
        builder.position_at_end(test)
        at = builder.load(counter)
        builder.cbranch(builder.icmp_signed(sign, at, end), body, after)
        builder.position_at_end(body)
        place = at if known is not None else builder.add(start.ir, builder.mul(at, step.ir))
        self.assign(node.target.id, Value(INT64, place), node.target)
        self._iteration(node.body, again, after)
        builder.position_at_end(again)
        builder.store(builder.add(builder.load(counter), by, flags=("nsw",)), counter)
        builder.branch(test)
        builder.position_at_end(after)

    def _iterations(self, start: Any, stop: Any, step: Any) -> Any:
        """Return the number of iterations if the step's sign is unknown; a step of 0 has none."""
        builder, zero, one = self.builder, ir.Constant(INT64.type, 0), ir.Constant(INT64.type, 1)
        up = builder.icmp_signed(">", step, zero)
        ahead = builder.select(up, builder.sub(stop, start), builder.sub(start, stop))
        by = builder.select(up, step, builder.neg(step))
        none = builder.or_(builder.icmp_signed("==", step, zero), builder.icmp_signed("<=", ahead, zero))
        divisor = builder.select(builder.icmp_signed("==", step, zero), one, by)
        return builder.select(none, zero, builder.udiv(builder.add(ahead, builder.sub(by, one)), divisor))

    # Calls -----------------------------------------------------------------------------------------------------------

    def call_function(self, function: Any, key: Any, arguments: list[Any], flags: tuple[str, ...]) -> Any:
        kinds = tuple([kind_of(each) for each in arguments])
        callee, result = self.made.function(source_of(function), key, kinds, flags)
        given = [value.ir for each in arguments for value in _values(each)]
        return _unpacked(self.builder, self.builder.call(callee, given), result)

    # Kinds -----------------------------------------------------------------------------------------------------------

    def joined(self, left: Kinds, right: Kinds) -> Kinds | None:
        """Return the common kind of a variable with both kinds."""
        if left == right:
            return left
        if isinstance(left, tuple) and isinstance(right, tuple) and len(left) == len(right):
            parts = [self.joined(*each) for each in zip(left, right)]
            return None if None in parts else tuple(parts)  # type: ignore[arg-type]
        if isinstance(left, ScalarKind) and isinstance(right, ScalarKind) and {left.family, right.family} == {"int"}:
            return INT64
        return None

    def to_kind(self, value: Any, kind: Kinds, node: ast.AST) -> Any:
        if isinstance(kind, Known):
            return value
        if isinstance(kind, tuple):
            return tuple([self.to_kind(each, of, node) for each, of in zip(value, kind)])
        return self.number(value, kind, node)


def kind_of(value: Any) -> Kinds:
    if isinstance(value, Value):
        return value.kind
    if type(value) is tuple:
        return tuple([kind_of(each) for each in value])
    return Known(value)


def _flat(kind: Kinds) -> list[ScalarKind]:
    if isinstance(kind, tuple):
        return [each for part in kind for each in _flat(part)]
    return [kind] if isinstance(kind, ScalarKind) else []


def _values(value: Any) -> list[Value]:
    if isinstance(value, Value):
        return [value]
    return [each for part in value for each in _values(part)] if type(value) is tuple else []


def _packed(kind: Kinds, remaining: Any) -> Any:
    if isinstance(kind, Known):
        return kind.object
    if isinstance(kind, tuple):
        return tuple([_packed(each, remaining) for each in kind])
    return Value(kind, next(remaining))


def _type_of(kind: Kinds) -> Any:
    flat = _flat(kind)
    return ir.LiteralStructType([each.type for each in flat]) if isinstance(kind, tuple) else flat[0].type


def _struct(builder: Any, value: Any, kind: Kinds) -> Any:
    if not isinstance(kind, tuple):
        return value.ir
    made = ir.Constant(_type_of(kind), ir.Undefined)
    for i, each in enumerate(_values(value)):
        made = builder.insert_value(made, each.ir, i)
    return made


def _unpacked(builder: Any, result: Any, kind: Kinds) -> Any:
    if kind is VOID:
        return None
    if isinstance(kind, ScalarKind):
        return Value(kind, result)
    return _packed(kind, iter([builder.extract_value(result, i) for i in range(len(_flat(kind)))]))
