// SPDX-License-Identifier: Apache-2.0

/**
 * Peak and time of every step of a run, one above the other on one axis of
 * steps. Steps without a plan are grey, planned ones dark; checks are
 * marks on the floor of the upper picture; predictions are dashed.
 */
import type uPlot from 'uplot';
import {bucketName, checksText, type StepLog} from '../data/steps';
import type {TooltipContent} from '../format/tooltip';
import {formatBytes, formatDuration} from '../format/units';
import {byteAxis, colourOf, crossPath, hairline, stroke} from './axes';
import type {Chart} from './plot';
import {decimalTicks, timeLabels} from './ticks';

export interface StepsData {
  readonly log: StepLog;
  readonly budgetBytes: number;
  readonly predictedPeakBytes: number;
  readonly predictedStepNs: number;
}

/** Pixels of the peaks, of the times below them, and of all with the ground between the two. */
const PEAKS = 176;
const TIMES = 110;
const BOTH = 310;

const dots = (scale: string, colour: () => string): uPlot.Series => ({
  scale,
  stroke: colour,
  width: 1.5,
  // Points while they can be told apart; a lone one would be no line.
  points: {show: (u) => (u.data[0]?.length ?? 0) <= 150, size: 4, fill: colour, width: 0},
});
const [plain, planned] = [() => colourOf('--base'), () => colourOf('--measured')];

export const STEPS_CHART: Chart<StepsData> = {
  height: BOTH + 40,
  padding: [10, 12, 0, 0],
  columns(data) {
    const {log} = data;
    const folds = log.first.some((first, k) => first !== log.last[k]);
    const top = topNs(data);
    const where = (there: readonly number[], values: readonly number[]): (number | null)[] =>
      values.map((value, k) => (there[k]! > 0 ? value : null));
    return [
      log.first.map((_, k) => middleOf(log, k)),
      where(log.plain, log.plainPeakBytes),
      where(log.planned, log.plannedPeakBytes),
      where(log.plain, log.plainNs),
      where(log.planned, log.plannedNs),
      log.longestNs.map((value) => (folds ? Math.min(value, top) : null)),
    ];
  },
  ranges: {
    x: (_, low, high) => stepRange(low, high),
    y(data) {
      const top = topBytes(data);
      return [top * (1 - BOTH / PEAKS), top];
    },
    ns: (data) => [0, topNs(data) * (BOTH / TIMES)],
  },
  axes: (now) => [
    {
      splits: (u) => wholeTicks(u.scales['x']!.min!, u.scales['x']!.max!, u.width / 90),
      values: (_, ticks) => ticks.map(String),
      size: 30,
    },
    // Of no width: it has that of the bytes.
    {
      scale: 'ns',
      side: 3,
      size: 0,
      splits: () => decimalTicks(0, topNs(now()), 4),
      values: (_, ticks) => timeLabels(ticks),
    },
    byteAxis(4),
  ],
  series: [
    dots('y', plain),
    dots('y', planned),
    dots('ns', plain),
    dots('ns', planned),
    {scale: 'ns', stroke: () => colourOf('--faint'), width: 1, points: {show: false}},
  ],
  points: {size: 7},
  over: drawLines,
  ends: [Math.ceil, Math.floor],
  tooltipAt: ({log}, bucket) => contentOf(log, bucket),
};

function topBytes({log, budgetBytes, predictedPeakBytes}: StepsData): number {
  const peaks = [...log.plainPeakBytes, ...log.plannedPeakBytes];
  return 1.12 * Math.max(1, predictedPeakBytes, budgetBytes, ...peaks);
}

/** The longest of a bucket is shown as far as there is room: one slow step does not flatten all others. */
function topNs({log, predictedStepNs}: StepsData): number {
  const most = Math.max(1, predictedStepNs, ...log.plainNs, ...log.plannedNs);
  return 1.12 * Math.min(2 * most, Math.max(most, ...log.longestNs));
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

/** Half a step of room at both ends: a point at the rim is a whole point. Without steps both are null. */
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

function drawLines(u: uPlot, data: StepsData): void {
  const {log, budgetBytes, predictedPeakBytes, predictedStepNs} = data;
  const predicted = colourOf('--predicted');
  if (predictedPeakBytes > 0) hairline(u, predictedPeakBytes, predicted, [6, 4]);
  if (predictedStepNs > 0) hairline(u, predictedStepNs, predicted, [6, 4], 'ns');
  if (budgetBytes > 0) hairline(u, budgetBytes, colourOf('--budget'), []);

  const size = 3.5 * devicePixelRatio;
  const y = u.valToPos(0, 'y', true) - 2 * size;
  // As far apart as they are wide; one that differs is always drawn.
  let free = -Infinity;
  for (let i = 0; i < log.first.length; i++) {
    if (log.checks[i] === 0) continue;
    const equal = log.checksDiffering[i] === 0;
    const x = u.valToPos(middleOf(log, i), 'x', true);
    if (equal && x < free) continue;
    free = x + 3 * size;
    const tick = `M${x - size} ${y}L${x - size / 4} ${y + size * 0.8}L${x + size} ${y - size}`;
    const [path, colour] = equal
      ? [tick, colourOf('--good')]
      : [crossPath(x, y, size), colourOf('--bad')];
    stroke(u, path, colour, 1.8 * devicePixelRatio);
  }
}
