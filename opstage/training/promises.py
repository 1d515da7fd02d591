"""The contract of a trainer's batches: their Specs, the check of a whole step for them, and its open conditions."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

from ..arguments import argument_paths
from ..interpreters.shape_check import Contract, Finding, Report
from ..ops.errors import ProgramWarning, ValidationError
from ..ops.spec import Spec, as_specs
from ..ops.trees import unflatten
from ..ops.types import dtype_name
from ..options import Options
from .by_name import by_position
from .held import Held
from .optim import Optimizer
from .step import Clip
from .validate import report_on


@final
class Promises:
    """The Specs of a loss's batches. Without any, `options.validate` checks each new batch shape when it arrives.

    Raises ValidationError, with the report, for Specs that the step cannot accept.
    """

    def __init__(
        self, loss: Callable[..., Any], specs: tuple[Any, ...], options: Options, held: Held, clip: Clip | None
    ):
        specs = by_position(specs, loss, held.batch_starts)
        self._loss = loss
        self._options = options
        self._held = held
        self._clip = clip
        names = argument_paths(loss, (*(None,) * (held.batch_starts - 1), *specs)) if specs else []
        self._contract = Contract(specs, names)
        self._warned: set[tuple[Hashable, ...]] = set()
        if options.validate and specs:
            self._validate(specs)

    def check(self, batch: tuple[Any, ...], arrays: list[Any], refs: Sequence[Any]) -> None:
        """Raise for a batch that violates the Specs; see `Contract.check`."""
        self._contract.check(batch, arrays, refs, self._validate_batch)

    def report(self, *specs: Any, optimizer: Optimizer | None = None) -> Report:
        """Return the shape checker's report on a whole training step, for batches of `specs`; see `check_step`."""
        held = self._held
        state = unflatten(held.structure, [_type_spec(leaf) for leaf in held.state])
        return report_on(
            self._loss,
            held.tree,
            *specs,
            options=self._options,
            optimizer=optimizer,
            state=state if held.has_state else None,
            requires_grad=list(held.trained),
            clip=self._clip,
        )[0]

    def _validate(self, specs: tuple[Any, ...]) -> None:
        report = self.report(*specs)
        if not report.ok:
            raise ValidationError(str(report), report)
        for finding in report.warnings:
            self._warn(finding)
        self._contract.assume(report.conditions)

    def _warn(self, finding: Finding) -> None:
        """Issue a Python warning at the user's line, once per finding for all batch shapes."""
        key = (finding.rule, finding.op, finding.source)
        if key not in self._warned:
            self._warned.add(key)
            warning, source = ProgramWarning(str(finding), finding), finding.source
            if source is None:
                warnings.warn(warning, stacklevel=2)
            else:
                warnings.warn_explicit(warning, None, source.file, source.line)

    def _validate_batch(self, batch: tuple[Any, ...]) -> None:
        if self._options.validate:
            self._validate(tuple(as_specs(tree) for tree in batch))


def _type_spec(value: Any) -> Spec:
    return Spec(tuple(value.shape), dtype_name(value.dtype))
