// SPDX-License-Identifier: Apache-2.0

/** The one tooltip of all charts. */
import type {TooltipContent} from '../format/tooltip';

export interface Tooltip {
  /** Beside (x, y) of the container. A pinned one stays as it is. */
  show(content: TooltipContent, x: number, y: number): void;
  hide(): void;
  /** Keeps what is shown; a second call, or Esc, lets it go. */
  togglePin(): void;
  destroy(): void;
}

export function createTooltip(container: HTMLElement): Tooltip {
  const box = document.createElement('div');
  box.className = 'tooltip';
  box.hidden = true;
  container.append(box);
  let pinned = false;

  const unpin = (): void => {
    pinned = false;
    delete box.dataset['pinned'];
    box.hidden = true;
  };
  const escape = (event: KeyboardEvent): void => {
    if (event.key === 'Escape' && pinned) unpin();
  };
  addEventListener('keydown', escape);

  return {
    show(content, x, y) {
      if (pinned) return;
      const list = document.createElement('dl');
      for (const [name, value] of content.rows) list.append(told('dt', name), told('dd', value));
      box.replaceChildren(told('strong', content.title), list);
      box.hidden = false;
      // To the right of the point, or to its left where there is no room.
      const {clientWidth, clientHeight} = container;
      const left = x + 14 + box.offsetWidth <= clientWidth ? x + 14 : x - 14 - box.offsetWidth;
      const top = Math.min(y + 12, clientHeight - box.offsetHeight - 4);
      box.style.left = `${Math.max(0, left)}px`;
      box.style.top = `${Math.max(0, top)}px`;
    },
    hide() {
      if (!pinned) box.hidden = true;
    },
    togglePin() {
      if (pinned) unpin();
      else if (!box.hidden) {
        pinned = true;
        box.dataset['pinned'] = '';
      }
    },
    destroy: () => removeEventListener('keydown', escape),
  };
}

function told(element: string, text: string): HTMLElement {
  return Object.assign(document.createElement(element), {textContent: text});
}
