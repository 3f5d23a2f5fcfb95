// SPDX-License-Identifier: Apache-2.0

/** The page's colours and font, for canvases. */

const known = new Map<string, string>();
addEventListener('reprise-theme', () => known.clear());

/** A colour of styles/tokens.css as the page is now, light or dark. */
export function colourOf(variable: string): string {
  const value = known.get(variable) ?? read(variable);
  known.set(variable, value);
  return value;
}

/** What a variable is as a colour, which may be one for light and one for dark, says an element. */
function read(variable: string): string {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = `var(${variable})`;
  const {color} = getComputedStyle(probe);
  probe.remove();
  return color;
}

export function font(): string {
  return `11px ${getComputedStyle(document.body).fontFamily}`;
}
