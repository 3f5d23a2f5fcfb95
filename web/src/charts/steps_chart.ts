// SPDX-License-Identifier: Apache-2.0

/**
 * Peak and time of every step of a run, one above the other on one axis of
 * steps. Steps without a plan are grey, planned ones dark; checks are
 * marks on the floor of the upper picture; predictions are dashed.
 */
import uPlot from 'uplot';
import {checkText, type StepLog} from '../data/steps';
import {formatBytes, formatDuration} from '../format/units';
import {axis, hairline, withUnit} from './memory_chart';
import {onTheme, readPalette, type Palette} from './palette';
import {byteLabels, byteTicks, decimalTicks, timeLabels} from './ticks';
import {createTooltip} from './tooltip';

export interface StepsData {
  readonly log: StepLog;
  readonly budgetBytes: number;
  readonly predictedPeakBytes: number;
  readonly predictedStepNs: number;
}

export interface StepsChart {
  setData(data: StepsData): void;
  destroy(): void;
}

interface Panel {
  readonly values: (log: StepLog) => readonly number[];
  readonly predicted: (data: StepsData) => number;
  readonly budget: (data: StepsData) => number;
  readonly axis: uPlot.Axis;
  readonly height: number;
}

const PANELS: readonly Panel[] = [
  {
    values: (log) => log.peakBytes,
    predicted: (data) => data.predictedPeakBytes,
    budget: (data) => data.budgetBytes,
    axis: {
      splits: (u) => byteTicks(0, u.scales['y']!.max!, 4),
      values: (_, ticks) => withUnit(byteLabels(ticks)),
      size: 74,
    },
    height: 200,
  },
  {
    values: (log) => log.stepNs,
    predicted: (data) => data.predictedStepNs,
    budget: () => 0,
    axis: {
      splits: (u) => decimalTicks(0, u.scales['y']!.max!, 4),
      values: (_, ticks) => withUnit(timeLabels(ticks)),
      size: 74,
    },
    height: 150,
  },
];

