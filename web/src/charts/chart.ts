// SPDX-License-Identifier: Apache-2.0

/**
 * What every chart is, once it was made for an element: given a whole picture as often as wanted.
 * The element goes with it: what listens to that alone is not taken away.
 */
export interface Chart<Data> {
  setData(data: Data): void;
  destroy(): void;
}
