// SPDX-License-Identifier: Apache-2.0

/** Tables as files for other programs. */
import {Decision} from '../gen/reprise/v1/plan_pb';
import type {StorageExplanation} from '../gen/reprise/v1/planner_pb';
import type {CurvePoint} from './tradeoff';

/** Rows of a CSV file (RFC 4180), the first with the names of the columns. */
export function csv(rows: readonly (readonly (string | number)[])[]): string {
  return rows.map((row) => row.map((cell) => quoted(String(cell))).join(',') + '\r\n').join('');
}

function quoted(text: string): string {
  // A spreadsheet would run what begins like a formula.
  const plain = /^[=+\-@\t\r]/.test(text) && !/^-?\d/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain;
}

export function curveCsv(points: readonly CurvePoint[]): string {
  return csv([
    ['budget_bytes', 'peak_bytes', 'overhead', 'proven_bound'],
    ...points.map((point) => [point.budgetBytes, point.peakBytes, point.overhead, point.bound]),
  ]);
}

export function storagesCsv(storages: readonly StorageExplanation[]): string {
  return csv([
    [
      'storage',
      'name',
      'module',
      'bytes',
      'decision',
      'why',
      'made_by_op',
      'last_read_by_op',
      'recompute_ns',
      'times_recomputed',
      'alive_at_peak',
      'other_decision_added_ns',
      'other_decision_added_bytes',
    ],
    ...storages.map((one) => [
      one.storage,
      one.name,
      one.module,
      String(one.bytes),
      one.decision === Decision.RECOMPUTE ? 'recompute' : 'save',
      one.why,
      one.madeBy,
      one.lastReadBy,
      String(one.recomputeNs),
      one.timesRecomputed,
      String(one.aliveAtPeak),
      one.whatIf ? String(one.whatIf.addedNs) : '',
      one.whatIf ? String(one.whatIf.addedBytes) : '',
    ]),
  ]);
}
