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

const STORAGE_COLUMNS: Readonly<Record<string, (one: StorageExplanation) => unknown>> = {
  storage: (one) => one.storage,
  name: (one) => one.name,
  module: (one) => one.module,
  bytes: (one) => one.bytes,
  decision: (one) => (one.decision === Decision.RECOMPUTE ? 'recompute' : 'save'),
  why: (one) => one.why,
  made_by_op: (one) => one.madeBy,
  last_read_by_op: (one) => one.lastReadBy,
  recompute_ns: (one) => one.recomputeNs,
  times_recomputed: (one) => one.timesRecomputed,
  alive_at_peak: (one) => one.aliveAtPeak,
  other_decision_added_ns: (one) => one.whatIf?.addedNs ?? '',
  other_decision_added_bytes: (one) => one.whatIf?.addedBytes ?? '',
};

export function storagesCsv(storages: readonly StorageExplanation[]): string {
  const columns = Object.values(STORAGE_COLUMNS);
  return csv([
    Object.keys(STORAGE_COLUMNS),
    ...storages.map((one) => columns.map((column) => String(column(one)))),
  ]);
}
