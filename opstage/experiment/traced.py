"""Programs of a model's batches, traced to prove how their results over a batch follow from its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..interpreters.graph.recorder import Recorder
from ..models import Model
from ..ops.dims import DimScope
from ..ops.spec import sized
from ..ops.types import TensorType, as_dtype
from ..options import Options
from ..training.sizes import sample_sizes
from ..training.step import TrainingStep
from ..training.validate import training_step

T = TypeVar("T")


def proved_of_rows(
    prove: Callable[[Callable[..., Any], Sequence[TensorType], slice, Any], T],
    part: Callable[[TrainingStep], Callable[..., Any]],
    program: Callable[..., Any],
    model: Model,
    options: Options,
) -> T:
    """Return what `prove` says of a part of the step of `program`, evaluated on a model's batch of sample sizes.

    `prove` is a function of `training.row_terms`. Raises OpstageError if the program cannot be traced.
    """
    made = training_step(
        program, model.init, *model.batch, state=model.state, options=options, requires_grad=True, train=False
    )
    specs = sized(made.specs, sample_sizes(made.specs, {}), model.name)
    dtype = as_dtype(options.dtype)
    types = [spec.bind(DimScope(), dtype) for spec in specs]
    first, last = sum(made.layout.counts[:2]), sum(made.layout.counts[:3])
    return prove(part(made.layout), types[:last], slice(first, last), Recorder(dtype, options.seed))
