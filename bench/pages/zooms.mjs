// SPDX-License-Identifier: Apache-2.0

/**
 * How long a zoom, or a move of the slider, takes on the screen:
 *
 *   node zooms.mjs URL TOKEN_FILE MEMORY_PAGE [ZOOMS]
 *   node zooms.mjs URL TOKEN_FILE RUN_PAGE [MOVES] --drag
 *
 * Presses the keys of the memory page, or drags the budget of a run's page. The
 * page itself takes the times: of a zoom from the key event to the end of the
 * frame that shows the curve's answer, and of the last frame that it draws; of a
 * move from its input event to the end of the frame that shows the memory curve.
 */
import {readFileSync} from 'node:fs';
import {createRequire} from 'node:module';

const require = createRequire(new URL('../../web/package.json', import.meta.url));
const {chromium} = require('playwright-core');

const words = process.argv.slice(2);
const drag = words.includes('--drag');
const [url, tokenFile, path, count = '40'] = words.filter((word) => word !== '--drag');
if (!url || !tokenFile || !path) {
  console.error('usage: zooms.mjs URL TOKEN_FILE PAGE [COUNT] [--drag]');
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

/** Within the page: what is asked, answered and drawn since the last key. */
function watch(drag) {
  const seen = {open: 0, asked: 0, key: 0, answered: 0, curve: 0, all: 0};
  window.seen = seen;
  const ask = window.fetch;
  window.fetch = async (...args) => {
    seen.open++;
    seen.asked++;
    try {
      const answer = await ask(...args);
      if (String(args[0]?.url ?? args[0]).endsWith('GetTimeline')) seen.answered = 1;
      return answer;
    } finally {
      seen.open--;
    }
  };
  const drawn = (canvas) => {
    const curve = (drag || seen.answered === 1) && canvas.closest('.u-wrap') !== null;
    requestAnimationFrame(() => {
      // A message is handled when the frame has been made.
      const {port1, port2} = new MessageChannel();
      port1.onmessage = () => {
        seen.all = performance.now() - seen.key;
        // Of a move the first frame counts: the exact plan comes later.
        if (curve && !(drag && seen.curve)) seen.curve = seen.all;
      };
      port2.postMessage(0);
    });
  };
  const {clearRect, scale} = CanvasRenderingContext2D.prototype;
  CanvasRenderingContext2D.prototype.clearRect = function (...args) {
    drawn(this.canvas);
    clearRect.apply(this, args);
  };
  CanvasRenderingContext2D.prototype.scale = function (...args) {
    drawn(this.canvas);
    scale.apply(this, args);
  };
  const begin = ({timeStamp}) =>
    Object.assign(seen, {key: timeStamp, asked: 0, answered: 0, curve: 0, all: 0});
  addEventListener(drag ? 'input' : 'keydown', begin, {capture: true});
}
await page.addInitScript(watch, drag);

await page.goto(url + path, {timeout: 120_000});
const slider = page.getByRole('slider').first();
if (drag) await slider.waitFor({timeout: 120_000});
else await page.getByRole('heading', {name: /^Alive at/}).waitFor({timeout: 120_000});
await page.waitForTimeout(3000);

/** Moves the slider by a frame's worth, back and forth, as a hand on a mouse does. */
const box = drag ? await slider.boundingBox() : undefined;
async function move(i) {
  const share = 0.5 + 0.35 * Math.sin(i / 9);
  await page.mouse.move(box.x + box.width * share, box.y + box.height / 2);
}
if (drag) {
  await move(0);
  await page.mouse.down();
}

const zooms = [];
const keys = ['w', 'w', 'd', 'w', 'a', 's', 'w', 'd', 's', 's'];
for (let i = 0; i < Number(count); i++) {
  const before = await busy();
  if (drag) {
    await page.evaluate(() => Object.assign(window.seen, {key: 0, curve: 0, all: 0}));
    const put = await slider.inputValue();
    await move(i + 1);
    // Where the hand turns round, the budget may stay as it is, and so does the curve.
    if (!(await page.evaluate(() => window.seen.key))) continue;
    if ((await slider.inputValue()) === put) continue;
    await page.waitForFunction(() => window.seen.curve > 0, undefined, {timeout: 20_000});
    await page.waitForTimeout(16);
  } else {
    await page.keyboard.press(keys[i % keys.length]);
    await page.waitForFunction(() => window.seen.curve > 0 && window.seen.open === 0, undefined, {
      polling: 50,
      timeout: 20_000,
    });
    await page.waitForTimeout(200);
  }
  zooms.push({...(await page.evaluate(() => window.seen)), busy: (await busy()) - before});
}
const at = (name, share) => {
  const values = zooms.map((zoom) => zoom[name]).sort((a, b) => a - b);
  return `${values[Math.floor(share * (values.length - 1))].toFixed(0)} ms`;
};
await cdp.send('HeapProfiler.enable');
await cdp.send('HeapProfiler.collectGarbage');
const heap = await page.evaluate(() => performance.memory?.usedJSHeapSize ?? NaN);
const most = Math.max(...zooms.map(({asked}) => asked));
console.log(`| ${zooms.length} ${drag ? 'moves' : 'zooms'}, at most ${most} requests each | median | p95 | longest |`);
console.log('|---|---|---|---|');
for (const [name, what] of [
  ['curve', 'the curve is on the screen'],
  ['all', 'everything is on the screen'],
  ['busy', 'main thread of the page'],
]) {
  console.log(`| ${what} | ${at(name, 0.5)} | ${at(name, 0.95)} | ${at(name, 1)} |`);
}
console.log(`\nScript heap after them: ${(heap / 2 ** 20).toFixed(1)} MiB.`);
await browser.close();
