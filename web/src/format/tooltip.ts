// SPDX-License-Identifier: Apache-2.0

/** What a tooltip says: a title, and rows of name and value. */
export interface TooltipContent {
  readonly title: string;
  readonly rows: readonly (readonly [string, string])[];
}

/** A tooltip in one line, to be read out. */
export function spoken(content: TooltipContent): string {
  return [content.title, ...content.rows.map((row) => row.join(' ').trim())].join(', ');
}
