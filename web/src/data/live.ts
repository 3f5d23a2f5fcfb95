// SPDX-License-Identifier: Apache-2.0

/** Who is alive at an instant of a step, as the memory page shows it. */
import {categoryStyle} from '../format/categories';
import {counted, formatBytes, formatDuration, formatPercent, num} from '../format/units';
import {Category} from '../gen/reprise/v1/graph_pb';
import type {LiveAllocation, LiveGroup, LiveMemory} from '../gen/reprise/v1/query_pb';
import {CURVES_ALONE, type MemoryData} from './memory_view';
import type {Columns, Peak, StepCurve, Window} from './timeline';

const NO_COLUMNS = new Float64Array();
const NOTHING: Columns = {start: 0, column: 1, max: NO_COLUMNS, min: NO_COLUMNS};

/** Bytes alive as the chart draws them. A column reaches from its smallest to its largest value. */
export function liveView(
  curve: StepCurve | undefined,
  view: Window,
  at: number | undefined,
): MemoryData {
  const {start, column, max, min} = curve?.columns ?? NOTHING;
  return {
    ...CURVES_ALONE,
    ...(curve && {measured: curve.columns}),
    grid: {start, column, count: max.length},
    ...{view, at, peakBytes: curve?.peak.bytes ?? 0},
    tooltipAt: (i) => {
      const [most, least] = [max[i], min[i]];
      if (most === undefined || least === undefined || Number.isNaN(most)) return undefined;
      const rows: [string, string][] = [['most alive', formatBytes(most)]];
      if (least < most) rows.push(['least', formatBytes(least)]);
      return {title: `${formatDuration(start + i * column)} after the start`, rows};
    },
  };
}

/** Lines of the table. */
export function liveRows(allocations: readonly LiveAllocation[]) {
  return allocations.map((one) => {
    // "b7f064c000000_0": the address and how often it was used before.
    const name = `${one.address.toString(16)}_${one.use}`;
    return {
      ...{owner: one.owner, evidence: one.evidence, stack: one.stack, name},
      key: `${name} ${one.bornNs ?? ''}`,
      bytes: num(one.bytes),
      category: categoryStyle(one.category),
      lived: livedText(one.bornNs, one.freedNs),
    };
  });
}

function livedText(born: bigint | undefined, freed: bigint | undefined): string {
  const from =
    born === undefined
      ? 'before the recording'
      : born < 0n
        ? 'an earlier step'
        : formatDuration(born);
  if (freed === undefined) return `${from} – not freed`;
  // Far into a recording both ends are written alike.
  const lasted = born === undefined ? '' : ` (${formatDuration(num(freed) - num(born))})`;
  return `${from} – ${formatDuration(freed)}${lasted}`;
}

/** Each category's part of what is alive, for the bar and its legend. */
export function liveParts(groups: readonly LiveGroup[], live: number) {
  const whole = Math.max(
    live,
    groups.reduce((sum, group) => sum + num(group.bytes), 0),
  );
  return groups.map((group) => ({
    style: categoryStyle(group.category),
    bytes: num(group.bytes),
    share: whole === 0 ? 0 : num(group.bytes) / whole,
  }));
}

/** What the table leaves out, in one sentence; empty: nothing. */
export function foldedText(memory: LiveMemory): string {
  const parts: string[] = [];
  if (memory.foldedCount > 0n) {
    const share = num(memory.foldedBytes) / Math.max(1, num(memory.matchedBytes));
    parts.push(
      `${counted(memory.foldedCount, 'smaller allocation')} not listed: ` +
        `${formatBytes(memory.foldedBytes)}, ${formatPercent(share)}.`,
    );
  }
  if (memory.unlistedBytes > 0n) {
    parts.push(
      `${formatBytes(memory.unlistedBytes)} are alive that no record names: ` +
        'there before the recording, or in events that were folded.' +
        (memory.owners.some((one) => one.owner === '' && one.category !== Category.UNKNOWN)
          ? ' What they are, the captured step says.'
          : ''),
    );
  }
  return parts.join(' ');
}

/**
 * The nearest local peak before (`by` -1) or after (1) a column: a column that
 * is higher than what lies between it and a lower place of at least a hundredth
 * of the highest value on either side. Undefined: there is none.
 */
export function nextPeak(
  {max, start, column}: Columns,
  from: number,
  by: -1 | 1,
): Peak | undefined {
  let top = 0;
  for (const value of max) if (value > top) top = value;
  const drop = top / 100;
  let low = max[from] ?? NaN;
  let best = -1;
  for (let i = from + by; i >= 0 && i < max.length; i += by) {
    const value = max[i]!;
    if (Number.isNaN(value)) continue;
    if (best < 0) {
      if (Number.isNaN(low) || value < low) low = value;
      if (value - low >= drop && value > low) best = i;
    } else if (value > max[best]!) {
      best = i;
    } else if (max[best]! - value >= drop) {
      break;
    }
  }
  return best < 0 ? undefined : {at: start + best * column, bytes: max[best]!};
}
