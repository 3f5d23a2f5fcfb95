// SPDX-License-Identifier: Apache-2.0

/**
 * Bytes alive over a step, and the instant that the page speaks of: a line that
 * a click or the arrow keys move. A column reaches from its smallest to its
 * largest value, so a peak of one event is drawn at any zoom.
 *
 *   const chart = createLiveChart(element, {pick, change, zoom, whole, say});
 *   chart.setData({columns, view, at});
 *   chart.destroy();
 */
import uPlot from 'uplot';
import type {Columns, Window} from '../data/timeline';
import type {TooltipContent} from '../format/tooltip';
import {formatBytes, formatDuration} from '../format/units';
import {byteAxis, extremes, stepAxis, stroke, type Chart} from './axes';
import {colourOf} from './palette';
import {createPlot, inColumns, type PlotEvents} from './plot';

export interface LiveData {
  readonly columns: Columns | undefined;
  readonly view: Window;
  /** The instant, ns since the step's start. */
  readonly at: number | undefined;
  readonly peak: number;
}

export interface LiveEvents extends PlotEvents {
  /** A column was chosen: its begin and end. */
  readonly pick: (column: Window) => void;
}

export function createLiveChart(element: HTMLElement, events: LiveEvents): Chart<LiveData> {
  let data: LiveData = {columns: undefined, view: {from: 0, to: 1}, at: undefined, peak: 0};
  const {draw, destroy} = createPlot(element, events, {
    height: 260,
    padding: [14, 26, 0, 0],
    ranges: {
      x: () => [data.view.from, data.view.to],
      y: () => [0, Math.max(1024, data.peak) * 1.08],
    },
    axes: [stepAxis(() => undefined), byteAxis(5)],
    series: [
      {
        stroke: () => colourOf('--measured'),
        width: 1.5,
        paths: uPlot.paths.stepped!({align: 1}),
        points: {show: false},
      },
    ],
    under: (u) => data.columns && extremes(u, data.columns, colourOf('--measured')),
    over: drawInstant,
    columnAt,
    tooltipAt: contentOf,
    click: (u, left) => pick(columnAt(u, left)),
    // The arrows move the instant.
    move: (by) => {
      const {columns, at} = data;
      if (!columns) return undefined;
      const from = at === undefined ? -1 : Math.floor((at - columns.start) / columns.column);
      const column = Math.max(0, Math.min(columns.max.length - 1, from + by));
      pick(column);
      return column;
    },
  });

  function drawInstant(u: uPlot): void {
    if (data.at === undefined || data.at < data.view.from || data.at > data.view.to) return;
    const x = Math.round(u.valToPos(data.at, 'x', true)) + 0.5;
    const {top, height} = u.bbox;
    stroke(u, `M${x} ${top}v${height}`, colourOf('--predicted'), Math.max(1.5, devicePixelRatio));
  }

  function columnAt(u: uPlot, left: number): number {
    const {columns} = data;
    if (!columns) return -1;
    const i = Math.floor((u.posToVal(left, 'x') - columns.start) / columns.column);
    return i >= 0 && i < columns.max.length ? i : -1;
  }

  function contentOf(i: number): TooltipContent | undefined {
    const {columns} = data;
    if (i < 0 || !columns || Number.isNaN(columns.max[i]!)) return undefined;
    const rows: [string, string][] = [['most alive', formatBytes(columns.max[i]!)]];
    if (columns.min[i]! < columns.max[i]!) rows.push(['least', formatBytes(columns.min[i]!)]);
    return {title: `${formatDuration(columns.start + i * columns.column)} after the start`, rows};
  }

  function pick(i: number): void {
    const {columns} = data;
    if (!columns || i < 0) return;
    const from = columns.start + i * columns.column;
    events.pick({from, to: from + columns.column});
  }

  return {
    setData(next) {
      data = next;
      const {start = 0, column = 1, max} = next.columns ?? {};
      draw(inColumns({start, column, count: max?.length ?? 0}, [max]));
    },
    destroy,
  };
}
