# SPDX-License-Identifier: Apache-2.0
"""Reports as a notebook shows them: a sentence, four figures at most, and a curve.

    page(sentence, {"peak": "1.2 GiB"}, curve=plan.predicted_bytes, budget_bytes=plan.budget_bytes)

HTML with the picture in it as SVG: no script, no server, nothing to load. Colours are those of the
notebook's own text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from reprise.base.units import format_bytes, format_percent

# Of the picture, in its own units. A step of many ops is drawn by the highest of each column.
WIDTH, HEIGHT, COLUMNS = 640, 140, 320


class InNotebook:
    """What has the members of `reprise.plan.result.Result`, and shows them in a notebook."""

    __slots__ = ()

    def _repr_html_(self: Any) -> str:
        known = {
            "budget": self.budget_bytes,
            "predicted peak": self.predicted_bytes,
            "measured peak": self.measured_bytes,
        }
        figures = {name: format_bytes(value) for name, value in known.items() if value}
        if self.overhead is not None:
            figures["added time, predicted"] = format_percent(self.overhead, sign=True)
        curve = () if self.plan is None else self.plan.predicted_bytes
        return page(str(self), figures, curve, self.budget_bytes)


def page(
    sentence: str,
    figures: Mapping[str, str],
    curve: Sequence[int] = (),
    budget_bytes: int = 0,
    rows: Iterable[tuple[str, ...]] = (),
) -> str:
    """Returns a report as HTML. `curve`: bytes at each op of a step; `rows`: of a table below it,
    the first cell of each to the right."""
    parts = [f"<p>{escape(sentence)}</p>"]
    if figures:
        cells = "".join(
            f'<td style="text-align:left;padding-right:2em"><b>{escape(value)}</b><br>'
            f"<small>{escape(name)}</small></td>"
            for name, value in figures.items()
        )
        parts.append(f"<table><tr>{cells}</tr></table>")
    if curve:
        parts.append(_picture(curve, budget_bytes))
    if lines := "".join(_row(row) for row in rows):
        parts.append(f"<table>{lines}</table>")
    return f"<div>{''.join(parts)}</div>"


def _row(cells: tuple[str, ...]) -> str:
    first, *others = map(escape, cells)
    row = f'<td style="text-align:right">{first}</td>'
    row += "".join(f'<td style="text-align:left">{cell}</td>' for cell in others)
    return f"<tr>{row}</tr>"


def _picture(curve: Sequence[int], budget_bytes: int) -> str:
    """Returns memory over one step as SVG, with the budget as a dashed line."""
    most = max(*curve, budget_bytes, 1)
    step = max(1, -(-len(curve) // COLUMNS))
    highest = [max(curve[i : i + step]) for i in range(0, len(curve), step)]
    across = WIDTH / len(highest)
    tops = [HEIGHT * (1 - value / most) for value in highest]
    path = "".join(f"V{top:.1f}H{across * (i + 1):.1f}" for i, top in enumerate(tops))
    budget = ""
    if budget_bytes:
        y = HEIGHT * (1 - budget_bytes / most)
        budget = (
            f'<path d="M0 {y:.1f}H{WIDTH}" stroke="currentColor" stroke-dasharray="6 4"/>'
            f'<text x="4" y="{y + 14:.1f}" font-size="11" fill="currentColor">'
            f"budget {format_bytes(budget_bytes)}</text>"
        )
    peak = format_bytes(max(curve))
    return (
        f'<svg viewBox="0 -2 {WIDTH} {HEIGHT + 4}" width="{WIDTH}" role="img" '
        f'aria-label="Memory over one step, at most {peak}"><path d="M0 {HEIGHT}{path}V{HEIGHT}Z" '
        f'fill="currentColor" fill-opacity="0.25"/>{budget}</svg>'
    )
