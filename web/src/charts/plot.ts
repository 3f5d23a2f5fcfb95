// SPDX-License-Identifier: Apache-2.0

/**
 * What charts of uPlot have in common: a tooltip that follows the mouse, a range that is dragged
 * over, zooming with Ctrl and the wheel, the arrow keys, and the width of their element.
 */
import uPlot from 'uplot';
import type {Grid, Window} from '../data/timeline';
import {spoken, type TooltipContent} from '../format/tooltip';
import {axis} from './axes';
import {createTooltip} from './tooltip';

export interface PlotEvents {
  /** A range was dragged over. */
  readonly change: (window: Window) => void;
  /** Ctrl and wheel about a place of the axis; absent: the wheel does not zoom. */
  readonly zoom?: (factor: number, about: number) => void;
  /** Double click: all of it. */
  readonly whole: () => void;
  /** The arrow keys moved to a column: what stands there, to be read out. */
  readonly say: (text: string) => void;
}

/** A chart as a value: how it draws its data, a whole picture as often as wanted. */
export interface Chart<Data> {
  readonly height: number;
  readonly padding: uPlot.Padding;
  /** The x axis, and the values of each series. */
  readonly columns: (data: Data) => uPlot.AlignedData;
  /** What the x axis shows, the bytes of "y", and more scales by name. */
  readonly ranges: Readonly<Record<string, (data: Data, low: number, high: number) => Range>>;
  /** The one of x first. */
  readonly axes: (now: () => Data) => readonly uPlot.Axis[];
  readonly series: readonly uPlot.Series[];
  /** Of the columns under the mouse; absent: none are drawn. */
  readonly points?: uPlot.Cursor.Points;
  readonly under?: (u: uPlot, data: Data) => void;
  readonly over: (u: uPlot, data: Data) => void;
  /** How a range that is dragged over is made whole at its ends. */
  readonly ends?: readonly [(at: number) => number, (at: number) => number];
  readonly tooltipAt: (data: Data, column: number) => TooltipContent | undefined;
  /** A click keeps the tooltip. */
  readonly pins?: boolean;
  /** A click and the arrow keys choose a column, which is at -1 at first. Absent: the arrows move the tooltip. */
  readonly chosen?:
    | {readonly at: (data: Data) => number; readonly choose: (data: Data, column: number) => void}
    | undefined;
}

type Range = [number, number];

/** The element goes with it: what listens to that alone is not taken away. */
export function createPlot<Data>(
  element: HTMLElement,
  events: PlotEvents,
  chart: Chart<Data>,
  first: Data,
): {setData(data: Data): void; destroy(): void} {
  let data = first;
  const tooltip = createTooltip(element);
  const scales = Object.entries(chart.ranges).map(([name, range]): [string, uPlot.Scale] => [
    name,
    {time: false, range: (_, low, high) => range(data, low, high)},
  ]);
  const plot = new uPlot(
    {
      width: Math.max(200, element.clientWidth),
      height: chart.height,
      legend: {show: false},
      padding: chart.padding,
      scales: Object.fromEntries(scales),
      series: [{}, ...chart.series],
      axes: chart.axes(() => data).map(axis),
      cursor: {
        y: false,
        // Marks a range of the x axis, which is handed on.
        drag: {x: true, y: false, setScale: false, dist: 4},
        points: chart.points ?? {show: false},
      },
      hooks: {
        drawClear: [(u) => chart.under?.(u, data)],
        draw: [(u) => chart.over(u, data)],
        setCursor: [hover],
        setSelect: [select],
      },
    },
    chart.columns(data),
    element,
  );

  function hover(u: uPlot): void {
    const {left = -1, top = 0, idx} = u.cursor;
    const content = left < 0 || typeof idx !== 'number' ? undefined : chart.tooltipAt(data, idx);
    if (content) tooltip.show(content, left + u.bbox.left / devicePixelRatio, top);
    else tooltip.hide();
  }

  /** Hands on what was dragged over, its ends made whole, and takes the mark away. */
  function select(u: uPlot): void {
    const {left, width} = u.select;
    if (width < 4) return;
    const [begin, end] = chart.ends ?? [Math.round, Math.round];
    const from = Math.max(0, begin(u.posToVal(left, 'x')));
    const to = end(u.posToVal(left + width, 'x'));
    u.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
    if (to > from) events.change({from, to});
  }

  /** Goes so many columns on and returns the column; undefined: there is none. */
  function move(by: number): number | undefined {
    const [x] = plot.data;
    if (x.length === 0) return undefined;
    const from = chart.chosen?.at(data) ?? plot.cursor.idx ?? (by > 0 ? -1 : x.length);
    const to = Math.max(0, Math.min(x.length - 1, from + by));
    if (chart.chosen) chart.chosen.choose(data, to);
    else plot.setCursor({left: plot.valToPos(x[to]!, 'x'), top: 40});
    return to;
  }

  const over = plot.over;
  let pressedAt = 0;
  over.addEventListener('mousedown', (event) => (pressedAt = event.clientX));
  over.addEventListener('click', (event) => {
    // What moved in between was a drag.
    if (Math.abs(event.clientX - pressedAt) >= 4) return;
    if (chart.pins) tooltip.togglePin();
    else if (typeof plot.cursor.idx === 'number') chart.chosen?.choose(data, plot.cursor.idx);
  });
  over.addEventListener('dblclick', events.whole);
  const onWheel = (event: WheelEvent): void => {
    if (!events.zoom || (!event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    const left = event.clientX - over.getBoundingClientRect().left;
    events.zoom(event.deltaY > 0 ? 1.25 : 0.8, plot.posToVal(left, 'x'));
  };
  over.addEventListener('wheel', onWheel, {passive: false});
  // The arrow keys move on by one column, with shift by 20.
  element.tabIndex = 0;
  element.addEventListener('keydown', (event) => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (by === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
    const column = move(by * (event.shiftKey ? 20 : 1));
    if (column === undefined) return;
    event.preventDefault();
    const content = chart.tooltipAt(data, column);
    if (content) events.say(spoken(content));
  });
  // Without the focus and the mouse it speaks of nothing.
  element.addEventListener('blur', () => plot.setCursor({left: -10, top: -10}));
  const resize = new ResizeObserver(() => {
    const width = element.clientWidth;
    if (width > 0 && width !== plot.width) plot.setSize({width, height: plot.height});
  });
  resize.observe(element);
  const onTheme = (): void => plot.redraw(false, true);
  addEventListener('reprise-theme', onTheme);

  return {
    setData(next) {
      data = next;
      plot.setData(chart.columns(next));
    },
    destroy() {
      resize.disconnect();
      removeEventListener('reprise-theme', onTheme);
      tooltip.destroy();
      plot.destroy();
    },
  };
}

/** Curves of columns as uPlot takes them, with null for what is not known. */
export function inColumns(
  {start, column, count}: Grid,
  curves: readonly (ArrayLike<number> | undefined)[],
): uPlot.AlignedData {
  const each = <Value>(of: (i: number) => Value): Value[] =>
    Array.from({length: count}, (_, i) => of(i));
  const known = (value = NaN): number | null => (Number.isNaN(value) ? null : value);
  return [each((i) => start + i * column), ...curves.map((max) => each((i) => known(max?.[i])))];
}
