// SPDX-License-Identifier: Apache-2.0

/** What charts draw with: the page's colours and font, axes, hairlines, legible text. */
import type uPlot from 'uplot';
import type {Axis} from '../data/folded_axis';
import {byteLabels, byteTicks, decimalTicks, opTicks, timeLabels} from './ticks';

const known = new Map<string, string>();
addEventListener('reprise-theme', () => known.clear());

/** A colour of styles/tokens.css as the page is now, light or dark. */
export function colourOf(variable: string): string {
  const value = known.get(variable) ?? read(variable);
  known.set(variable, value);
  return value;
}

/** What a variable is as a colour, which may be one for light and one for dark, says an element. */
function read(variable: string): string {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = `var(${variable})`;
  const {color} = getComputedStyle(probe);
  probe.remove();
  return color;
}

export function font(): string {
  return `11px ${getComputedStyle(document.body).fontFamily}`;
}

/** An axis in the page's colours. */
export function axis(options: uPlot.Axis): uPlot.Axis {
  return {
    stroke: () => colourOf('--soft'),
    font: font(),
    grid: {stroke: () => colourOf('--grid'), width: 1},
    ticks: {show: false},
    border: {show: false},
    gap: 6,
    ...options,
  };
}

/** Bytes from 0 to the top, cut in about `count`. */
export function byteAxis(count: number): uPlot.Axis {
  return {
    splits: (u) => byteTicks(0, u.scales['y']!.max!, count),
    values: (_, ticks) => byteLabels(ticks),
    size: 74,
  };
}

/** Of a step: places of its ops, or, without an axis of ops, the time since its start. */
export function stepAxis(axisNow: () => Axis | undefined): uPlot.Axis {
  return {
    splits: (u) => {
      const {min, max} = u.scales['x']!;
      const ops = axisNow();
      const count = u.width / 110;
      return ops ? opTicks(ops, min!, max!, count) : decimalTicks(min!, max!, count);
    },
    values: (_, ticks) => {
      const ops = axisNow();
      if (!ops) return timeLabels(ticks);
      return ticks.map((tick) => `op ${Math.round(ops.place(tick))}`);
    },
    size: 30,
  };
}

/** One line of device pixels at a value of a scale, which is bytes. */
export function hairline(
  u: uPlot,
  value: number,
  colour: string,
  dash: number[],
  scale = 'y',
): void {
  const {left, width} = u.bbox;
  const y = Math.round(u.valToPos(value, scale, true)) + 0.5;
  const scaledDash = dash.map((length) => length * devicePixelRatio);
  stroke(u, `M${left} ${y}h${width}`, colour, hair(), scaledDash);
}

/** How wide a line of device pixels is. */
export function hair(): number {
  return Math.max(1, Math.round(devicePixelRatio));
}

/** A path as in SVG, in device pixels. */
export function stroke(
  {ctx}: uPlot,
  path: string,
  colour: string,
  width: number,
  dash: number[] = [],
): void {
  // uPlot remembers what it has set.
  ctx.save();
  ctx.setLineDash(dash);
  ctx.lineWidth = width;
  ctx.strokeStyle = colour;
  ctx.stroke(new Path2D(path));
  ctx.restore();
}

/** A cross about a place. */
export function crossPath(x: number, y: number, size: number): string {
  const across = 2 * size;
  return `M${x - size} ${y - size}l${across} ${across}m${-across} 0l${across} ${-across}`;
}

/** Text with a rim of the background, legible over lines; `align` and `baseline`: its own place. */
export function outlined(
  {ctx}: uPlot,
  text: string,
  [x, y]: readonly [number, number],
  colour: string,
  align: CanvasTextAlign = 'left',
  baseline: CanvasTextBaseline = 'bottom',
): void {
  ctx.font = scaled(font());
  ctx.textAlign = align;
  ctx.textBaseline = baseline;
  ctx.lineWidth = 4 * devicePixelRatio;
  ctx.lineJoin = 'round';
  ctx.strokeStyle = colourOf('--card');
  ctx.strokeText(text, x, y);
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
}

/** A font in CSS pixels as one for the canvas's device pixels. */
export function scaled(font: string): string {
  return font.replace(/^(\d+)px/, (_, px: string) => `${Number(px) * devicePixelRatio}px`);
}