export function createStepsChart(element: HTMLElement): StepsChart {
  let data: StepsData | undefined;
  let palette = readPalette();
  const tooltip = createTooltip(element);
  const sync = uPlot.sync(`steps-${Math.random()}`);

  const charts = PANELS.map((panel, place) => createPanel(panel, place));

  function createPanel(panel: Panel, place: number): uPlot {
    const host = document.createElement('div');
    element.append(host);
    const dots = (colour: () => string): uPlot.Series => ({
      stroke: colour,
      width: 1.5,
      spanGaps: false,
      // Points while they can be told apart; a lone one would be no line.
      points: {show: (u) => (u.data[0]?.length ?? 0) <= 150, size: 4, fill: colour, width: 0},
    });
    return new uPlot(
      {
        width: Math.max(200, element.clientWidth),
        height: panel.height,
        legend: {show: false},
        padding: [10, 12, 0, 0],
        scales: {
          x: {time: false, range: (_, low, high) => stepRange(low, high)},
          y: {range: () => [0, top(panel)]},
        },
        series: [{}, dots(() => palette.base), dots(() => palette.measured)],
        axes: [
          axis(() => palette, {
            splits: (u) => wholeTicks(u.scales['x']!.min!, u.scales['x']!.max!, u.width / 90),
            values: (_, ticks) => ticks.map(String),
            size: place === PANELS.length - 1 ? 30 : 14,
            show: true,
            ...(place === PANELS.length - 1
              ? {}
              : {values: (_: uPlot, t: number[]) => t.map(() => '')}),
          }),
          axis(() => palette, panel.axis),
        ],
        cursor: {
          y: false,
          drag: {x: false, y: false},
          points: {size: 7},
          sync: {key: sync.key, setSeries: false},
        },
        hooks: {
          draw: [(u) => data && drawLines(u, panel, data, palette, place)],
          setCursor: [(u) => hover(u, host)],
        },
      },
      [[], [], []],
      host,
    );
  }

  function top(panel: Panel): number {
    if (!data) return 1;
    let most = Math.max(1, panel.predicted(data), panel.budget(data));
    for (const value of panel.values(data.log)) if (value > most) most = value;
    return most * 1.12;
  }

  function hover(u: uPlot, host: HTMLElement): void {
    const {left, top: y, idx} = u.cursor;
    // The other panel's cursor follows through `sync`; only one has the mouse.
    if (!host.matches(':hover')) return;
    if (!data || idx === null || idx === undefined || left === undefined || left < 0) {
      tooltip.hide();
      return;
    }
    const {log} = data;
    const step = log.step[idx] ?? 0;
    const rows: [string, string][] = [
      ['peak', formatBytes(log.peakBytes[idx] ?? 0)],
      ['time', formatDuration(log.stepNs[idx] ?? 0)],
      ['plan', log.planned[idx] ? 'yes' : 'no'],
    ];
    if (log.window[idx]) rows.push(['traced', 'its time is not counted']);
    if (log.oom[idx]) rows.push(['memory', 'ran out']);
    const check = log.checks.find((one) => one.step === step);
    if (check) rows.push(['check', checkText(check)]);
    tooltip.show(
      {title: `step ${step}`, rows},
      left + u.bbox.left / devicePixelRatio,
      (y ?? 0) + host.offsetTop,
    );
  }

  element.addEventListener('mouseleave', () => tooltip.hide());
  const resize = new ResizeObserver(() => {
    const width = element.clientWidth;
    charts.forEach((chart, i) => {
      if (width > 0 && width !== chart.width) chart.setSize({width, height: PANELS[i]!.height});
    });
  });
  resize.observe(element);
  const offTheme = onTheme(() => {
    palette = readPalette();
    for (const chart of charts) chart.redraw(false, true);
  });

  return {
    setData(next) {
      data = next;
      const {log} = next;
      charts.forEach((chart, i) => {
        const values = PANELS[i]!.values(log);
        chart.setData([
          log.step,
          values.map((value, k) => (log.planned[k] ? null : value)),
          values.map((value, k) => (log.planned[k] ? value : null)),
        ]);
      });
    },
    destroy() {
      resize.disconnect();
      offTheme();
      tooltip.destroy();
      for (const chart of charts) chart.destroy();
      element.replaceChildren();
    },
  };
}

/** Half a step of room at both ends: a point at the rim is a whole point. */
function stepRange(low: number | null, high: number | null): [number, number] {
  const from = low ?? 0;
  const to = high ?? 1;
  const room = Math.max(0.5, (to - from) * 0.01);
  return [from - room, to + room];
}

/** No step has half a number. */
function wholeTicks(low: number, high: number, count: number): number[] {
  return decimalTicks(low, high, count).filter(Number.isInteger);
}

function drawLines(u: uPlot, panel: Panel, data: StepsData, palette: Palette, place: number): void {
  const {ctx, bbox} = u;
  ctx.save();
  const predicted = panel.predicted(data);
  if (predicted > 0) hairline(u, predicted, palette.predicted, [6, 4]);
  const budget = panel.budget(data);
  if (budget > 0) hairline(u, budget, palette.budget, []);

  if (place === 0) {
    const size = 3.5 * devicePixelRatio;
    const y = bbox.top + bbox.height - 2 * size;
    for (const check of data.log.checks) {
      const x = u.valToPos(check.step, 'x', true);
      ctx.beginPath();
      ctx.lineWidth = 1.8 * devicePixelRatio;
      ctx.strokeStyle = check.equal ? palette.good : palette.bad;
      if (check.equal) {
        ctx.moveTo(x - size, y);
        ctx.lineTo(x - size / 4, y + size * 0.8);
        ctx.lineTo(x + size, y - size);
      } else {
        ctx.moveTo(x - size, y - size);
        ctx.lineTo(x + size, y + size);
        ctx.moveTo(x + size, y - size);
        ctx.lineTo(x - size, y + size);
      }
      ctx.stroke();
    }
  }
  ctx.restore();
}
