// SPDX-License-Identifier: Apache-2.0

/**
 * Rectangles on a canvas with a tooltip: the mouse finds the one under it, the
 * arrow keys go from one to the next, which is outlined and read out.
 *
 *   const chart = createShapeChart(element, {paint, say});
 *   chart.setData({shapes, height});
 *   chart.destroy();
 */
import {spoken, type TooltipContent} from '../format/tooltip';
import {onArrows} from './axes';
import type {Chart} from './chart';
import {onTheme, readPalette, type Palette} from './palette';
import {createTooltip} from './tooltip';

/** In CSS pixels of a chart of so much width. */
export interface Rect {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly height: number;
}

export interface ShapeData {
  /** In the order in which they are drawn; the last is on top. */
  readonly shapes: readonly TooltipContent[];
  readonly height: number;
}

export interface ShapeEvents {
  readonly rectOf: (index: number, width: number) => Rect;
  readonly paint: (ctx: CanvasRenderingContext2D, width: number, palette: Palette) => void;
  readonly say: (text: string) => void;
}

export function createShapeChart(element: HTMLElement, events: ShapeEvents): Chart<ShapeData> {
  const canvas = document.createElement('canvas');
  canvas.style.display = 'block';
  canvas.style.width = '100%';
  element.append(canvas);
  const tooltip = createTooltip(element);
  let data: ShapeData = {shapes: [], height: 0};
  let palette = readPalette();
  let at = -1;

  function draw(): void {
    const width = element.clientWidth;
    const ratio = devicePixelRatio;
    canvas.width = Math.max(1, Math.round(width * ratio));
    canvas.height = Math.max(1, Math.round(data.height * ratio));
    canvas.style.height = `${data.height}px`;
    const ctx = canvas.getContext('2d');
    if (!ctx) return;
    ctx.scale(ratio, ratio);
    events.paint(ctx, width, palette);
    if (at < 0) return;
    const {x, y, width: wide, height: tall} = events.rectOf(at, width);
    ctx.strokeStyle = palette.text;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(x, y, Math.max(2, wide), Math.max(2, tall));
  }

  const onMove = (event: MouseEvent): void => {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    for (let i = data.shapes.length - 1; i >= 0; i--) {
      const {x, y, width, height} = events.rectOf(i, box.width);
      if (px < x || px > x + Math.max(1, width) || py < y || py > y + Math.max(1, height)) continue;
      tooltip.show(data.shapes[i]!, px, py);
      return;
    }
    tooltip.hide();
  };
  const onLeave = (): void => tooltip.hide();
  const onBlur = (): void => {
    at = -1;
    tooltip.hide();
    draw();
  };
  const offArrows = onArrows(element, (by) => {
    const count = data.shapes.length;
    if (count === 0) return false;
    at = at < 0 ? (by > 0 ? 0 : count - 1) : Math.max(0, Math.min(count - 1, at + Math.sign(by)));
    draw();
    const content = data.shapes[at]!;
    const {x, y} = events.rectOf(at, element.clientWidth);
    tooltip.show(content, x, y);
    events.say(spoken(content));
    return true;
  });
  canvas.addEventListener('mousemove', onMove);
  canvas.addEventListener('mouseleave', onLeave);
  element.addEventListener('blur', onBlur);
  const resize = new ResizeObserver(draw);
  resize.observe(element);
  const offTheme = onTheme(() => {
    palette = readPalette();
    draw();
  });

  return {
    setData(next) {
      data = next;
      at = -1;
      tooltip.hide();
      draw();
    },
    destroy() {
      offArrows();
      element.removeEventListener('blur', onBlur);
      resize.disconnect();
      offTheme();
      tooltip.destroy();
      canvas.remove();
    },
  };
}
