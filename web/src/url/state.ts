// SPDX-License-Identifier: Apache-2.0

/**
 * What of a page's state stands in its address, short and readable, so that a
 * link shows a colleague the same thing: ?budget=24GiB&ops=120..340 of a run,
 * ?q=resnet&show=died&sort=peak of the list of runs.
 */
import {GROUPINGS, KINDS, SORTS, type RunsView} from '../data/runs';
import type {Window} from '../data/timeline';
import {TIME_UNITS} from '../format/units';

export interface PageState extends RunsView {
  /** The what-if budget as typed or chosen. */
  readonly budget?: string;
  /** The part of the step on the screen, in ns since its start: the axis is time. */
  readonly window?: Window;
  /** The same in places of ops. */
  readonly ops?: Window;
  /** The part of the run on the screen, in numbers of steps. */
  readonly steps?: Window;
  /** The axis is time, and all of the step is on the screen. */
  readonly byTime?: boolean;
  /** The optimizer is as wide as its ops are many; absent: folded. */
  readonly wide?: boolean;
  /** The instant of the memory page, in ns since the step's start; absent: the peak. */
  readonly at?: number;
  /** The runs of a comparison. */
  readonly a?: string;
  readonly b?: string;
}

/** Whatever cannot be read is left out. */
export function readState(query: string): PageState {
  const params = new URLSearchParams(query);
  const budget = params.get('budget')?.trim();
  const window = readWindow(params.get('t'), readTime);
  const ops = readWindow(params.get('ops'), readPlace);
  const steps = readWindow(params.get('steps'), readPlace);
  const at = readTime(params.get('at') ?? '');
  const search = params.get('q')?.trim();
  const [a, b] = [params.get('a'), params.get('b')];
  const show = KINDS.find((one) => one === params.get('show'));
  const group = GROUPINGS.find((one) => one === params.get('group'));
  const mine = params.get('mine') === '1';
  const [, down, key] = /^(-?)(\w+)$/.exec(params.get('sort') ?? '') ?? [];
  const sort = SORTS.find((one) => one === key);
  return {
    ...(budget ? {budget} : {}),
    ...(window ? {window} : ops ? {ops} : params.get('by') === 'time' ? {byTime: true} : {}),
    ...(params.get('optimizer') === 'wide' ? {wide: true} : {}),
    ...(steps ? {steps} : {}),
    ...(at !== undefined ? {at} : {}),
    ...(search ? {search} : {}),
    ...(a ? {a} : {}),
    ...(b ? {b} : {}),
    ...(show ? {show} : {}),
    ...(mine ? {mine} : {}),
    ...(group ? {group} : {}),
    ...(sort ? {sort, ...(down ? {} : {ascending: true})} : {}),
  };
}

/** "" or "?...". */
export function writeState(state: PageState): string {
  const parts: string[] = [];
  if (state.budget) parts.push(`budget=${encodeURIComponent(state.budget)}`);
  if (state.window) {
    const {from, to} = state.window;
    parts.push(`t=${writeTime(from, to - from)}..${writeTime(to, to - from)}`);
  } else if (state.byTime) {
    parts.push('by=time');
  } else if (state.ops) {
    const {from, to} = state.ops;
    parts.push(`ops=${Number(from.toFixed(3))}..${Number(to.toFixed(3))}`);
  }
  if (state.wide) parts.push('optimizer=wide');
  if (state.steps) parts.push(`steps=${state.steps.from}..${state.steps.to}`);
  if (state.at !== undefined) parts.push(`at=${writeTime(state.at, 1000)}`);
  if (state.a) parts.push(`a=${encodeURIComponent(state.a)}`);
  if (state.b) parts.push(`b=${encodeURIComponent(state.b)}`);
  if (state.search) parts.push(`q=${encodeURIComponent(state.search)}`);
  if (state.show) parts.push(`show=${state.show}`);
  if (state.mine) parts.push('mine=1');
  if (state.group) parts.push(`group=${state.group}`);
  if (state.sort) parts.push(`sort=${state.ascending ? '' : '-'}${state.sort}`);
  return parts.length === 0 ? '' : `?${parts.join('&')}`;
}

function readWindow(
  text: string | null,
  read: (one: string) => number | undefined,
): Window | undefined {
  const [first, last, ...rest] = (text ?? '').split('..');
  if (first === undefined || last === undefined || rest.length > 0) return undefined;
  const from = read(first);
  const to = read(last);
  if (from === undefined || to === undefined || to <= from) return undefined;
  return {from, to};
}

function readPlace(text: string): number | undefined {
  return /^\d{1,9}(\.\d{1,3})?$/.test(text) ? Number(text) : undefined;
}

function readTime(text: string): number | undefined {
  const match = /^(\d+(?:\.\d+)?)(s|ms|us|ns)$/.exec(text);
  const unit = TIME_UNITS.find(([name]) => name === match?.[2]);
  if (!match || !unit) return undefined;
  const ns = Math.round(Number(match[1]) * unit[1]);
  return Number.isSafeInteger(ns) ? ns : undefined;
}

/** Precise to a thousandth of `spanNs`, in the largest unit of at least one. */
function writeTime(ns: number, spanNs: number): string {
  const grain = Math.max(1, 10 ** Math.floor(Math.log10(Math.max(1, spanNs / 1000))));
  const rounded = Math.round(ns / grain) * grain;
  const [name, unit] = TIME_UNITS.findLast(([, size]) => rounded >= size) ?? TIME_UNITS[0]!;
  const decimals = Math.max(0, Math.round(Math.log10(unit / grain)));
  return `${Number((rounded / unit).toFixed(decimals))}${name}`;
}
