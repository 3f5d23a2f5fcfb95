# SPDX-License-Identifier: Apache-2.0
"""Lines over the number of blocks, as SVG."""

from __future__ import annotations

from pathlib import Path

__all__ = ["COLOURS", "plot"]

COLOURS = {
    "plain": "#777777",
    "sqrt": "#d95f02",
    "block": "#7570b3",
    "compile": "#1b9e77",
    "reprise@sqrt": "#e7298a",
    "reprise@block": "#66a61e",
}


def plot(path: Path, title: str, unit: str, series: dict[str, list[tuple[float, float]]]) -> None:
    """Lines over the number of blocks."""
    width, height, left, top = 640, 400, 70, 40
    points = [p for line in series.values() for p in line]
    right_x, top_y = max(p[0] for p in points), max(p[1] for p in points) * 1.05

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            left + x / right_x * (width - left - 150),
            height - 50 - y / top_y * (height - 50 - top),
        )

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{left}" y="22" font-size="14">{title}</text>',
    ]
    for tick in range(6):
        y = top_y * tick / 5
        _, at_y = at(0, y)
        out.append(
            f'<line x1="{left}" x2="{width - 150}" y1="{at_y:.1f}" y2="{at_y:.1f}" '
            f'stroke="#ddd"/><text x="{left - 6}" y="{at_y + 4:.1f}" text-anchor="end">'
            f"{y:.3g}</text>"
        )
    out.append(f'<text x="{left}" y="{height - 10}">residual blocks; {unit}</text>')
    for x in sorted({p[0] for p in points}):
        at_x, _ = at(x, 0)
        out.append(f'<text x="{at_x:.1f}" y="{height - 32}" text-anchor="middle">{x:g}</text>')
    for number, (name, line) in enumerate(series.items()):
        path_text = " ".join(f"{a:.1f},{b:.1f}" for a, b in (at(*p) for p in sorted(line)))
        colour = COLOURS[name]
        out.append(
            f'<polyline points="{path_text}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        out.append(
            f'<text x="{width - 140}" y="{top + 20 + 18 * number}" fill="{colour}">{name}</text>'
        )
    out.append("</svg>")
    path.write_text("\n".join(out) + "\n")
