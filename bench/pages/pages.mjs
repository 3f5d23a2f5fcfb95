// SPDX-License-Identifier: Apache-2.0

/**
 * What pages cost: node pages.mjs [--loads N] [--requests] URL[,URL...] TOKEN_FILE PATH=NAME:TEXT...
 * Each load has a browser context of its own. A page is there when its text is: the page itself takes the
 * time, from the beginning of the navigation to the end of the frame that shows the text. Several servers
 * are asked in turn. Prints a table in Markdown, medians and ranges; `--requests`: when each was sent and
 * answered, of the last load.
 */
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';
import {parseArgs} from 'node:util';

const require = createRequire(new URL('../../web/package.json', import.meta.url));
const {chromium} = require('playwright-core');

const {values, positionals} = parseArgs({
  allowPositionals: true,
  options: {loads: {type: 'string', default: '1'}, requests: {type: 'boolean', default: false}},
});
const [urls, tokenFile, ...asked] = positionals;
const loads = Number(values.loads);
if (!urls || !tokenFile || asked.length === 0 || !(loads > 0)) {
  console.error(
    'usage: pages.mjs [--loads N] [--requests] URL[,URL...] TOKEN_FILE PATH=NAME:TEXT...',
  );
  process.exit(2);
}
const token = readFileSync(tokenFile, 'utf8').trim();
const browser = await chromium.launch({
  executablePath: process.env['CHROMIUM'] ?? '/usr/bin/chromium',
  args: ['--no-sandbox'],
});

/** Runs in the page, before its own scripts: notes when the text is on the screen. */
function watch(text) {
  const look = () => {
    if (!document.body?.textContent.includes(text)) return;
    observer.disconnect();
    requestAnimationFrame(() => {
      const {port1, port2} = new MessageChannel();
      port1.onmessage = () => (globalThis.there = performance.now());
      port2.postMessage(0);
    });
  };
  const observer = new MutationObserver(look);
  observer.observe(document, {childList: true, subtree: true, characterData: true});
}

async function load(url, path, text) {
  const context = await browser.newContext({
    viewport: {width: 1440, height: 900},
    extraHTTPHeaders: {authorization: `Bearer ${token}`},
  });
  const page = await context.newPage();
  await page.addInitScript(watch, text);
  const cdp = await context.newCDPSession(page);
  await cdp.send('Network.enable');
  // Processor time of the thread: other load on the machine does not count.
  await cdp.send('Performance.enable', {timeDomain: 'threadTicks'});
  let bytes = 0;
  cdp.on('Network.dataReceived', ({encodedDataLength}) => (bytes += encodedDataLength));
  const begun = performance.now();
  await page.goto(url + path, {waitUntil: 'commit'});
  await page.waitForFunction(() => globalThis.there);
  const driver = performance.now() - begun;
  const {metrics} = await cdp.send('Performance.getMetrics');
  const metric = (key) => metrics.find((found) => found.name === key)?.value ?? 0;
  const seen = await page.evaluate(() => ({
    there: globalThis.there,
    paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN,
    requests: [
      ...performance.getEntriesByType('navigation'),
      ...performance.getEntriesByType('resource'),
    ].map(({name, requestStart, responseStart, responseEnd, startTime}) => ({
      name,
      startTime,
      requestStart,
      responseStart,
      responseEnd,
    })),
  }));
  await context.close();
  return {
    bytes: bytes / 1000,
    busy: 1000 * metric('TaskDuration'),
    paint: seen.paint,
    there: seen.there,
    driver,
    heap: metric('JSHeapUsedSize') / 2 ** 20,
    requests: seen.requests,
  };
}

function summary(all, key, digits = 0) {
  const sorted = all.map((one) => one[key]).sort((a, b) => a - b);
  const text = (value) => value.toFixed(digits);
  const middle = sorted.length >> 1;
  const median =
    sorted.length % 2 === 1 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  return sorted.length === 1
    ? text(median)
    : `${text(median)} (${text(sorted[0])} to ${text(sorted.at(-1))})`;
}

console.log(
  '| page | on the wire, kB | main thread, ms | first paint, ms | there after, ms | seen by the driver, ms | script heap, MiB |',
);
console.log('|---|---|---|---|---|---|---|');
for (const one of asked) {
  const [, path, name, text] = /^([^=]*)=([^:]*):(.*)$/.exec(one) ?? [];
  const servers = urls.split(',');
  const of = servers.map(() => []);
  for (let round = 0; round < loads; round++) {
    for (const [i, url] of servers.entries()) of[i].push(await load(url, path, text));
  }
  for (const [i, all] of of.entries()) {
    const where = servers.length > 1 ? `, ${servers[i]}` : '';
    console.log(
      `| ${name}${where} | ${summary(all, 'bytes')} | ${summary(all, 'busy')} | ${summary(all, 'paint')} | ${summary(all, 'there')} | ${summary(all, 'driver')} | ${summary(all, 'heap', 1)} |`,
    );
    if (!values.requests) continue;
    for (const request of all.at(-1).requests) {
      const at = [
        request.startTime,
        request.requestStart,
        request.responseStart,
        request.responseEnd,
      ];
      console.log(
        `  ${at.map((ms) => ms.toFixed(0).padStart(6)).join(' ')}  ${request.name.slice(0, 90)}`,
      );
    }
  }
}
await browser.close();
