// SPDX-License-Identifier: Apache-2.0

/**
 * Peak and time of every step of a run, one above the other on one axis of
 * steps. Steps without a plan are grey, planned ones dark; checks are
 * marks on the floor of the upper picture; predictions are dashed.
 */
import uPlot from 'uplot';
import {bucketName, checksText, type StepLog} from '../data/steps';
import {spoken, type TooltipContent} from '../format/tooltip';
import {formatBytes, formatDuration} from '../format/units';
import {
  axis,
  byteAxis,
  crossPath,
  hairline,
  onArrows,
  onWidth,
  selected,
  stroke,
  withUnit,
  ZOOM_BY_DRAG,
  type Chart,
} from './axes';
import {colourOf, onTheme} from './palette';
import type {StepEvents} from './step_plot';
import {decimalTicks, timeLabels} from './ticks';
import {createTooltip} from './tooltip';

export interface StepsData {
  readonly log: StepLog;
  readonly budgetBytes: number;
  readonly predictedPeakBytes: number;
  readonly predictedStepNs: number;
}

/** A range is of numbers of steps; only buttons zoom. */
export type StepsEvents = Omit<StepEvents, 'zoom'>;

/** Without a plan and under one, and the longest where that differs: columns of the log. */
const PANELS = [
  {
    columns: ['plainPeakBytes', 'plannedPeakBytes'],
    longest: undefined,
    predicted: 'predictedPeakBytes',
    budget: 'budgetBytes',
    axis: byteAxis(4),
    height: 200,
  },
  {
    columns: ['plainNs', 'plannedNs'],
    longest: 'longestNs',
    predicted: 'predictedStepNs',
    budget: undefined,
    axis: {
      splits: (u: uPlot) => decimalTicks(0, u.scales['y']!.max!, 4),
      values: (_: uPlot, ticks: number[]) => withUnit(timeLabels(ticks)),
      size: 74,
    },
    height: 150,
  },
] as const;
type Panel = (typeof PANELS)[number];

const longestOf = (panel: Panel, log: StepLog) => panel.longest && log[panel.longest];
const budgetOf = (panel: Panel, data: StepsData) => (panel.budget ? data[panel.budget] : 0);

export function createStepsChart(element: HTMLElement, events: StepsEvents): Chart<StepsData> {
  let data: StepsData | undefined;
  const tooltip = createTooltip(element);
  const sync = uPlot.sync(`steps-${Math.random()}`);

  const charts = PANELS.map((panel, place) => createPanel(panel, place));

  function createPanel(panel: Panel, place: number): uPlot {
    const lowest = place === PANELS.length - 1;
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
        series: [
          {},
          dots(() => colourOf('--base')),
          dots(() => colourOf('--measured')),
          {stroke: () => colourOf('--faint'), width: 1, points: {show: false}, spanGaps: false},
        ],
        axes: [
          axis({
            splits: (u) => wholeTicks(u.scales['x']!.min!, u.scales['x']!.max!, u.width / 90),
            values: (_, ticks) => ticks.map((tick) => (lowest ? String(tick) : '')),
            size: lowest ? 30 : 14,
          }),
          axis(panel.axis),
        ],
        cursor: {
          y: false,
          drag: ZOOM_BY_DRAG,
          points: {size: 7},
          sync: {key: sync.key, setSeries: false},
        },
        hooks: {
          draw: [(u) => data && drawLines(u, panel, data, place)],
          setCursor: [(u) => hover(u, host)],
          setSelect: [(u) => selected(u, events.change, [Math.ceil, Math.floor])],
        },
      },
      [[], [], [], []],
      host,
    );
  }

  function top(panel: Panel): number {
    if (!data) return 1;
    let most = Math.max(1, data[panel.predicted], budgetOf(panel, data));
    for (const column of panel.columns) {
      for (const value of data.log[column]) if (value > most) most = value;
    }
    // The longest of a bucket is shown as far as there is room: one slow step
    // does not flatten all others.
    const limit = most * 2;
    for (const value of longestOf(panel, data.log) ?? []) {
      if (value > most) most = Math.min(value, limit);
    }
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
    tooltip.show(
      contentOf(data.log, idx),
      left + u.bbox.left / devicePixelRatio,
      (y ?? 0) + host.offsetTop,
    );
  }

  // The arrows go from bucket to bucket.
  let at = -1;
  onArrows(element, (by) => {
    const count = data?.log.first.length ?? 0;
    if (!data || count === 0) return false;
    const from = at < 0 ? (by > 0 ? -1 : count) : at;
    at = Math.max(0, Math.min(count - 1, from + by));
    const content = contentOf(data.log, at);
    const upper = charts[0]!;
    const x = upper.valToPos(middleOf(data.log, at), 'x') + upper.bbox.left / devicePixelRatio;
    tooltip.show(content, x, 20);
    events.say(spoken(content));
    return true;
  });
  element.addEventListener('dblclick', events.whole);
  element.addEventListener('blur', () => {
    at = -1;
    tooltip.hide();
  });
  element.addEventListener('mouseleave', () => tooltip.hide());
  const offWidth = onWidth(element, charts);
  const offTheme = onTheme(() => {
    for (const chart of charts) chart.redraw(false, true);
  });

  return {
    setData(next) {
      data = next;
      const {log} = next;
      charts.forEach((chart, i) => {
        const [plain, planned] = PANELS[i]!.columns;
        const longest = longestOf(PANELS[i]!, log);
        const folds = log.first.some((first, k) => first !== log.last[k]);
        chart.setData([
          log.first.map((_, k) => middleOf(log, k)),
          log[plain].map((value, k) => (log.plain[k]! > 0 ? value : null)),
          log[planned].map((value, k) => (log.planned[k]! > 0 ? value : null)),
          log.first.map((_, k) => (folds && longest ? longest[k]! : null)),
        ]);
      });
    },
    destroy() {
      offWidth();
      offTheme();
      tooltip.destroy();
      for (const chart of charts) chart.destroy();
    },
  };
}

