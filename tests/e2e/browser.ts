// SPDX-License-Identifier: Apache-2.0

/** The distribution's own Chromium, driven by Playwright. */
import {existsSync} from 'node:fs';
import {chromium, type Browser, type Page} from 'playwright-core';

const PLACES = [
  '/usr/bin/chromium',
  '/usr/bin/chromium-browser',
  '/snap/bin/chromium',
  '/usr/bin/google-chrome',
];

export function startBrowser(): Promise<Browser> {
  const named = process.env['CHROMIUM'];
  const executablePath = named ?? PLACES.find(existsSync);
  if (executablePath === undefined || !existsSync(executablePath)) {
    throw new Error(`${named ?? 'chromium'}: no browser here; install chromium or set CHROMIUM`);
  }
  return chromium.launch({
    executablePath,
    args: [
      '--headless',
      '--no-sandbox',
      '--disable-gpu',
      '--disable-quic',
      '--no-first-run',
      '--disable-background-networking',
      '--disable-component-update',
      '--disable-sync',
    ],
  });
}

export interface Watched {
  readonly page: Page;
  /** What went wrong in the page; a test ends with this empty. */
  readonly problems: string[];
}

/**
 * A page that notes every error, also of the content security policy. Failed
 * requests are noted by the browser too; a test that stops the server expects
 * them and looks at errors of scripts alone.
 */
export async function openPage(
  browser: Browser,
  options: {
    readonly dark?: boolean;
    readonly width?: number;
    readonly height?: number;
  } = {},
): Promise<Watched> {
  const page = await browser.newPage({
    viewport: {width: options.width ?? 1280, height: options.height ?? 900},
    colorScheme: options.dark ? 'dark' : 'light',
  });
  page.setDefaultTimeout(15_000);
  const problems: string[] = [];
  page.on('pageerror', (error) => problems.push(String(error)));
  page.on('console', (message) => {
    const lost = message.text().startsWith('Failed to load resource');
    if (message.type() === 'error' && !lost) problems.push(message.text());
  });
  return {page, problems};
}
