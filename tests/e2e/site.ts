// SPDX-License-Identifier: Apache-2.0

/** A daemon and a browser for the tests of one file. */
import type {Browser, Page} from 'playwright-core';
import {afterAll, beforeAll, expect, onTestFinished} from 'vitest';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';

export interface Site {
  readonly daemon: Daemon;
  readonly browser: Browser;
  /** A page of the daemon; the test fails if a script or the policy of the page reports an error. */
  open(path: string, options?: Parameters<typeof openPage>[1]): Promise<Page>;
}

/** Starts both before the tests of the file, and stops them after; `tokens` as in startDaemon. */
export function startSite(tokens?: string): Site {
  let daemon: Daemon | undefined;
  let browser: Browser | undefined;

  beforeAll(async () => {
    [daemon, browser] = await Promise.all([startDaemon(tokens), startBrowser()]);
  });

  afterAll(async () => {
    await browser?.close();
    await daemon?.remove();
  });

  return {
    get daemon() {
      return daemon!;
    },
    get browser() {
      return browser!;
    },
    async open(path, options = {}) {
      const {page, problems} = await openPage(browser!, options);
      onTestFinished(async () => {
        await page.close();
        expect(problems).toEqual([]);
      });
      await page.goto(daemon!.link(path));
      return page;
    },
  };
}
