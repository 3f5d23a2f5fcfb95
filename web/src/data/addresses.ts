// SPDX-License-Identifier: Apache-2.0

/**
 * Who is where in memory, over time, as shapes of a picture: used ranges of
 * addresses stand on each other, the lowest at the bottom, with a gap between
 * two that are far apart in memory.
 */
import {categoryStyle} from '../format/categories';
import {formatBytes, formatDuration, formatPercent, num} from '../format/units';
import type {Addresses} from '../gen/reprise/v1/query_pb';
import type {Shape, Shapes} from './shapes';

/** Share of the height that a gap between two ranges takes. */
const GAP = 0.012;

/** On so many pixels of height. */
export function addressPicture(from: Addresses, height: number): Shapes {
  const span = Math.max(1, num(from.toNs) - num(from.fromNs));
  const usedBytes = from.ranges.reduce((sum, range) => sum + num(range.bytes), 0);
  const gaps = Math.min(0.4, GAP * Math.max(0, from.ranges.length - 1));
  const perByte = (1 - gaps) / Math.max(1, usedBytes);
  const gap = from.ranges.length > 1 ? gaps / (from.ranges.length - 1) : 0;
  let bottom = 0;
  const ranges = from.ranges.map((range) => {
    const placed = {
      first: range.address,
      end: range.address + range.bytes,
      bottom,
      top: bottom + num(range.bytes) * perByte,
    };
    bottom = placed.top + gap;
    return placed;
  });
  const shapes = from.boxes.flatMap((box): Shape[] => {
    const range = ranges.find(({first, end}) => box.address >= first && box.address < end);
    if (!range) return [];
    const low = range.bottom + num(box.address - range.first) * perByte;
    const style = categoryStyle(box.category);
    const [began, ended] = [num(box.fromNs), num(box.toNs)];
    return [
      {
        left: (began - num(from.fromNs)) / span,
        right: (ended - num(from.fromNs)) / span,
        y: (1 - low - num(box.bytes) * perByte) * height,
        height: num(box.bytes) * perByte * height,
        category: style.category,
        title: box.owner === '' ? 'owner not known' : box.owner,
        // Made when they are read: of thousands of shapes a tooltip shows one.
        get rows(): Shape['rows'] {
          return [
            ['size', formatBytes(box.bytes)],
            ['address', `0x${box.address.toString(16)}`],
            ['from', box.before ? 'before what is shown' : formatDuration(began)],
            ['until', box.after ? 'after what is shown' : formatDuration(ended)],
            ['category', style.name],
            ...(box.atPeak ? ([['peak', 'alive when most is']] as const) : []),
          ];
        },
      },
    ];
  });
  const ground = ranges.map(({bottom, top}) => ({
    ...{left: 0, right: 1},
    ...{y: (1 - top) * height, height: (top - bottom) * height},
  }));
  return {shapes, ground, height};
}

/** How much is fragmentation, and what is folded. */
export function addressTexts(from: Addresses) {
  const peak = num(from.peakBytes);
  const spanned = num(from.peakSpanBytes);
  const between = spanned - peak;
  return {
    span:
      spanned > 0 && between > 0
        ? `At the peak ${formatBytes(peak)} lie within ${formatBytes(spanned)}: ${formatPercent(between / spanned)} of that is between them.`
        : `Most alive: ${formatBytes(peak)}.`,
    folded:
      from.folded > 0n
        ? `${from.folded.toLocaleString('en-US')} of ${from.alive.toLocaleString('en-US')} are too small to be drawn, ${formatPercent(from.foldedShare)} of all bytes over time.`
        : '',
  };
}
