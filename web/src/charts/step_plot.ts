// SPDX-License-Identifier: Apache-2.0

/**
 * What charts of the bytes over one step have in common: the axes, a tooltip that follows the
 * mouse, a range that is dragged over, zooming with Ctrl and the wheel, and the arrow keys.
 */
import uPlot from 'uplot';
import type {Axis} from '../data/folded_axis';
import type {Grid, Window} from '../data/timeline';
import {spoken, type TooltipContent} from '../format/tooltip';
import {axis, byteAxis, onArrows, onWidth, selected, withUnit, ZOOM_BY_DRAG} from './axes';
import {onTheme} from './palette';
import {decimalTicks, opTicks, timeLabels} from './ticks';
import {createTooltip, type Tooltip} from './tooltip';

export interface StepEvents {
  /** A range was dragged over. */
  readonly change: (window: Window) => void;
  /** Ctrl and wheel about a place of the axis. */
  readonly zoom: (factor: number, about: number) => void;
  /** Double click: the whole step. */
  readonly whole: () => void;
  /** The arrow keys moved to a column: what stands there, to be read out. */
  readonly say: (text: string) => void;
}

export interface StepPlotOptions {
  readonly height: number;
  /** Of ops; undefined: the axis is time. */
  readonly axis: () => Axis | undefined;
  readonly range: () => [number, number];
  readonly top: () => number;
  readonly byteTicks: number;
  readonly series: uPlot.Series[];
  readonly under: (u: uPlot) => void;
  readonly over: (u: uPlot) => void;
  /** The column under the mouse, which is `left` of the plot; -1: none. */
  readonly columnAt: (u: uPlot, left: number) => number;
  readonly tooltipAt: (column: number) => TooltipContent | undefined;
  readonly click: (u: uPlot, left: number, tooltip: Tooltip) => void;
  /** Goes so many columns on and returns the column; undefined: there is none. */
  readonly move: (u: uPlot, by: number) => number | undefined;
}

export function createStepPlot(
  element: HTMLElement,
  events: StepEvents,
  options: StepPlotOptions,
): {draw(grid: Grid, curves: readonly (ArrayLike<number> | undefined)[]): void; destroy(): void} {
  const tooltip = createTooltip(element);
  const plot = new uPlot(
    {
      width: Math.max(200, element.clientWidth),
      height: options.height,
      legend: {show: false},
      padding: [14, 26, 0, 0],
      scales: {
        x: {time: false, range: options.range},
        y: {range: () => [0, options.top()]},
      },
      series: [{}, ...options.series],
      axes: [
        axis({
          splits: (u) => {
            const {min, max} = u.scales['x']!;
            const ops = options.axis();
            const count = u.width / 110;
            return ops ? opTicks(ops, min!, max!, count) : decimalTicks(min!, max!, count);
          },
          values: (_, ticks) => {
            const ops = options.axis();
            if (!ops) return withUnit(timeLabels(ticks));
            return ticks.map((tick) => `op ${Math.round(ops.place(tick))}`);
          },
          size: 30,
        }),
        axis(byteAxis(options.byteTicks)),
      ],
      cursor: {y: false, drag: ZOOM_BY_DRAG, points: {show: false}},
      hooks: {
        drawClear: [options.under],
        draw: [options.over],
        setCursor: [hover],
        setSelect: [(u) => selected(u, events.change)],
      },
    },
    [[], ...options.series.map(() => [])],
    element,
  );

  function hover(u: uPlot): void {
    const {left = -1, top = 0} = u.cursor;
    const column = left < 0 ? -1 : options.columnAt(u, left);
    const content = column < 0 ? undefined : options.tooltipAt(column);
    if (content) tooltip.show(content, left + u.bbox.left / devicePixelRatio, top);
    else tooltip.hide();
  }

  const over = plot.over;
  const leftOf = (event: MouseEvent): number => event.clientX - over.getBoundingClientRect().left;
  let pressedAt = 0;
  over.addEventListener('mousedown', (event) => (pressedAt = event.clientX));
  over.addEventListener('click', (event) => {
    // What moved in between was a drag.
    if (Math.abs(event.clientX - pressedAt) < 4) options.click(plot, leftOf(event), tooltip);
  });
  over.addEventListener('dblclick', events.whole);
  const onWheel = (event: WheelEvent): void => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    events.zoom(event.deltaY > 0 ? 1.25 : 0.8, plot.posToVal(leftOf(event), 'x'));
  };
  over.addEventListener('wheel', onWheel, {passive: false});
  onArrows(element, (by) => {
    const column = options.move(plot, by);
    const content = column === undefined ? undefined : options.tooltipAt(column);
    if (content) events.say(spoken(content));
    return column !== undefined;
  });
  const offWidth = onWidth(element, [plot]);
  const offTheme = onTheme(() => plot.redraw(false, true));

  return {
    draw({start, column, count}, curves) {
      const x = Array.from({length: count}, (_, i) => start + i * column);
      plot.setData([x, ...curves.map((max) => drawable(max, count))]);
    },
    destroy() {
      offWidth();
      offTheme();
      tooltip.destroy();
      plot.destroy();
    },
  };
}

/** What a curve of columns is drawn as: uPlot takes null for what is not known. */
function drawable(max: ArrayLike<number> | undefined, count: number): (number | null)[] {
  return Array.from({length: count}, (_, i) => {
    const value = max?.[i] ?? NaN;
    return Number.isNaN(value) ? null : value;
  });
}
