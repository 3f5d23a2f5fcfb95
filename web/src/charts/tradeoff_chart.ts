// SPDX-License-Identifier: Apache-2.0

/**
 * The trade-off curve: budget against overhead. Plans are points on a line of
 * steps, the lower bound a line below them, what was measured a cross, the
 * budget of the run a red hairline; where no plan fits the ground is grey.
 * A few dozen shapes: SVG.
 */
import {boundPath, overheadRange, planPath, scale} from '../data/geometry';
import {nearest, type CurvePoint, type Domain, type TradeoffData} from '../data/tradeoff';
import type {TooltipContent} from '../format/tooltip';
import {formatBytes, formatPercent} from '../format/units';
import type {Chart} from './chart';
import {MEMORY_HEIGHT} from './memory_chart';
import {byteLabels, byteTicks, decimalTicks} from './ticks';
import {createTooltip} from './tooltip';

const HEIGHT = MEMORY_HEIGHT;
const MARGIN = {left: 60, right: 14, top: 14, bottom: 30} as const;

// Colours are CSS variables, which follow the theme by themselves.
const line = (colour: string, width = 1) =>
  ({fill: 'none', stroke: `var(--${colour})`, 'stroke-width': width}) as const;
const GRID = line('grid');
const PLANS = line('accent', 1.6);
const BOUND = {...line('bound', 1.4), 'stroke-dasharray': '2 3'};
const BUDGET = line('budget');
const RUNNING = line('accent', 2);
const CHOSEN = {class: 'chosen', ...line('whatif', 2.4)};
const MEASURED = {class: 'measured', ...line('measured', 2.4), 'stroke-linecap': 'round'};

/**
 * `pick` is called with the budget of a clicked point, or of the one on which
 * Enter is pressed; `say` with what stands at the point that the arrow keys
 * went to, to be read out.
 */
export function createTradeoffChart(
  element: HTMLElement,
  pick: (budgetBytes: number) => void,
  say: (text: string) => void,
): Chart<TradeoffData> {
  let data: TradeoffData | undefined;
  let hovered: CurvePoint | undefined;
  const svg = shape('svg', {role: 'img', height: HEIGHT});
  svg.style.display = 'block';
  element.append(svg);
  const tooltip = createTooltip(element);

  function draw(): void {
    svg.replaceChildren();
    const width = Math.max(200, element.clientWidth);
    svg.setAttribute('width', String(width));
    svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
    if (data?.domain) drawCurve(svg, data, data.domain, width);
  }

  function pointAt(event: MouseEvent): CurvePoint | undefined {
    if (!data?.domain) return undefined;
    const width = Math.max(200, element.clientWidth);
    const {x} = scales(data, data.domain, width);
    const px = event.clientX - svg.getBoundingClientRect().left;
    const point = nearest(data.curve.points, x.value(px));
    return point && Math.abs(x.at(point.budgetBytes) - px) < 30 ? point : undefined;
  }

  function mark(point: CurvePoint | undefined): void {
    if (point === hovered) return;
    hovered = point;
    for (const dot of svg.querySelectorAll('[data-budget]')) {
      const near = dot.getAttribute('data-budget') === String(point?.budgetBytes);
      dot.setAttribute('r', near ? '5' : '3');
    }
  }

  // With the keyboard: the arrows go from point to point, Enter takes one.
  element.tabIndex = 0;
  const onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.altKey || event.metaKey || !data?.domain) return;
    const points = [...data.curve.points].sort((a, b) => a.budgetBytes - b.budgetBytes);
    if (event.key === 'Enter' && hovered) {
      pick(hovered.budgetBytes);
      return;
    }
    const now = points.findIndex((one) => one.budgetBytes === hovered?.budgetBytes);
    const last = points.length - 1;
    const to = {
      ArrowLeft: now < 0 ? last : Math.max(0, now - 1),
      ArrowRight: now < 0 ? 0 : Math.min(last, now + 1),
      Home: 0,
      End: last,
    }[event.key];
    const point = to === undefined ? undefined : points[to];
    if (!point) return;
    event.preventDefault();
    mark(point);
    const {x, y} = scales(data, data.domain, Math.max(200, element.clientWidth));
    const content = contentOf(point);
    tooltip.show(content, x.at(point.budgetBytes), y.at(point.overhead));
    const figures = content.rows.map(([name, value]) => `${name} ${value}`.trim());
    say(`${content.title}, ${figures.join(', ')}. Enter tries it.`);
  };
  const onBlur = (): void => {
    mark(undefined);
    tooltip.hide();
  };
  element.addEventListener('keydown', onKey);
  element.addEventListener('blur', onBlur);

  svg.addEventListener('mousemove', (event) => {
    const point = pointAt(event);
    svg.style.cursor = point ? 'pointer' : '';
    mark(point);
    if (!point) {
      tooltip.hide();
      return;
    }
    const box = svg.getBoundingClientRect();
    tooltip.show(contentOf(point), event.clientX - box.left, event.clientY - box.top);
  });
  svg.addEventListener('mouseleave', () => tooltip.hide());
  svg.addEventListener('click', (event) => {
    const point = pointAt(event);
    if (point) pick(point.budgetBytes);
  });

  let width = element.clientWidth;
  const resize = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  });
  resize.observe(element);

  return {
    setData(next) {
      data = next;
      draw();
    },
    destroy() {
      resize.disconnect();
      element.removeEventListener('keydown', onKey);
      element.removeEventListener('blur', onBlur);
      tooltip.destroy();
      svg.remove();
    },
  };
}

