// SPDX-License-Identifier: Apache-2.0

/** Why memory ran out, in figures, and the plan that would have fitted. */
import {CATEGORIES, categoryStyle} from '../format/categories';
import {formatBytes, formatPercent, num} from '../format/units';
import {MomentReason, type Moment} from '../gen/reprise/v1/ingest_pb';
import {quickestWithin, type SmallestFit} from './refusal';
import type {Tradeoff} from './tradeoff';

export type Shortage = NonNullable<ReturnType<typeof shortageOf>>;

function sizesOf({askedBytes, liveBytes, freeBytes, totalBytes}: Moment) {
  const [asked, alive] = [num(askedBytes), num(liveBytes)];
  return {asked, alive, free: num(freeBytes), total: num(totalBytes)};
}

export function shortageOf(moment: Moment) {
  if (moment.reason !== MomentReason.OUT_OF_MEMORY) return undefined;
  const {asked, alive, free, total} = sizesOf(moment);
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
  return {
    /** Name and text of what is known; what is not is left out. */
    figures,
    /** Most that the job could have had: what it held and what was free; 0: not known. */
    roomBytes,
    /** The request alone is larger than that. */
    hopeless,
    fragmentation: fragmentationOf(moment, rounding),
  };
}

/** The quickest plan that keeps within what the job could have had. */
export function wouldHaveFitted(shortage: Shortage, curve: Tradeoff): SmallestFit | undefined {
  return shortage.roomBytes > 0 && !shortage.hopeless
    ? quickestWithin(curve, shortage.roomBytes)
    : undefined;
}

/** What of the memory was lost to its pieces, as far as it is known. */
function fragmentationOf(moment: Moment, rounding: number): string[] {
  const {asked, alive, free, total} = sizesOf(moment);
  const said: string[] = [];
  if (total === 0) {
    said.push('Nobody said how much was free, so whether it was in pieces is not known.');
  } else if (asked === 0) {
    said.push('How much was asked for is not known, so whether a piece was missing is not either.');
  } else if (free >= asked) {
    said.push('As much was free, and not in one piece: the memory was fragmented.');
  } else {
    said.push(
      `Not by fragmentation of what was free: ${formatBytes(asked)} were asked for and ${formatBytes(free)} were free.`,
    );
    const rest = alive > 0 ? total - alive - free : 0;
    if (rest >= asked) {
      said.push(
        `${formatBytes(rest)} were neither alive nor free: what the allocator keeps for later, the driver and other ` +
          'programs. How much of it the allocator had in pieces is not known.',
      );
    }
  }
  if (rounding > 0) {
    said.push(
      `The allocator rounds sizes up: ${formatBytes(rounding)} of the listed blocks are rounding` +
        `${alive > 0 ? `, ${formatPercent(rounding / alive)} of what was alive` : ''}.`,
    );
  }
  return said;
}

/** Where the memory was, each part in its colour: what was alive by category, and the rest of the device. */
export function memoryParts(moment: Moment) {
  const {alive, free, total} = sizesOf(moment);
  const by = new Map<string, number>();
  for (const {bytes, category} of moment.storages) {
    const style = categoryStyle(category);
    by.set(style.name, (by.get(style.name) ?? 0) + num(bytes));
  }
  const listed = [...by.values()].reduce((sum, bytes) => sum + bytes, 0);
  const held = Math.max(alive, listed + num(moment.moreBytes));
  const part = (name: string, bytes: number, variable: string) => ({name, bytes, variable});
  return [
    ...CATEGORIES.map(({name, variable}) => part(name, by.get(name) ?? 0, variable)),
    part('alive, not listed', held - listed, '--soft'),
    part('neither alive nor free', total > 0 ? total - held - free : 0, '--line'),
    part('free', total > 0 ? free : 0, '--good-wash'),
  ].filter(({bytes}) => bytes > 0);
}
