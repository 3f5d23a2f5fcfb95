// SPDX-License-Identifier: Apache-2.0

/** What pages ask for first. `public/early.js` asks for the same, and a test holds them together. */

/** Runs of the list: a few screens. */
export const FIRST_RUNS = 50;
/** Buckets of steps: the most that a chart shows. */
export const BUCKETS = 700;
