# SPDX-License-Identifier: Apache-2.0
"""Lines over the depth of a network, as SVG, each named where it ends."""

from __future__ import annotations

import itertools
import math
from html import escape
from pathlib import Path

__all__ = ["STYLES", "plot"]

# What a line is called, and its colour.
STYLES = {
    "plain": ("plain", "#777777"),
    "sqrt": ("\u221an segments", "#d95f02"),
    "block": ("per-block", "#7570b3"),
    "compile": ("torch.compile's budget", "#1b9e77"),
    "reprise@sqrt": ("Reprise at \u221an's peak", "#e7298a"),
    "reprise@block": ("Reprise at per-block's peak", "#66a61e"),
    "reprise@tenth": ("Reprise at a tenth of plain's", "#a6761d"),
}

WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 64, 220, 44, 56
NAME_HEIGHT = 16


def steps(top: float) -> list[float]:
    """About five round numbers from 0 to at least ``top``."""
    rough = top / 5
    power: float = 10.0 ** math.floor(math.log10(rough))
    step = next(s * power for s in (1, 2, 2.5, 5, 10) if s * power >= rough)
    return [step * i for i in range(math.ceil(top / step - 1e-9) + 1)]


def apart(wanted: list[float]) -> list[float]:
    """Heights no closer than a line of text, near the ones wanted, in the same order."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    at = list(wanted)
    for above, below in itertools.pairwise(order):
        at[below] = max(at[below], at[above] + NAME_HEIGHT)
    return at


def plot(path: Path, title: str, axis: str, series: dict[str, list[tuple[float, float]]]) -> None:
    """Draws ``series`` (points of depth and figure, by name) to ``path``."""
    points = [p for line in series.values() for p in line]
    most_x = max(p[0] for p in points)
    ticks = steps(max(p[1] for p in points))

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + x / most_x * (WIDTH - LEFT - RIGHT),
            HEIGHT - BOTTOM - y / ticks[-1] * (HEIGHT - BOTTOM - TOP),
        )

    def text(x: float, y: float, words: str, more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{escape(words)}</text>'

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        text(LEFT, 24, title, 'font-size="15"'),
    ]
    for y in ticks:
        _, height = at(0, y)
        out.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height:.1f}" y2="{height:.1f}" '
            'stroke="#ddd"/>'
        )
        out.append(text(LEFT - 8, height + 4, f"{y:g}", 'text-anchor="end"'))
    for x in sorted({p[0] for p in points}):
        out.append(text(at(x, 0)[0], HEIGHT - BOTTOM + 18, f"{x:g}", 'text-anchor="middle"'))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, axis, 'text-anchor="middle"'))
    ends = [at(*max(line))[1] for line in series.values()]
    for (name, line), height in zip(series.items(), apart(ends), strict=True):
        words, colour = STYLES[name]
        dots = [at(*p) for p in sorted(line)]
        out.append(
            f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in dots)}" '
            f'fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        out += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" fill="{colour}"/>' for a, b in dots]
        out.append(text(WIDTH - RIGHT + 10, height + 4, words, f'fill="{colour}"'))
    out.append("</svg>")
    path.write_text("\n".join(out) + "\n", encoding="utf-8")
