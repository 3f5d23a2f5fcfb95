// SPDX-License-Identifier: Apache-2.0

/**
 * How long a zoom takes on the screen: node zooms.mjs URL TOKEN_FILE RUN_PAGE [ZOOMS]
 * Presses the keys of the memory page and waits for the answer and the next frame.
 */
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';

const require = createRequire(new URL('../../web/package.json', import.meta.url));
const {chromium} = require('playwright-core');

const [url, tokenFile, path, count = '40'] = process.argv.slice(2);
if (!url || !tokenFile || !path) {
  console.error('usage: zooms.mjs URL TOKEN_FILE RUN_PAGE [ZOOMS]');
  process.exit(2);
}
const token = readFileSync(tokenFile, 'utf8').trim();
const browser = await chromium.launch({
  executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});
const context = await browser.newContext({
  viewport: {width: 1440, height: 900},
  extraHTTPHeaders: {authorization: `Bearer ${token}`},
});
const page = await context.newPage();
const cdp = await context.newCDPSession(page);
await cdp.send('Performance.enable', {timeDomain: 'threadTicks'});
const busy = async () => {
  const {metrics} = await cdp.send('Performance.getMetrics');
  return 1000 * (metrics.find(({name}) => name === 'TaskDuration')?.value ?? 0);
};
await page.goto(url + path, {timeout: 120_000});
await page.getByRole('heading', {name: /^Alive at/}).waitFor({timeout: 120_000});
await page.waitForTimeout(3000);

const walls = [];
const cpus = [];
const keys = ['w', 'w', 'd', 'w', 'a', 's', 'w', 'd', 's', 's'];
for (let i = 0; i < Number(count); i++) {
  const [before, begun] = [await busy(), performance.now()];
  const answer = page.waitForResponse(/GetTimeline/, {timeout: 20_000}).catch(() => undefined);
  await page.keyboard.press(keys[i % keys.length]);
  await answer;
  await page.evaluate(
    () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))),
  );
  walls.push(performance.now() - begun);
  cpus.push((await busy()) - before);
}
const at = (values, share) =>
  [...values].sort((a, b) => a - b)[Math.floor(share * (values.length - 1))];
await cdp.send('HeapProfiler.enable');
await cdp.send('HeapProfiler.collectGarbage');
const heap = await page.evaluate(() => performance.memory?.usedJSHeapSize ?? NaN);
console.log(
  '| zooms | wall, median | wall, p95 | main thread, median | main thread, p95 | script heap |',
);
console.log('|---|---|---|---|---|---|');
console.log(
  `| ${count} | ${at(walls, 0.5).toFixed(0)} ms | ${at(walls, 0.95).toFixed(0)} ms | ${at(cpus, 0.5).toFixed(0)} ms | ${at(cpus, 0.95).toFixed(0)} ms | ${(heap / 2 ** 20).toFixed(1)} MiB |`,
);
await browser.close();
