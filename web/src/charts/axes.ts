// SPDX-License-Identifier: Apache-2.0

/** What charts over uPlot have in common: axes, hairlines, legible text, their width. */
import type uPlot from 'uplot';
import {readPalette, type Palette} from './palette';

/** An axis in the page's colours. */
export function axis(palette: () => Palette, options: uPlot.Axis): uPlot.Axis {
  return {
    stroke: () => palette().soft,
    font: readPalette().font,
    grid: {stroke: () => palette().grid, width: 1},
    ticks: {show: false},
    border: {show: false},
    gap: 6,
    ...options,
  };
}

/** The unit stands at every number: no label to look for. */
export function withUnit({labels, unit}: {labels: string[]; unit: string}): string[] {
  return labels.map((label) => (label === '0' ? '0' : `${label} ${unit}`));
}

/** One line of device pixels at a number of bytes. */
export function hairline(u: uPlot, bytes: number, colour: string, dash: number[]): void {
  const {ctx, bbox} = u;
  const y = Math.round(u.valToPos(bytes, 'y', true)) + 0.5;
  ctx.beginPath();
  ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
  ctx.lineWidth = Math.max(1, Math.round(devicePixelRatio));
  ctx.strokeStyle = colour;
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.setLineDash([]);
}

/** Text with a rim of the background, legible over lines. */
export function outlined(
  ctx: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  colour: string,
  rim: string,
): void {
  ctx.lineWidth = 4 * devicePixelRatio;
  ctx.lineJoin = 'round';
  ctx.strokeStyle = rim;
  ctx.strokeText(text, x, y);
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
}

/** A font in CSS pixels as one for the canvas's device pixels. */
export function scaled(font: string): string {
  return font.replace(/^(\d+)px/, (_, px: string) => `${Number(px) * devicePixelRatio}px`);
}

/** Keeps charts as wide as their element; returns what ends it. */
export function onWidth(element: HTMLElement, charts: readonly uPlot[]): () => void {
  const resize = new ResizeObserver(() => {
    const width = element.clientWidth;
    for (const chart of charts) {
      if (width > 0 && width !== chart.width) chart.setSize({width, height: chart.height});
    }
  });
  resize.observe(element);
  return () => resize.disconnect();
}
