"""`opstage verify MODEL.onnx PROPERTY.vnnlib`: decide whether any allowed input violates a property."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from .commands import PATH, Command

EXIT_CODES = {"holds": 0, "violated": 1, "unknown": 3}


@click.command("verify", cls=Command)
@click.argument("model", type=PATH)
@click.argument("prop", metavar="PROPERTY", type=PATH)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    metavar="S",
    help="Time limit in seconds.",
)
@click.option(
    "--method",
    type=click.Choice(["crown", "interval"]),
    default="crown",
    show_default=True,
    metavar="NAME",
    help="Bounds of boxes: crown, interval.",
)
@click.option(
    "--split",
    type=click.Choice(["auto", "phases", "inputs"]),
    default="auto",
    show_default=True,
    metavar="NAME",
    help="Splits: auto, phases (signs of relus too), inputs.",
)
@click.option("--output", default="", metavar="NAME", help="Output that the property is about.")
@click.option("--max-boxes", type=click.IntRange(min=1), metavar="N", help="Maximum number of boxes.")
@click.option("--most-boxes", type=click.IntRange(min=1), hidden=True, deprecated="use --max-boxes")
def verify(
    model: Path,
    prop: Path,
    timeout: float,
    method: Any,
    split: Any,
    output: str,
    max_boxes: int | None,
    most_boxes: int | None,
) -> None:
    """Prove or refute PROPERTY, a VNN-LIB file, for MODEL, an ONNX file or a run.

    The search is branch and bound. `holds`: no input in the boxes of the property is a counterexample, in exact
    arithmetic and in float32. `violated`: the printed input is a counterexample; it was run, in onnxruntime too if that
    is installed. `unknown`: the time limit, the maximum number of boxes or Ctrl-C ended the search.

    Exit code 0: holds; 1: violated; 3: unknown; 130: Ctrl-C; 2: a file cannot be used.
    """
    from ..interop.onnx.model import load
    from ..ops.errors import UsageError
    from ..verification.branch_and_bound import SearchInterrupted, as_row_network
    from ..verification.branch_and_bound import verify as branch_and_bound
    from ..verification.vnnlib import read
    from .exit_codes import INTERRUPTED, say_interrupted

    unsafe = read(prop)
    source = _exported(model) if model.is_dir() else str(model)
    found = load(source, outputs=[output] if output else ())
    network, inputs, outputs, shaped = as_row_network(found)
    if (inputs, outputs) != (unsafe.inputs, unsafe.outputs):
        raise UsageError(
            f"{prop.name} is about {unsafe.inputs} inputs and {unsafe.outputs} outputs, but {model.name} has {inputs} "
            f"and {outputs}"
        )
    confirm, where = _in_onnxruntime(source, found.outputs[0], shaped)
    code = None
    try:
        verdict = branch_and_bound(
            network,
            found.params,
            unsafe,
            timeout=timeout,
            method=method,
            confirm=confirm,
            splits=split,
            max_boxes=max_boxes if max_boxes is not None else most_boxes,
        )
    except SearchInterrupted as interrupted:
        verdict, code = interrupted.found, INTERRUPTED
        say_interrupted()
    click.echo(verdict.outcome)
    if verdict.x is not None:
        for name, values in (("X", verdict.x), ("Y", verdict.y)):
            for i, value in enumerate(values):
                click.echo(f"  {name}_{i} = {float(value)!r}")
        click.echo(f"  run in float32{where}")
    known = ""
    if verdict.outcome == "unknown":
        known = f"; {verdict.proved} of {verdict.cases} cases proved, {verdict.left:,} boxes left"
    click.echo(f"{verdict.boxes:,} boxes in {verdict.seconds:.1f} s{known}", err=True)
    raise SystemExit(EXIT_CODES[verdict.outcome] if code is None else code)


def _exported(run: Path) -> bytes:
    """Return the prediction function of a run as an ONNX model."""
    from ..runs.export import export
    from ..runs.trained_model import load

    with TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        export(load(run), file, "onnx")
        return file.read_bytes()


def _in_onnxruntime(source: str | bytes, output: str, shaped: Any) -> tuple[Any, str]:
    """Return a function that runs the file in onnxruntime, and a note on it; no function if that is not installed."""
    try:
        import onnxruntime
    except ImportError:
        return None, "; onnxruntime is not installed, so not there"
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    (entry,) = [each.name for each in session.get_inputs()]

    def confirm(x: Any) -> Any:
        return session.run([output], {entry: shaped(x)})[0].reshape(len(x), -1)

    return confirm, " and in onnxruntime"
