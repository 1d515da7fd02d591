"""Bars of each peer's time over ours, as an SVG. Chains are left out: no scale would show them beside the rest."""

from __future__ import annotations

from html import escape

from benchmarks.report import OURS, PEERS, Record, ratio, training

COLOURS = {"torch_eager": "#ee4c2c", "torch_compile": "#7a3db8", "jax_jit": "#3367d6"}
HALO = 'paint-order="stroke" stroke="white" stroke-width="4"'  # where a label crosses the line
WIDTH, LEFT, RIGHT, BAR, HEAD = 760, 130, 130, 13, 30


def plot(record: Record) -> str:
    """One group of bars per workload and interpreter of ours; right of the line Opstage is faster."""
    groups = [
        (f"{name}, {ours.removeprefix('opstage_')}", {p: r for p in PEERS if (r := ratio(entry, ours, p)) is not None})
        for name, entry in training(record).items()
        for ours in OURS
    ]
    groups = [(title, ratios) for title, ratios in groups if ratios]
    unit = (WIDTH - LEFT - RIGHT) / max([1.0, *(value for _, ratios in groups for value in ratios.values())])
    bars: list[str] = []
    texts: list[str] = []
    y = HEAD
    for title, ratios in groups:
        texts.append(f'<text x="8" y="{y + 10 + BAR * (len(ratios) - 1) / 2:g}">{escape(title)}</text>')
        for peer, value in ratios.items():
            width = value * unit
            bars.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{COLOURS[peer]}"/>')
            texts.append(f'<text x="{LEFT + width + 4:.1f}" y="{y + 10}" {HALO}>{value:.2f} {peer}</text>')
            y += BAR
        y += 8
    line = LEFT + unit
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{y + 8}" '
            'font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{y + 8}" fill="white"/>',
            '<text x="8" y="18">time of each peer / time of Opstage (right of the line Opstage is faster)</text>',
            *bars,
            f'<line x1="{line:.1f}" y1="24" x2="{line:.1f}" y2="{y}" stroke="black"/>',
            *texts,
            "</svg>\n",
        ]
    )
