// SPDX-License-Identifier: Apache-2.0

/**
 * Bytes alive over a step, and the instant that the page speaks of: a line that
 * a click or the arrow keys move. A column reaches from its smallest to its
 * largest value, so a peak of one event is drawn at any zoom.
 *
 *   const chart = createLiveChart(element, {pick, window, zoom, reset});
 *   chart.setData({columns, view, at});
 *   chart.destroy();
 */
import uPlot from 'uplot';
import {formatBytes, formatDuration} from '../format/units';
import type {Columns} from '../data/timeline';
import type {Window} from '../url/state';
import {axis, onWidth, withUnit} from './axes';
import {onTheme, readPalette} from './palette';
import {byteLabels, byteTicks, decimalTicks, timeLabels} from './ticks';
import {createTooltip, spoken, type TooltipContent} from './tooltip';

export interface LiveData {
  readonly columns: Columns | undefined;
  readonly view: Window;
  /** The instant, ns since the step's start. */
  readonly at: number | undefined;
  readonly peak: number;
}

export interface LiveEvents {
  /** A column was chosen: its begin and end. */
  readonly pick: (column: Window) => void;
  readonly window: (window: Window) => void;
  readonly zoom: (factor: number, about: number) => void;
  readonly reset: () => void;
  /** The arrow keys moved to a column: what stands there, to be read out. */
  readonly say: (text: string) => void;
}

export interface LiveChart {
  setData(data: LiveData): void;
  destroy(): void;
}

const HEIGHT = 260;

