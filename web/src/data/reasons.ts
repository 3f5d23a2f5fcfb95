// SPDX-License-Identifier: Apache-2.0

/** What memory costs under a plan, and whose clock the times of its ops are of. */
import {BYTE_UNITS, formatDuration, num} from '../format/units';
import type {Explanation} from '../gen/reprise/v1/planner_pb';

/**
 * "one more MiB saves 2.3 ms"; empty where the budget costs nothing. The unit
 * is at most a tenth of the plan's peak without its static bytes: the price is
 * a slope, which holds near the budget only. Never more than all that the plan
 * recomputes. `reprise explain` says the same: formats/convert/explain_proto.h.
 */
export function priceText(explanation: Explanation | undefined): string {
  const plan = explanation?.plan;
  if (!explanation || !plan) return '';
  const dynamicBytes = num(plan.peakBytes - (explanation.workingSet?.staticBytes ?? 0n));
  const units = BYTE_UNITS.slice(1, 4);
  const fits = units.findLast(([, bytes]) => bytes <= dynamicBytes / 10);
  const [name, bytes] = fits ?? ['byte', 1];
  const mostNs = num(plan.timeNs - plan.baseTimeNs);
  const savedNs = Math.min(explanation.priceNsPerByte * bytes, mostNs);
  return savedNs >= 0.5 ? `one more ${name} saves ${formatDuration(Math.round(savedNs))}` : '';
}

/** Whose clock the times of the ops are of; empty where nobody asked for kernels. */
export function timingText(timing: string): string {
  if (timing === 'kernels') return 'An op takes as long as its kernels.';
  const [source, why] = timing.split(/: (.*)/s);
  return source === 'host' && why ? `Ops are timed by the host: ${why}.` : '';
}
