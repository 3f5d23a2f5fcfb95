// SPDX-License-Identifier: Apache-2.0

/**
 * Rectangles on a canvas with a tooltip: the mouse finds the one under it, the
 * arrow keys go from one to the next, which is outlined and read out.
 *
 *   const chart = createShapeChart(element, say);
 *   chart.setData({shapes, ground, height});
 *   chart.destroy();
 */
import type {Ground, Shape, Shapes} from '../data/shapes';
import {categoryStyle} from '../format/categories';
import {spoken} from '../format/tooltip';
import {onArrows, type Chart} from './axes';
import {colourOf, onTheme} from './palette';
import {createTooltip} from './tooltip';

/** `say`: what the arrow keys went to, to be read out. */
export function createShapeChart(element: HTMLElement, say: (text: string) => void): Chart<Shapes> {
  const canvas = document.createElement('canvas');
  canvas.style.width = '100%';
  element.append(canvas);
  const tooltip = createTooltip(element);
  let data: Shapes = {shapes: [], ground: [], height: 0};
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
    ctx.fillStyle = colourOf('--grid');
    for (const {left, right, y, height} of data.ground) {
      ctx.fillRect(left * width, y, Math.max(1, (right - left) * width), Math.max(1, height));
    }
    for (const shape of data.shapes) paint(ctx, shape, width);
    const chosen = data.shapes[at];
    if (!chosen) return;
    const [x, y, wide, tall] = rectOf(chosen, width);
    ctx.strokeStyle = colourOf('--text');
    ctx.lineWidth = 1.5;
    ctx.strokeRect(x, y, Math.max(2, wide), Math.max(2, tall));
  }

  const onMove = (event: MouseEvent): void => {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - box.left, event.clientY - box.top];
    const found = data.shapes.findLast((shape) => {
      const [x, y, width, height] = rectOf(shape, box.width);
      return px >= x && px <= x + Math.max(1, width) && py >= y && py <= y + Math.max(1, height);
    });
    if (found) tooltip.show(found, px, py);
    else tooltip.hide();
  };
  onArrows(element, (by) => {
    const count = data.shapes.length;
    if (count === 0) return false;
    at = at < 0 ? (by > 0 ? 0 : count - 1) : Math.max(0, Math.min(count - 1, at + Math.sign(by)));
    draw();
    const content = data.shapes[at]!;
    const [x, y] = rectOf(content, element.clientWidth);
    tooltip.show(content, x, y);
    say(spoken(content));
    return true;
  });
  canvas.addEventListener('mousemove', onMove);
  canvas.addEventListener('mouseleave', () => tooltip.hide());
  element.addEventListener('blur', () => {
    at = -1;
    tooltip.hide();
    draw();
  });
  const resize = new ResizeObserver(draw);
  resize.observe(element);
  const offTheme = onTheme(draw);

  return {
    setData(next) {
      data = next;
      at = -1;
      tooltip.hide();
      draw();
    },
    destroy() {
      resize.disconnect();
      offTheme();
      tooltip.destroy();
    },
  };
}

function rectOf({left, right, y, height}: Ground, width: number): [number, number, number, number] {
  return [left * width, y, (right - left) * width, height];
}

function paint(ctx: CanvasRenderingContext2D, shape: Shape, across: number): void {
  const [x, y, wide, height] = rectOf(shape, across);
  const {category, filled = 1} = shape;
  const bottom = y + height;
  const tall = filled * height;
  if (tall > 0) {
    ctx.fillStyle = colourOf(
      category === undefined ? '--predicted' : categoryStyle(category).variable,
    );
    // A hair between neighbours, where there is room for one.
    const [right, top] = [wide > 3 ? wide - 0.5 : wide, tall > 3 ? tall - 0.6 : tall];
    ctx.fillRect(x, bottom - tall, Math.max(1, right), Math.max(0.7, top));
  }
}
