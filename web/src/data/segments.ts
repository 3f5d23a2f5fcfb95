// SPDX-License-Identifier: Apache-2.0

/** The allocator's segments, as the memory page draws them. */
import {categoryStyle} from '../format/categories';
import {counted, formatBytes, formatPercent} from '../format/units';
import type {Segment, SegmentPiece, Segments} from '../gen/reprise/v1/query_pb';
import {num} from '../format/number';
import {heightOf, rowAt, type Shape, type Shapes} from './shapes';

/**
 * A row a segment, as long as it is large, and its pieces in order of address. A piece of several
 * small blocks is filled to the share that is allocated: they are seen as a level and never left out.
 */
export function segmentShapes(segments: readonly Segment[]): Shapes {
  const longest = segments.reduce((most, {bytes}) => Math.max(most, num(bytes)), 1);
  const shapes = segments.flatMap((segment, row) => {
    let at = 0;
    return segment.pieces.map((piece): Shape => {
      const from = at;
      at += num(piece.bytes);
      return {
        ...rowAt(row),
        left: from / longest,
        right: at / longest,
        filled: num(piece.allocatedBytes) / Math.max(1, num(piece.bytes)),
        hatched: num(piece.awaitingBytes) / Math.max(1, num(piece.bytes)),
        category: categoryStyle(piece.category).category,
        title: pieceText(piece),
        rows: [
          ['segment', segmentName(segment)],
          ['of', formatBytes(num(segment.bytes))],
          ['from its begin', formatBytes(from)],
        ],
      };
    });
  });
  const ground = segments.map(({bytes}, row) => rowAt(row, num(bytes) / longest));
  return {shapes, ground, height: heightOf(segments.length)};
}

function segmentName(segment: Segment): string {
  const stream = segment.stream === 0n ? '' : `, stream ${segment.stream}`;
  return `0x${segment.address.toString(16)}${segment.pool ? `, ${segment.pool} pool` : ''}${stream}`;
}

function pieceText(piece: SegmentPiece): string {
  const bytes = formatBytes(num(piece.bytes));
  if (piece.blocks === 1) {
    if (piece.allocatedBlocks === 1) {
      const owner = piece.owner || categoryStyle(piece.category).name;
      return `${bytes} allocated: ${owner}`;
    }
    return piece.awaitingBytes > 0n ? `${bytes} freed, a stream still uses it` : `${bytes} free`;
  }
  const largest = piece.owner ? `; the largest: ${piece.owner}` : '';
  return (
    `${bytes} in ${counted(piece.blocks, 'small block')}, ${piece.allocatedBlocks} of them ` +
    `allocated with ${formatBytes(num(piece.allocatedBytes))}${largest}`
  );
}

/** The figures above the map. */
export function fragmentationText(all: Segments): string {
  const free = num(all.freeBytes);
  const parts = [
    `${formatBytes(num(all.reservedBytes))} reserved in ${counted(Number(all.segmentCount), 'segment')}`,
    `${formatBytes(num(all.allocatedBytes))} allocated`,
    `${formatBytes(free)} free`,
  ];
  if (all.awaitingBytes > 0n) {
    parts.push(`${formatBytes(num(all.awaitingBytes))} freed, a stream still uses it`);
  }
  if (all.roundingBytes > 0n) {
    parts.push(`${formatBytes(num(all.roundingBytes))} of the allocated are rounding`);
  }
  return parts.join(', ');
}

/** How much of the free memory one allocation cannot have; empty: nothing is free. */
export function largestText(all: Segments): string {
  const free = num(all.freeBytes);
  if (free === 0) return '';
  const largest = num(all.largestFreeBytes);
  return (
    `The largest free block is ${formatBytes(largest)}: without a new segment one allocation ` +
    `can have at most that, ${formatPercent(largest / free)} of what is free.`
  );
}

/** What the picture is too small for, in one sentence; empty: nothing. */
export function foldedSegmentsText(all: Segments): string {
  const parts: string[] = [];
  if (all.foldedBlocks > 0n) {
    parts.push(
      `${counted(Number(all.foldedBlocks), 'block')} of ${Number(all.blockCount).toLocaleString('en')} ` +
        'are smaller than a pixel and drawn together with their neighbours; every byte is in the picture.',
    );
  }
  if (all.foldedSegments > 0n) {
    parts.push(
      `${counted(Number(all.foldedSegments), 'smaller segment')} not drawn: ` +
        `${formatBytes(num(all.foldedBytes))}, ${formatBytes(num(all.foldedAllocatedBytes))} of it allocated.`,
    );
  }
  return parts.join(' ');
}
