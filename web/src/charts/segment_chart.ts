// SPDX-License-Identifier: Apache-2.0

/**
 * Segments as rows of one length scale. A piece of several small blocks is
 * filled from the bottom to the share of it that is allocated, so that small
 * blocks are seen as a level and never left out.
 *
 *   const chart = createSegmentChart(element);
 *   chart.setData(rows);
 *   chart.destroy();
 */
import type {MapPiece, MapRow} from '../data/segments';
import {categoryStyle} from '../format/categories';
import {formatBytes} from '../format/units';
import {onTheme, readPalette} from './palette';
import {createTooltip} from './tooltip';

export interface SegmentChart {
  setData(rows: readonly MapRow[]): void;
  destroy(): void;
}

const ROW = 22;
const BAR = 16;

export function createSegmentChart(element: HTMLElement): SegmentChart {
  const canvas = document.createElement('canvas');
  canvas.style.display = 'block';
  canvas.style.width = '100%';
  element.append(canvas);
  const tooltip = createTooltip(element);
  let rows: readonly MapRow[] = [];
  let palette = readPalette();

  const longest = (): number => rows.reduce((most, row) => Math.max(most, row.bytes), 1);

  function draw(): void {
    const width = element.clientWidth;
    const height = rows.length * ROW;
    const ratio = devicePixelRatio;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
    const ctx = canvas.getContext('2d');
    if (!ctx) return;
    ctx.scale(ratio, ratio);
    const scale = width / longest();
    rows.forEach((row, i) => {
      const top = i * ROW + (ROW - BAR) / 2;
      ctx.fillStyle = palette.grid;
      ctx.fillRect(0, top, Math.max(1, row.bytes * scale), BAR);
      for (const piece of row.pieces) drawPiece(ctx, piece, top, scale);
    });
  }

  function drawPiece(
    ctx: CanvasRenderingContext2D,
    piece: MapPiece,
    top: number,
    scale: number,
  ): void {
    const left = piece.from * scale;
    const width = piece.bytes * scale;
    const held = piece.allocated * BAR;
    if (held > 0) {
      ctx.fillStyle = palette.category.get(categoryStyle(piece.category).category) ?? palette.base;
      // A hair between neighbours, where there is room for one.
      ctx.fillRect(left, top + BAR - held, width > 3 ? width - 0.6 : width, held);
    }
    if (piece.awaiting > 0) {
      const part = piece.awaiting * BAR;
      ctx.strokeStyle = palette.soft;
      ctx.lineWidth = 1;
      ctx.beginPath();
      for (let x = left; x < left + width; x += 4) {
        ctx.moveTo(x, top + BAR - held);
        ctx.lineTo(Math.min(x + part, left + width), top + BAR - held - part);
      }
      ctx.stroke();
    }
  }

  function onMove(event: MouseEvent): void {
    const box = canvas.getBoundingClientRect();
    const row = rows[Math.floor((event.clientY - box.top) / ROW)];
    const at = ((event.clientX - box.left) * longest()) / Math.max(1, box.width);
    const piece = row?.pieces.find(({from, bytes}) => at >= from && at < from + bytes);
    if (!row || !piece) {
      tooltip.hide();
      return;
    }
    const where: [string, string][] = [
      ['segment', row.name],
      ['of', formatBytes(row.bytes)],
      ['from its begin', formatBytes(piece.from)],
    ];
    tooltip.show(
      {title: piece.text, rows: where},
      event.clientX - box.left,
      event.clientY - box.top,
    );
  }
  const onLeave = (): void => tooltip.hide();
  canvas.addEventListener('mousemove', onMove);
  canvas.addEventListener('mouseleave', onLeave);
  const resize = new ResizeObserver(draw);
  resize.observe(element);
  const offTheme = onTheme(() => {
    palette = readPalette();
    draw();
  });

  return {
    setData(next) {
      rows = next;
      draw();
    },
    destroy() {
      resize.disconnect();
      offTheme();
      tooltip.destroy();
      canvas.remove();
    },
  };
}
