// SPDX-License-Identifier: Apache-2.0

/**
 * The protos carry bytes and ns as 64-bit integers; all that occur stay below
 * 2^53, so the page computes with numbers.
 */
export function num(value: bigint | undefined): number {
  return value === undefined ? 0 : Number(value);
}