function contentOf(point: CurvePoint): TooltipContent {
  const rows: [string, string][] = [
    ['peak', formatBytes(point.peakBytes)],
    ['overhead', formatPercent(point.overhead, true)],
    ['lower bound', formatPercent(point.bound, true)],
  ];
  if (point.dominated) rows.push(['', 'a smaller budget is faster']);
  return {title: `budget ${formatBytes(point.budgetBytes)}`, rows};
}

function scales(data: TradeoffData, domain: Domain, width: number) {
  const marks = [data.measured, data.running, data.chosen].map((mark) => mark?.overhead ?? NaN);
  const {bottom, top} = overheadRange(data.curve.points, marks);
  return {
    x: scale(domain.low, domain.high, MARGIN.left, width - MARGIN.right),
    y: scale(bottom, top, HEIGHT - MARGIN.bottom, MARGIN.top),
    top,
    bottom,
  };
}

function drawCurve(svg: SVGElement, data: TradeoffData, domain: Domain, width: number): void {
  const {x, y, top, bottom} = scales(data, domain, width);
  const right = width - MARGIN.right;
  const floor = HEIGHT - MARGIN.bottom;
  svg.setAttribute('aria-label', summary(data));

  // ---- ground: what is impossible, grid, axes ----
  const limit = x.at(domain.possible);
  if (limit > MARGIN.left) {
    svg.append(
      shape('rect', {
        class: 'impossible',
        fill: 'var(--sunken)',
        x: MARGIN.left,
        y: MARGIN.top,
        width: limit - MARGIN.left,
        height: floor - MARGIN.top,
      }),
    );
  }
  for (const tick of decimalTicks(bottom, top, 5)) {
    const at = Math.round(y.at(tick)) + 0.5;
    svg.append(shape('line', {...GRID, x1: MARGIN.left, x2: right, y1: at, y2: at}));
    svg.append(text(formatTick(tick), MARGIN.left - 8, at + 4, 'end'));
  }
  const ticks = byteTicks(domain.low, domain.high, Math.max(2, (right - MARGIN.left) / 90));
  const {labels, unit} = byteLabels(ticks);
  ticks.forEach((tick, i) => {
    svg.append(text(`${labels[i]!} ${unit}`, x.at(tick), HEIGHT - 9, 'middle'));
  });

  // ---- curves ----
  svg.append(shape('path', {...BOUND, d: boundPath(data.curve.points, x, y)}));
  svg.append(shape('path', {...PLANS, d: planPath(data.curve.points, x, y, domain)}));
  if (data.budgetBytes > 0 && data.budgetBytes >= domain.low && data.budgetBytes <= domain.high) {
    const at = Math.round(x.at(data.budgetBytes)) + 0.5;
    svg.append(shape('line', {...BUDGET, x1: at, x2: at, y1: MARGIN.top, y2: floor}));
  }
  for (const point of data.curve.points) {
    svg.append(
      shape('circle', {
        fill: 'var(--accent)',
        opacity: point.dominated ? 0.3 : 1,
        'data-budget': point.budgetBytes,
        cx: x.at(point.budgetBytes),
        cy: y.at(point.overhead),
        r: 3,
      }),
    );
  }

  // ---- marks ----
  if (data.running) {
    const {bytes, overhead} = data.running;
    svg.append(shape('circle', {...RUNNING, cx: x.at(bytes), cy: y.at(overhead), r: 6}));
  }
  if (data.chosen) {
    const {bytes, overhead, interpolated} = data.chosen;
    const dash = interpolated ? {'stroke-dasharray': '2 2', opacity: 0.7} : {};
    svg.append(shape('circle', {...CHOSEN, ...dash, cx: x.at(bytes), cy: y.at(overhead), r: 7}));
  }
  if (data.measured) {
    const cx = x.at(data.measured.bytes);
    const {overhead} = data.measured;
    const cy = y.at(Math.max(bottom, Math.min(top, overhead)));
    const cross = `M${cx - 5} ${cy - 5}l10 10M${cx - 5} ${cy + 5}l10 -10`;
    const up = `M${cx} ${cy + 14}V${cy + 1}m-5 5l5 -5l5 5`;
    const down = `M${cx} ${cy - 14}V${cy - 1}m-5 -5l5 5l5 -5`;
    const d = overhead > top ? up : overhead < bottom ? down : cross;
    svg.append(shape('path', {...MEASURED, d}));
    if (d !== cross) {
      const note = `measured ${formatPercent(overhead, true)}`;
      svg.append(text(note, cx - 10, overhead > top ? cy + 12 : cy - 6, 'end'));
    }
  }
}

function summary(data: TradeoffData): string {
  const {points} = data.curve;
  const first = points[0];
  const last = points[points.length - 1];
  if (!first || !last) return 'Trade-off curve: no budget is possible';
  const from = `${formatPercent(first.overhead, true)} at ${formatBytes(first.budgetBytes)}`;
  const to = `${formatPercent(last.overhead, true)} at ${formatBytes(last.budgetBytes)}`;
  return `Trade-off curve: overhead from ${from} to ${to}, ${points.length} budgets`;
}

function formatTick(fraction: number): string {
  const percent = Number((fraction * 100).toFixed(2));
  return percent > 0 ? `+${percent} %` : `${percent} %`;
}

function shape(name: string, attributes: Readonly<Record<string, string | number>>): SVGElement {
  const element = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const [key, value] of Object.entries(attributes)) {
    element.setAttribute(key, typeof value === 'number' ? String(Number(value.toFixed(2))) : value);
  }
  return element;
}

function text(content: string, x: number, y: number, anchor: 'middle' | 'end'): SVGElement {
  const colours = {fill: 'var(--soft)', 'font-size': 11, 'text-anchor': anchor};
  const element = shape('text', {...colours, x, y});
  element.textContent = content;
  return element;
}