function middleOf(log: StepLog, at: number): number {
  return (log.first[at]! + log.last[at]!) / 2;
}

/** What stands at a bucket. */
function contentOf(log: StepLog, at: number): TooltipContent {
  const several = log.first[at] !== log.last[at];
  const rows: [string, string][] = [];
  const [plain, planned] = [log.plain[at]!, log.planned[at]!];
  const kind = (name: string, peak: number, ns: number): void => {
    rows.push([`${name}peak`, `${several ? 'at most ' : ''}${formatBytes(peak)}`]);
    rows.push([`${name}time`, `${formatDuration(ns)}${several ? ', median' : ''}`]);
  };
  const both = plain > 0 && planned > 0;
  if (planned > 0) kind(both ? 'planned, ' : '', log.plannedPeakBytes[at]!, log.plannedNs[at]!);
  if (plain > 0) kind(both ? 'unplanned, ' : '', log.plainPeakBytes[at]!, log.plainNs[at]!);
  if (several) rows.push(['longest', formatDuration(log.longestNs[at]!)]);
  if (!both) rows.push(['plan', planned > 0 ? 'yes' : 'no']);
  const count = (name: string, one: string, value: number): void => {
    if (value > 0) rows.push([name, several ? String(value) : one]);
  };
  count('over budget', 'yes', log.overBudget[at]!);
  count('traced', 'its time is not counted', log.traced[at]!);
  count('out of memory', 'yes', log.outOfMemory[at]!);
  if (log.checks[at]! > 0)
    rows.push(['check', checksText(log.checks[at]!, log.checksDiffering[at]!)]);
  return {title: bucketName(log, at), rows};
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

function drawLines(u: uPlot, panel: Panel, data: StepsData, place: number): void {
  const {bbox} = u;
  const predicted = data[panel.predicted];
  if (predicted > 0) hairline(u, predicted, colourOf('--predicted'), [6, 4]);
  const budget = budgetOf(panel, data);
  if (budget > 0) hairline(u, budget, colourOf('--budget'), []);

  if (place === 0) {
    const size = 3.5 * devicePixelRatio;
    const y = bbox.top + bbox.height - 2 * size;
    // As far apart as they are wide; one that differs is always drawn.
    let free = -Infinity;
    for (let i = 0; i < data.log.first.length; i++) {
      if (data.log.checks[i] === 0) continue;
      const equal = data.log.checksDiffering[i] === 0;
      const x = u.valToPos(middleOf(data.log, i), 'x', true);
      if (equal && x < free) continue;
      free = x + 3 * size;
      const tick = `M${x - size} ${y}L${x - size / 4} ${y + size * 0.8}L${x + size} ${y - size}`;
      const [path, colour] = equal
        ? [tick, colourOf('--good')]
        : [crossPath(x, y, size), colourOf('--bad')];
      stroke(u, path, colour, 1.8 * devicePixelRatio);
    }
  }
}
