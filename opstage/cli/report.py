"""`opstage report RUN …`: compare runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from ..atomic import write_file
from ..experiment.side_by_side import Cells, side_by_side, side_by_side_html
from ..ops.untrusted import printable
from ..pages import aligned


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN…")
@click.option(
    "-o",
    "--out",
    "--output",
    "out",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write a page with the curves of all runs to FILE.",
)
def report(runs: tuple[Path, ...], out: Path | None) -> None:
    """Compare RUNs: what each reached, and in which settings, data and versions they differ.

    Of one run all data and versions are shown. A run that goes on, or was interrupted, is taken as it stands. No code
    of its model is run.
    """
    compared = side_by_side(runs)
    click.echo(_text(compared.reached))
    for rows in (compared.settings, compared.data):
        if len(rows) > 1:
            click.echo(f"\n{_text(rows)}")
    if compared.judged:
        click.echo(f"\n{compared.judged}")
    if out is not None:
        write_file(out, [side_by_side_html(compared).encode(errors="replace")])
        click.echo(printable(f"\nwrote {out}"))


def _text(rows: Sequence[Cells]) -> str:
    """Format the rows in columns, the first one as a heading."""
    return "\n".join(aligned([[printable(cell) for cell in row] for row in rows]))
