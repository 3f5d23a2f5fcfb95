// SPDX-License-Identifier: Apache-2.0

/**
 * Bytes, times and percentages as people read them: the same texts as the
 * command line and Python print (base/str_cat.h, tests/fixtures/units.json).
 */

/** As protos carry them, in 64 bits; all that occur stay below 2^53, so the page computes with numbers. */
type Whole = number | bigint;

export function num(value: bigint | undefined): number {
  return value === undefined ? 0 : Number(value);
}

export const BYTE_UNITS = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'].map(
  (unit, i) => [unit, 2 ** (10 * i)] as const,
);
export const TIME_UNITS = ['ns', 'us', 'ms', 's'].map((unit, i) => [unit, 10 ** (3 * i)] as const);

/** 1536 -> "1.5 KiB". */
export function formatBytes(bytes: Whole): string {
  const sign = bytes < 0 ? '-' : '';
  const value = Math.abs(Math.trunc(Number(bytes)));
  if (value < 1024) return `${sign}${value} B`;

  for (let i = 1; i < BYTE_UNITS.length; i++) {
    const unit = 2 ** (10 * i);
    const whole = Math.floor(value / unit);
    // Halves round up. Kept apart from `whole`, so that no product is inexact.
    const tenths = whole * 10 + Math.floor(((value % unit) * 10 + unit / 2) / unit);
    // 1023.96 KiB rounds to 1024.0 KiB: say 1.0 MiB.
    if (tenths < 10240 || i + 1 === BYTE_UNITS.length) {
      return `${sign}${Math.floor(tenths / 10)}.${tenths % 10} ${BYTE_UNITS[i]![0]}`;
    }
  }
  return '';
}

/** As formatBytes, rounded up: what is needed can be typed as it is printed. */
export function formatBytesUp(bytes: number): string {
  if (bytes < 1024) return formatBytes(bytes);
  const power = Math.floor(Math.log2(bytes) / 10);
  const tenth = 2 ** (10 * power) / 10;
  return formatBytes(Math.max(bytes, Math.floor(Math.ceil(bytes / tenth) * tenth)));
}

/** 412e6 -> "412 ms", 1500 -> "1.5 us": three digits, no trailing zeros. */
export function formatDuration(ns: Whole): string {
  const sign = ns < 0 ? '-' : '';
  const value = Math.abs(Math.round(Number(ns)));
  if (value < 1000) return `${sign}${value} ns`;
  // The thresholds are those at which three digits round up to the next unit.
  if (value < 999_500) return `${sign}${threeDigits(value, 1e3)} us`;
  if (value < 999_500_000) return `${sign}${threeDigits(value, 1e6)} ms`;
  return `${sign}${threeDigits(value, 1e9)} s`;
}

function threeDigits(value: number, unit: number): string {
  const scale = value >= 100 * unit ? 1 : value >= 10 * unit ? 10 : 100;
  return String(Math.round((value * scale) / unit) / scale);
}

/** 0.0937 -> "9.4 %"; with `sign`, "+9.4 %". */
export function formatPercent(fraction: number, sign = false): string {
  if (!Number.isFinite(fraction) || Math.abs(fraction) > 1e12) return '? %';
  const tenths = Math.round(Math.abs(fraction) * 1000);
  const front = fraction < 0 && tenths > 0 ? '-' : sign ? '+' : '';
  return `${front}${Math.floor(tenths / 10)}.${tenths % 10} %`;
}

/** 1204551 -> "1,204,551". */
export function formatCount(count: Whole): string {
  return String(Math.trunc(Number(count))).replace(/\B(?=(\d{3})+$)/g, ',');
}

/** "1 step", "1,204 steps". */
export function counted(count: Whole, word: string): string {
  return `${formatCount(count)} ${Number(count) === 1 ? word : `${word}s`}`;
}

/** How long ago, roughly: "just now", "3 min ago", "2 days ago". */
export function formatAgo(thenMs: number, nowMs: number): string {
  const seconds = Math.max(0, (nowMs - thenMs) / 1000);
  if (seconds < 10) return 'just now';
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  const days = Math.floor(seconds / 86_400);
  return days === 1 ? 'yesterday' : `${days} days ago`;
}

/** How long something has lasted: "42 s", "3 min 20 s", "2 h 5 min", "3 d 4 h". */
export function formatElapsed(ns: number): string {
  const seconds = Math.max(0, Math.floor(ns / 1e9));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 48) return `${hours} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}
