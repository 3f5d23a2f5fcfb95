// SPDX-License-Identifier: Apache-2.0

/**
 * Memory over one step. Predicted is dashed, measured solid, the step without
 * a plan faint, the budget a red hairline; the prediction's categories lie
 * under it as faint bands, stacked from the bottom in the order of the legend.
 * What is not planned yet is hatched; a cross is where the job ended.
 *
 * With `pick` a click or the arrow keys move the instant that the page speaks of, a line;
 * without it they keep a tooltip and move it.
 *
 * All curves come on one grid of columns (data/timeline.ts).
 */
import uPlot from 'uplot';
import {
  LINES,
  type EndMark,
  type MarkedPeak,
  type MemoryData,
  type Section,
} from '../data/memory_view';
import type {Window} from '../data/timeline';
import {categoryStyle} from '../format/categories';
import {formatBytes} from '../format/units';
import {
  byteAxis,
  colourOf,
  crossPath,
  font,
  hair,
  hairline,
  outlined,
  scaled,
  stepAxis,
  stroke,
} from './axes';
import {inColumns, type Chart} from './plot';

/** In pixels: with all above it on the first screen of a laptop. */
export const MEMORY_HEIGHT = 336;

const stepped = uPlot.paths.stepped!({align: 1});

const line = (stroke: () => string, width: number, dash: number[] = []): uPlot.Series => ({
  ...{stroke, width, dash},
  paths: stepped,
  points: {show: false},
});

/** `pick`: a column was chosen, its begin and end. */
export function memoryChart(height: number, pick?: (column: Window) => void): Chart<MemoryData> {
  return {
    height,
    padding: [14, 26, 0, 0],
    columns: (data) =>
      inColumns(
        data.grid,
        LINES.map((key) => data[key]?.max),
      ),
    ranges: {x: ({view}) => [view.from, view.to], y: (data) => [0, yTop(data)]},
    axes: (now) => [stepAxis(() => now().axis), byteAxis(Math.round(height / 55))],
    series: [
      // In the order of LINES.
      line(() => colourOf('--base'), 1),
      line(() => colourOf('--base'), 1, [4, 4]),
      line(() => colourOf('--whatif'), 1.6, [6, 4]),
      line(() => `color-mix(in srgb, ${colourOf('--whatif')} 60%, transparent)`, 1.6, [2, 3]),
      line(() => colourOf('--predicted'), 1.6, [6, 4]),
      line(() => colourOf('--measured'), 1.5),
    ],
    under: drawUnder,
    over: drawOver,
    tooltipAt: (data, column) => data.tooltipAt(column),
    pins: !pick,
    chosen: pick && {
      at: ({at, grid}) => (at === undefined ? -1 : Math.floor((at - grid.start) / grid.column)),
      choose({grid: {start, column}}, i) {
        const from = start + i * column;
        pick({from, to: from + column});
      },
    },
  };
}

function yTop(data: MemoryData): number {
  let top = Math.max(1024, data.budgetBytes, data.whatIfBudgetBytes, data.peakBytes ?? 0);
  for (const {bytes} of data.ends) top = Math.max(top, bytes);
  for (const key of LINES) {
    for (const value of data[key]?.max ?? []) if (value > top) top = value;
  }
  return top * 1.08;
}

function drawUnder(u: uPlot, data: MemoryData): void {
  const {ctx} = u;
  const {start, column, count} = data.grid;
  const edges = Array.from({length: count + 1}, (_, i) =>
    u.valToPos(start + i * column, 'x', true),
  );
  ctx.save();
  clip(u);
  ctx.globalAlpha = 0.14;
  ctx.fillStyle = colourOf('--faint');
  data.sections.forEach(({at, folded}, i) => {
    if (!folded) return;
    const left = u.valToPos(at, 'x', true);
    const right = u.valToPos(data.sections[i + 1]?.at ?? data.axis!.length, 'x', true);
    ctx.fillRect(left, u.bbox.top, right - left, u.bbox.height);
  });
  // From the bottom up: each band reaches from the top of the one below it.
  ctx.globalAlpha = 0.26;
  let below: Float64Array | undefined;
  for (const band of data.bands) {
    ctx.fillStyle = colourOf(categoryStyle(band.category).variable);
    ctx.fill(between(u, edges, below, band.max));
    below = band.max;
  }
  if (data.preview) {
    // What is not planned yet: up to where it would be.
    ctx.globalAlpha = 0.3;
    ctx.fillStyle = hatching(ctx, colourOf('--whatif'));
    ctx.fill(between(u, edges, undefined, data.preview.max));
  }
  if (data.measured) {
    // What columns hide: from their smallest to their largest value.
    ctx.globalAlpha = 0.22;
    ctx.fillStyle = colourOf('--measured');
    ctx.fill(between(u, edges, data.measured.min, data.measured.max));
  }
  ctx.restore();
}

/** The ground between two levels of the columns: one outline for all that hang together. */
function between(
  u: uPlot,
  edges: readonly number[],
  below: Float64Array | undefined,
  above: Float64Array,
): Path2D {
  const path = new Path2D();
  const low = (i: number): number => below?.[i] ?? 0;
  const y = (bytes: number): number => u.valToPos(bytes, 'y', true);
  for (let from = 0, to = 0; from < above.length; from = to + 1) {
    for (to = from; above[to]! > low(to); to++);
    if (to === from) continue;
    path.moveTo(edges[from]!, y(low(from)));
    for (let i = from; i < to; i++) level(path, edges[i]!, edges[i + 1]!, y(above[i]!));
    for (let i = to - 1; i >= from; i--) level(path, edges[i + 1]!, edges[i]!, y(low(i)));
  }
  return path;
}

