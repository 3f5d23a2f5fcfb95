// SPDX-License-Identifier: Apache-2.0

import {ASKS_FOR_TOKEN} from './client';

/**
 * Whether the server answers, as the header and the banner show it. Every
 * page reports what its calls meet; nothing here makes a call.
 */
class Link {
  state: 'connecting' | 'up' | 'down' = $state('connecting');
  /** What the last failed call met. */
  why = $state('');

  /** Whether the server is there and does not know this page's cookie: it was killed, and has a new token. */
  get asksForToken(): boolean {
    return this.state === 'down' && this.why === ASKS_FOR_TOKEN;
  }

  up(): void {
    this.state = 'up';
    this.why = '';
  }

  down(why: string): void {
    this.state = 'down';
    this.why = why;
  }
}

export const link = new Link();
