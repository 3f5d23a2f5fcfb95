// SPDX-License-Identifier: Apache-2.0

/** Why memory ran out, in figures, and the plan that would have fitted. */
import {formatBytes} from '../format/units';
import {MomentReason, type Moment} from '../gen/reprise/v1/ingest_pb';
import {num} from './number';
import {quickestWithin, type SmallestFit} from './refusal';
import type {Tradeoff} from './tradeoff';

export interface Shortage {
  /** Name and text of what is known; what is not is left out. */
  readonly figures: readonly (readonly [string, string])[];
  /** What follows from them; empty: nothing does. */
  readonly remark: string;
  /** Most that the job could have had: what it held and what was free; 0: not known. */
  readonly roomBytes: number;
  /** The request alone is larger than that. */
  readonly hopeless: boolean;
}

export function shortageOf(moment: Moment): Shortage | undefined {
  if (moment.reason !== MomentReason.OUT_OF_MEMORY) return undefined;
  const [asked, alive, free, total] = [
    num(moment.askedBytes),
    num(moment.liveBytes),
    num(moment.freeBytes),
    num(moment.totalBytes),
  ];
  // What the allocator set aside beyond what was asked of it, where it is known.
  const rounding = moment.storages.reduce(
    (sum, one) => sum + (one.blockBytes > one.bytes ? num(one.blockBytes - one.bytes) : 0),
    0,
  );
  const figures = (
    [
      ['asked for', asked],
      ['alive', alive],
      [
        moment.device < 0 ? 'free on the host' : `free on device ${moment.device}`,
        total > 0 ? free : -1,
      ],
      ['of', total],
      ['lost to rounding of blocks', rounding],
    ] as const
  )
    .filter(([, bytes], i) => (i === 2 ? bytes >= 0 : bytes > 0))
    .map(([name, bytes]) => [name, formatBytes(bytes)] as const);
  const roomBytes = total > 0 && alive > 0 ? alive + free : 0;
  const hopeless = asked > 0 && roomBytes > 0 && asked > roomBytes;
  const split = total > 0 && asked > 0 && free >= asked;
  return {
    figures,
    roomBytes,
    hopeless,
    remark: split
      ? 'As much was free, and not in one piece: the memory was fragmented.'
      : hopeless
        ? 'The request alone is larger than all that the job could have had: no plan makes room for it.'
        : '',
  };
}

/** The quickest plan that keeps within what the job could have had. */
export function wouldHaveFitted(shortage: Shortage, curve: Tradeoff): SmallestFit | undefined {
  return shortage.roomBytes > 0 && !shortage.hopeless
    ? quickestWithin(curve, shortage.roomBytes)
    : undefined;
}