function level(path: Path2D, from: number, to: number, y: number): void {
  path.lineTo(from, y);
  path.lineTo(to, y);
}

/** Slanted lines. Filled with a pattern: a clip of a thousand columns takes a frame's time. */
function hatching(ctx: CanvasRenderingContext2D, colour: string): CanvasPattern {
  const size = Math.round(9 * devicePixelRatio);
  const tile = document.createElement('canvas');
  tile.width = tile.height = size;
  const lines = tile.getContext('2d')!;
  lines.strokeStyle = colour;
  lines.lineWidth = devicePixelRatio;
  // Its corners are those of the tiles beside it.
  for (const x of [-size, 0, size]) {
    lines.moveTo(x - 1, size + 1);
    lines.lineTo(x + size + 1, -1);
  }
  lines.stroke();
  return ctx.createPattern(tile, 'repeat')!;
}

function drawOver(u: uPlot, data: MemoryData): void {
  const {ctx} = u;
  ctx.save();
  clip(u);
  data.sections.forEach((section, i) => {
    boundary(u, section, data.sections[i + 1]);
  });
  if (data.whatIfBudgetBytes > 0) hairline(u, data.whatIfBudgetBytes, colourOf('--whatif'), [2, 3]);
  if (data.budgetBytes > 0) {
    hairline(u, data.budgetBytes, colourOf('--budget'), []);
    label(u, `budget ${formatBytes(data.budgetBytes)}`, data.budgetBytes, colourOf('--budget'));
  }
  if (data.previewBytes > 0) {
    hairline(u, data.previewBytes, colourOf('--whatif'), [2, 3]);
    const text = `interpolated peak ${formatBytes(data.previewBytes)}`;
    label(u, text, data.previewBytes, colourOf('--whatif'));
  }
  for (const peak of data.peaks) marker(u, peak);
  for (const end of data.ends) ended(u, end);
  if (data.at !== undefined) instant(u, data.at);
  ctx.restore();
}

function instant(u: uPlot, at: number): void {
  const {left, width, top, height} = u.bbox;
  const x = Math.round(u.valToPos(at, 'x', true)) + 0.5;
  if (x < left || x > left + width) return;
  stroke(u, `M${x} ${top}v${height}`, colourOf('--predicted'), Math.max(1.5, devicePixelRatio));
}

/** Where a part of the step begins, and its name above if there is room before the next one. */
function boundary(u: uPlot, section: Section, next: Section | undefined): void {
  const {ctx, bbox} = u;
  const right = bbox.left + bbox.width;
  const x = Math.round(u.valToPos(section.at, 'x', true)) + 0.5;
  if (x > right) return;
  if (x > bbox.left) {
    stroke(u, `M${x} ${bbox.top}v${bbox.height}`, colourOf('--faint'), hair(), [1, 3]);
  }
  ctx.font = scaled(font());
  const wide = ctx.measureText(section.name).width;
  const at = Math.min(x + 4 * devicePixelRatio, next ? Infinity : right - wide);
  const end = next ? u.valToPos(next.at, 'x', true) : Infinity;
  if (x >= bbox.left && at + wide <= end) {
    outlined(u, section.name, [at, 2], colourOf('--soft'), 'left', 'top');
  }
}

function clip(u: uPlot): void {
  const {left, top, width, height} = u.bbox;
  u.ctx.beginPath();
  u.ctx.rect(left, 0, width, top + height);
  u.ctx.clip();
}

function label(u: uPlot, text: string, bytes: number, colour: string): void {
  // On the left: a step begins with little alive, so nothing is below the text.
  const x = u.bbox.left + 4 * devicePixelRatio;
  const y = u.valToPos(bytes, 'y', true) - 3 * devicePixelRatio;
  outlined(u, text, [x, y], colour);
}

function marker(u: uPlot, peak: MarkedPeak): void {
  const {ctx, bbox} = u;
  const colour = colourOf(`--${peak.of.toLowerCase()}`);
  const size = 4 * devicePixelRatio;
  const x = u.valToPos(peak.at, 'x', true);
  const y = u.valToPos(peak.bytes, 'y', true);
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  const path = `M${x} ${y - 1}l${-size} ${-1.7 * size}h${2 * size}z`;
  ctx.fillStyle = peak.of === 'measured' ? colour : colourOf('--card');
  ctx.fill(new Path2D(path));
  stroke(u, path, colour, 1.4 * devicePixelRatio);
}

/** A cross where the job ended, and how. */
function ended(u: uPlot, end: EndMark): void {
  const {left, width} = u.bbox;
  const size = 5 * devicePixelRatio;
  const [at, y] = [u.valToPos(end.at, 'x', true), u.valToPos(end.bytes, 'y', true)];
  if (at < left || at > left + width) return;
  // All of it is seen, also at the end of the step.
  const x = Math.min(at, left + width - size);
  stroke(u, crossPath(x, y, size), colourOf('--bad'), 2.4 * devicePixelRatio);
  const right = x > left + width / 2;
  const beside = x + (right ? -1.6 : 1.6) * size;
  outlined(u, end.name, [beside, y], colourOf('--bad'), right ? 'right' : 'left');
}
