// SPDX-License-Identifier: Apache-2.0

/**
 * The address of the page in the address bar, without an entry in the history.
 * A slider that moves changes it now and then: each change is told to other
 * processes of the browser, which takes some ms, and after some hundred in half
 * a minute it takes no more.
 */
const EVERY_MS = 200;

export class Address {
  #written = -Infinity;
  #next: string | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `write` puts an address into the bar. */
  constructor(private readonly write: (address: string) => void) {}

  /** Shows an address at once; of one that is `moving`, now and then. */
  show(address: string, moving: boolean): void {
    clearTimeout(this.#timer);
    this.#next = address;
    const wait = this.#written + EVERY_MS - performance.now();
    if (moving && wait > 0) this.#timer = setTimeout(() => this.flush(), wait);
    else this.flush();
  }

  /** Shows what is still to be shown. */
  flush(): void {
    const address = this.#next;
    this.forget();
    if (address === undefined) return;
    this.write(address);
    this.#written = performance.now();
  }

  /** Drops what is still to be shown. */
  forget(): void {
    clearTimeout(this.#timer);
    this.#next = undefined;
  }
}
