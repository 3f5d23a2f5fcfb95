// SPDX-License-Identifier: Apache-2.0

/**
 * What pages cost: node pages.mjs URL TOKEN_FILE PATH=NAME:TEXT...
 * A page is there when its text is. Prints a table in Markdown.
 */
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';

const require = createRequire(new URL('../../web/package.json', import.meta.url));
const {chromium} = require('playwright-core');

const [url, tokenFile, ...asked] = process.argv.slice(2);
if (!url || !tokenFile || asked.length === 0) {
  console.error('usage: pages.mjs URL TOKEN_FILE PATH=NAME:TEXT...');
  process.exit(2);
}
const token = readFileSync(tokenFile, 'utf8').trim();
const browser = await chromium.launch({
  executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});

console.log('| page | on the wire | main thread | first paint | there after | script heap |');
console.log('|---|---|---|---|---|---|');
for (const one of asked) {
  const [, path, name, text] = /^([^=]*)=([^:]*):(.*)$/.exec(one) ?? [];
  const context = await browser.newContext({
    viewport: {width: 1440, height: 900},
    extraHTTPHeaders: {authorization: `Bearer ${token}`},
  });
  const page = await context.newPage();
  const cdp = await context.newCDPSession(page);
  await cdp.send('Network.enable');
  // Processor time of the thread: other load on the machine does not count.
  await cdp.send('Performance.enable', {timeDomain: 'threadTicks'});
  let bytes = 0;
  cdp.on('Network.dataReceived', ({encodedDataLength}) => (bytes += encodedDataLength));
  const begun = performance.now();
  await page.goto(url + path);
  await page.getByText(text).first().waitFor();
  const wall = performance.now() - begun;
  const {metrics} = await cdp.send('Performance.getMetrics');
  const metric = (key) => metrics.find((found) => found.name === key)?.value ?? 0;
  const busy = 1000 * metric('TaskDuration');
  const paint = await page.evaluate(
    () => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN,
  );
  const heap = metric('JSHeapUsedSize') / 2 ** 20;
  console.log(
    `| ${name} | ${Math.ceil(bytes / 1000)} kB | ${busy.toFixed(0)} ms | ${paint.toFixed(0)} ms | ${wall.toFixed(0)} ms | ${heap.toFixed(1)} MiB |`,
  );
  await context.close();
}
await browser.close();
