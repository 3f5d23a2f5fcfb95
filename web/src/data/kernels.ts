// SPDX-License-Identifier: Apache-2.0

/** What ran on a device, stream by stream, as shapes of a picture. */
import {counted, formatCount, formatDuration, formatPercent} from '../format/units';
import type {Kernels} from '../gen/reprise/v1/query_pb';
import {num} from '../format/number';

export interface KernelShape {
  /** Parts of the width. */
  readonly left: number;
  readonly right: number;
  /** Share of it in which something ran. */
  readonly busy: number;
  readonly title: string;
  readonly rows: readonly (readonly [string, string])[];
}

export interface KernelRow {
  readonly name: string;
  readonly shapes: readonly KernelShape[];
}

export function kernelRows(kernels: Kernels): KernelRow[] {
  const from = num(kernels.fromNs);
  const span = Math.max(1, num(kernels.toNs) - from);
  return kernels.lanes.map((lane) => ({
    name: `device ${lane.device}, stream ${lane.stream}`,
    shapes: lane.spans.map((one): KernelShape => {
      const [begin, end] = [num(one.fromNs), num(one.toNs)];
      const single = one.kernels === 1;
      return {
        left: (begin - from) / span,
        right: (end - from) / span,
        busy: end > begin ? num(one.busyNs) / (end - begin) : 1,
        title: one.name === '' ? 'name not known' : one.name,
        rows: single
          ? [
              ['time', formatDuration(num(one.longestNs))],
              ['from', formatDuration(begin)],
            ]
          : [
              ['this and', `${formatCount(one.kernels - 1)} shorter ones`],
              ['its time', formatDuration(num(one.longestNs))],
              ['busy', `${formatDuration(num(one.busyNs))} of ${formatDuration(end - begin)}`],
              ['from', formatDuration(begin)],
            ],
      };
    }),
  }));
}

export function kernelsText(kernels: Kernels): string {
  const span = Math.max(1, num(kernels.toNs) - num(kernels.fromNs));
  const busy = num(kernels.busyNs);
  const folded = kernels.foldedLanes > 0 ? `; ${counted(kernels.foldedLanes, 'stream')} more` : '';
  return `${counted(kernels.kernels, 'kernel')}, something ran for ${formatDuration(busy)} (${formatPercent(busy / span)})${folded}`;
}
