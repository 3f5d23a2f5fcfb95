// SPDX-License-Identifier: Apache-2.0

/** What ran on a device, stream by stream, as shapes of a picture. */
import {counted, formatCount, formatDuration, formatPercent, num} from '../format/units';
import type {Kernels} from '../gen/reprise/v1/query_pb';
import {heightOf, rowAt, type Shape, type Shapes} from './shapes';

/** A row a stream; a bar is as full as the stream was busy. */
export function kernelShapes(kernels: Kernels): Shapes {
  const from = num(kernels.fromNs);
  const span = Math.max(1, num(kernels.toNs) - from);
  const shapes = kernels.lanes.flatMap((lane, row) =>
    lane.spans.map((one): Shape => {
      const [begin, end] = [num(one.fromNs), num(one.toNs)];
      const single = one.kernels === 1;
      return {
        ...rowAt(row),
        left: (begin - from) / span,
        right: (end - from) / span,
        // What ran for a moment is seen, too.
        filled: Math.max(0.1, end > begin ? num(one.busyNs) / (end - begin) : 1),
        title: one.name === '' ? 'name not known' : one.name,
        rows: single
          ? [
              ['time', formatDuration(one.longestNs)],
              ['from', formatDuration(begin)],
            ]
          : [
              ['this and', `${formatCount(one.kernels - 1)} shorter ones`],
              ['its time', formatDuration(one.longestNs)],
              ['busy', `${formatDuration(one.busyNs)} of ${formatDuration(end - begin)}`],
              ['from', formatDuration(begin)],
            ],
      };
    }),
  );
  const {length} = kernels.lanes;
  return {shapes, ground: kernels.lanes.map((_, row) => rowAt(row)), height: heightOf(length)};
}

export function kernelsText(kernels: Kernels): string {
  const span = Math.max(1, num(kernels.toNs) - num(kernels.fromNs));
  const busy = num(kernels.busyNs);
  const folded = kernels.foldedLanes > 0 ? `; ${counted(kernels.foldedLanes, 'stream')} more` : '';
  return `${counted(kernels.kernels, 'kernel')}, something ran for ${formatDuration(busy)} (${formatPercent(busy / span)})${folded}`;
}