export function createLiveChart(element: HTMLElement, events: LiveEvents): LiveChart {
  let data: LiveData = {columns: undefined, view: {from: 0, to: 1}, at: undefined, peak: 0};
  let palette = readPalette();
  const tooltip = createTooltip(element);
  const chart = new uPlot(
    {
      width: Math.max(200, element.clientWidth),
      height: HEIGHT,
      legend: {show: false},
      padding: [14, 26, 0, 0],
      scales: {
        x: {time: false, range: () => [data.view.from, data.view.to]},
        y: {range: () => [0, Math.max(1024, data.peak) * 1.08]},
      },
      series: [
        {},
        {
          stroke: () => palette.measured,
          width: 1.5,
          paths: uPlot.paths.stepped!({align: 1}),
          points: {show: false},
        },
      ],
      axes: [
        axis(() => palette, {
          splits: (u) => decimalTicks(u.scales['x']!.min!, u.scales['x']!.max!, u.width / 110),
          values: (_, ticks) => withUnit(timeLabels(ticks)),
          size: 30,
        }),
        axis(() => palette, {
          splits: (u) => byteTicks(0, u.scales['y']!.max!, 5),
          values: (_, ticks) => withUnit(byteLabels(ticks)),
          size: 74,
        }),
      ],
      cursor: {
        y: false,
        drag: {x: true, y: false, setScale: false, dist: 4},
        points: {show: false},
      },
      hooks: {
        drawClear: [drawExtremes],
        draw: [drawInstant],
        setCursor: [hover],
        setSelect: [select],
      },
    },
    [[], []],
    element,
  );

  function drawExtremes(u: uPlot): void {
    const {columns} = data;
    if (!columns) return;
    const {ctx, bbox} = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.beginPath();
    for (let i = 0; i < columns.max.length; i++) {
      const left = u.valToPos(columns.start + i * columns.column, 'x', true);
      const right = u.valToPos(columns.start + (i + 1) * columns.column, 'x', true);
      const top = u.valToPos(columns.max[i]!, 'y', true);
      ctx.rect(left, top, Math.max(1, right - left), u.valToPos(columns.min[i]!, 'y', true) - top);
    }
    ctx.globalAlpha = 0.22;
    ctx.fillStyle = palette.measured;
    ctx.fill();
    ctx.restore();
  }

  function drawInstant(u: uPlot): void {
    if (data.at === undefined || data.at < data.view.from || data.at > data.view.to) return;
    const {ctx, bbox} = u;
    const x = Math.round(u.valToPos(data.at, 'x', true)) + 0.5;
    ctx.save();
    ctx.strokeStyle = palette.predicted;
    ctx.lineWidth = Math.max(1.5, devicePixelRatio);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
  }

  function columnAt(left: number): number {
    const {columns} = data;
    if (!columns) return -1;
    const i = Math.floor((chart.posToVal(left, 'x') - columns.start) / columns.column);
    return i >= 0 && i < columns.max.length ? i : -1;
  }

  function hover(u: uPlot): void {
    const {left, top} = u.cursor;
    const i = left === undefined || left < 0 ? -1 : columnAt(left);
    const content = contentOf(i);
    if (content) tooltip.show(content, left! + u.bbox.left / devicePixelRatio, top ?? 0);
    else tooltip.hide();
  }

  function contentOf(i: number): TooltipContent | undefined {
    const {columns} = data;
    if (i < 0 || !columns || Number.isNaN(columns.max[i]!)) return undefined;
    const rows: [string, string][] = [['most alive', formatBytes(columns.max[i]!)]];
    if (columns.min[i]! < columns.max[i]!) rows.push(['least', formatBytes(columns.min[i]!)]);
    return {title: `${formatDuration(columns.start + i * columns.column)} after the start`, rows};
  }

  function select(u: uPlot): void {
    const {left, width} = u.select;
    if (width < 4) return;
    const from = Math.round(u.posToVal(left, 'x'));
    const to = Math.round(u.posToVal(left + width, 'x'));
    u.setSelect({left: 0, top: 0, width: 0, height: 0}, false);
    if (to > from) events.window({from: Math.max(0, from), to});
  }

  function pick(i: number): void {
    const {columns} = data;
    if (!columns || i < 0) return;
    const from = columns.start + i * columns.column;
    events.pick({from, to: from + columns.column});
  }

  const over = chart.over;
  let pressedAt = 0;
  const onDown = (event: MouseEvent): void => void (pressedAt = event.clientX);
  const onClick = (event: MouseEvent): void => {
    if (Math.abs(event.clientX - pressedAt) >= 4) return;
    pick(columnAt(event.clientX - over.getBoundingClientRect().left));
  };
  const onDouble = (): void => events.reset();
  const onWheel = (event: WheelEvent): void => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const about = chart.posToVal(event.clientX - over.getBoundingClientRect().left, 'x');
    events.zoom(event.deltaY > 0 ? 1.25 : 0.8, about);
  };
  // With the keyboard: the arrows move the instant by a column, with shift by 20.
  element.tabIndex = 0;
  const onArrow = (event: KeyboardEvent): void => {
    const by = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    const {columns} = data;
    if (by === undefined || !columns || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    const from =
      data.at === undefined ? -1 : Math.floor((data.at - columns.start) / columns.column);
    const to = from + by * (event.shiftKey ? 20 : 1);
    const column = Math.max(0, Math.min(columns.max.length - 1, to));
    pick(column);
    const content = contentOf(column);
    if (content) events.say(spoken(content));
  };
  element.addEventListener('keydown', onArrow);
  over.addEventListener('mousedown', onDown);
  over.addEventListener('click', onClick);
  over.addEventListener('dblclick', onDouble);
  over.addEventListener('wheel', onWheel, {passive: false});
  const offWidth = onWidth(element, [chart]);
  const offTheme = onTheme(() => {
    palette = readPalette();
    chart.redraw(false, true);
  });

  return {
    setData(next) {
      data = next;
      const {columns} = next;
      const count = columns?.max.length ?? 0;
      chart.setData([
        Array.from({length: count}, (_, i) => columns!.start + i * columns!.column),
        Array.from(columns?.max ?? [], (value) => (Number.isNaN(value) ? null : value)),
      ]);
    },
    destroy() {
      element.removeEventListener('keydown', onArrow);
      offWidth();
      offTheme();
      tooltip.destroy();
      chart.destroy();
    },
  };
}
