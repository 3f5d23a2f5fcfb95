// SPDX-License-Identifier: Apache-2.0

/** The address bar as reactive state. */
import {Address} from './address';
import {readState, writeState, type PageState} from './state';
import {routeOf, type Route} from './route';

class Place {
  route: Route = $state(routeOf(globalThis.location?.pathname ?? '/'));
  state: PageState = $state.raw(readState(globalThis.location?.search ?? ''));

  readonly #address = new Address((address) => history.replaceState(null, '', address));

  /** Goes to another page. */
  go(path: string): void {
    this.#address.flush();
    history.pushState(null, '', path);
    this.read();
    scrollTo(0, 0);
  }

  /** Changes parts of this page's state; no entry in the history. `moving`: as a slider does. */
  update(change: {[key in keyof PageState]?: PageState[key] | undefined}, moving = false): void {
    const search = writeState({...this.state, ...change} as PageState);
    this.state = readState(search);
    this.#address.show(location.pathname + search, moving);
  }

  /** Takes over what the address says: another page, or another entry of the history. */
  read(): void {
    this.#address.forget();
    const route = routeOf(location.pathname);
    if (JSON.stringify(route) !== JSON.stringify(this.route)) this.route = route;
    this.state = readState(location.search);
  }
}

export const place = new Place();

/** Follows links inside the page without loading it again. */
export function followLinks(): () => void {
  const click = (event: MouseEvent): void => {
    const anchor = event.target instanceof Element ? event.target.closest('a') : null;
    if (!anchor || event.button !== 0 || anchor.target !== '' || anchor.hasAttribute('download')) {
      return;
    }
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (anchor.origin !== location.origin) return;
    event.preventDefault();
    place.go(anchor.pathname + anchor.search);
  };
  const pop = (): void => place.read();
  document.addEventListener('click', click);
  addEventListener('popstate', pop);
  return () => {
    document.removeEventListener('click', click);
    removeEventListener('popstate', pop);
  };
}
