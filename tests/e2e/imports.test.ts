// SPDX-License-Identifier: Apache-2.0

/** Files of PyTorch and of Reprise, dropped on the page. */
import {execFileSync} from 'node:child_process';
import {mkdtempSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {fileURLToPath} from 'node:url';
import type {Browser, Page} from 'playwright-core';
import {afterAll, beforeAll, expect, onTestFinished, test} from 'vitest';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';

const root = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const python = process.env['REPRISE_PYTHON'] ?? root('.venv/bin/python');

let daemon: Daemon;
let browser: Browser;
let folder: string;

beforeAll(async () => {
  folder = mkdtempSync(join(tmpdir(), 'reprise-imports-'));
  const write = (script: string, file: string): void =>
    void execFileSync(python, [root(`tests/formats/${script}`), join(folder, file)]);
  write('snapshots.py', 'snapshot.pickle');
  write('profiled_step.py', 'trace.json');
  [daemon, browser] = await Promise.all([startDaemon(), startBrowser()]);
});

afterAll(async () => {
  await browser?.close();
  await daemon?.remove();
  rmSync(folder, {recursive: true, force: true});
});

async function open(
  options: Parameters<typeof openPage>[1] = {},
  url = daemon.link('/'),
): Promise<Page> {
  const {page, problems} = await openPage(browser, options);
  onTestFinished(async () => {
    await page.close();
    expect(problems).toEqual([]);
  });
  await page.goto(daemon.link('/'));
  await page.getByRole('heading', {name: 'Runs'}).waitFor();
  if (url !== daemon.link('/')) await page.goto(url);
  return page;
}

/** With SHOTS, a picture of the whole page for people. */
async function look(page: Page, name: string): Promise<void> {
  const shots = process.env['SHOTS'];
  if (shots) await page.screenshot({path: join(shots, `${name}.png`), fullPage: true});
}

/** Drags files over the page and lets them go, as a browser tells the page. */
async function drop(page: Page, names: readonly string[]): Promise<void> {
  const files = names.map((name) => [name, readFileSync(join(folder, name), 'base64')] as const);
  const data = await page.evaluateHandle((all) => {
    const transfer = new DataTransfer();
    for (const [name, text] of all) {
      const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
      transfer.items.add(new File([bytes], name));
    }
    return transfer;
  }, files);
  await page.dispatchEvent('body', 'dragenter', {dataTransfer: data});
  await page.getByText('Drop it here').waitFor();
  await page.dispatchEvent('body', 'drop', {dataTransfer: data});
  await page.getByText('Drop it here').waitFor({state: 'detached'});
}

test('a profiler trace opens as a run, and is planned there', async () => {
  const page = await open();

  await drop(page, ['trace.json']);

  await page.getByRole('heading', {name: 'trace.json'}).waitFor();
  expect(page.url()).toMatch(/\/runs\/[0-9a-f-]{36}$/);
  await page.getByRole('application', {name: 'without a plan'}).waitFor();
  // The curve is there before any plan, and so is a form for the first one.
  const form = page.getByRole('region', {name: 'Plan', exact: true});
  await form.getByText('is without a plan').waitFor();
  // So is what was alive at the peak.
  const peak = page.getByRole('region', {name: 'At the peak'});
  await peak.getByText(/in \d+ storages?, beside the static memory/).waitFor();
  await peak.getByRole('button', {name: 'with the plan', disabled: true}).waitFor();
  await form.getByLabel('Budget, typed').fill('0.99x');
  await form.getByRole('button', {name: 'Plan'}).click();

  const verdict = page.getByRole('status', {name: 'Verdict'});
  await expect.poll(() => verdict.textContent()).toMatch(/^(It fits|Nothing fits) in /);
  await page.getByRole('region', {name: 'Budget'}).waitFor();
  expect(await form.count()).toBe(0);
});

/** What the fixture holds (tests/formats/snapshots.py): its peak is 50 us after its first event. */
test('a memory snapshot opens as a viewer: who is alive at any instant, and where', async () => {
  const page = await open({width: 1440});

  await page.getByRole('button', {name: 'Import a file'}).waitFor();
  await page.getByLabel('Files to import').setInputFiles(join(folder, 'snapshot.pickle'));

  await page.getByRole('heading', {name: 'snapshot.pickle'}).waitFor();
  const curve = page.getByRole('region', {name: 'Memory over the recording'});
  await curve.getByRole('application', {name: 'peak 5.9 KiB after 50 us'}).waitFor();
  const alive = page.getByRole('region', {name: 'Alive at the instant'});
  // x of 1000 and y of 2000 bytes, and the 3000 that were there before.
  await alive.getByText('5.9 KiB in 3 allocations').waitFor();
  await alive.getByRole('button', {name: 'one by one'}).click();
  expect(await alive.getByRole('row').count()).toBe(4);
  await alive.getByRole('button', {name: 'model.py:12 forward'}).click();
  await alive.getByText('/home/me/train.py:7 main').waitFor();
  expect(await alive.getByText('allocated in the forward of a module').first().isVisible()).toBe(
    true,
  );

  await alive.getByRole('searchbox').fill('model.py:11');
  await alive.getByText('1 allocation with 1000 B match').waitFor();
  await alive.getByRole('searchbox').fill('');

  // After x is freed, and back to the peak with a key.
  await curve.getByRole('application').focus();
  await page.keyboard.press(']');
  await alive.getByRole('heading', {name: 'Alive at 300 us'}).waitFor();
  expect(new URL(page.url()).searchParams.get('at')).toBe('300us');
  await page.keyboard.press('p');
  await alive.getByRole('heading', {name: 'Alive at 50 us'}).waitFor();

  // What the keys go to is read out.
  await page.keyboard.press('ArrowRight');
  await expect
    .poll(() => curve.locator('[aria-live]').textContent())
    .toMatch(/after the start, most alive [\d.]+ KiB/);
  await page.keyboard.press('p');
  await alive.getByRole('heading', {name: 'Alive at 50 us'}).waitFor();

  expect(await page.getByRole('region', {name: 'Plan', exact: true}).count()).toBe(0);
  await look(page, 'memory-1440-light');
  const there = page.url();

  const phone = await open({width: 390, dark: true}, there);
  await phone.getByText('5.9 KiB in 3 allocations').waitFor();
  expect(await phone.evaluate(() => document.documentElement.scrollWidth)).toBe(390);
  await look(phone, 'memory-390-dark');
});

test('the flame graph of a snapshot is worked by keys, from the callers and from the owners', async () => {
  const page = await open();
  await page.getByLabel('Files to import').setInputFiles(join(folder, 'snapshot.pickle'));
  const flame = page.getByRole('group', {name: 'Flame graph'});
  const shown = (): Promise<string[]> =>
    flame
      .getByRole('button')
      .evaluateAll((all) => all.map((one) => one.getAttribute('title')!.split(', ')[0]!));
  const [root, rest, main] = ['', ' › not known', ' › train.py:7 main'].map((path) => `all${path}`);
  const [all, half] = [`${root}: 5.9 KiB`, `${main}: 2.9 KiB`];
  const below = [`${main} › model.py:12 forward: 2.0 KiB`, `${main} › model.py:11 forward: 1000 B`];

  await expect.poll(shown).toEqual([all, `${rest}: 2.9 KiB`, half, ...below]);
  await flame.getByRole('button', {name: all}).focus();
  await page.keyboard.press('ArrowDown');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('Enter');
  await expect.poll(shown).toEqual([all, half, ...below]);
  expect(await page.locator(':focus').getAttribute('title')).toBe(`${half}, 50.0 %, activations`);
  await page.keyboard.press('Escape');
  await expect.poll(shown).toEqual([all, `${rest}: 2.9 KiB`, half, ...below]);
  // A click does the same.
  await flame.getByRole('button', {name: rest!}).click();
  await expect.poll(shown).toEqual([all, `${rest}: 2.9 KiB`]);
  await flame.getByRole('button', {name: all}).click();

  await page.getByRole('button', {name: 'inverted'}).click();

  const title = 'all › model.py:12 forward › train.py:7 main: 2.0 KiB, 33.3 %, activations';
  await flame.getByTitle(title).waitFor();
});

test('several files at once stay on a list, and each says how it went', async () => {
  writeFileSync(join(folder, 'bad.json'), '{"traceEvents":[{"ph":"X"');
  writeFileSync(join(folder, 'empty.json'), '');
  const page = await open();

  await drop(page, ['bad.json', 'snapshot.pickle', 'empty.json']);

  const list = page.getByRole('region', {name: 'Imports'});
  await list.getByText('memory snapshot', {exact: true}).waitFor();
  const said = await list.getByRole('alert').allTextContents();
  expect(said[0]).toBe('byte 25: the JSON ends too early');
  expect(said[1]).toBe('is empty, or a folder');
  await list.getByRole('button', {name: 'Take bad.json off the list'}).click();
  expect(await list.getByRole('alert').count()).toBe(1);
  await list.getByRole('link', {name: 'Open'}).click();
  await page.getByRole('heading', {name: 'snapshot.pickle'}).waitFor();
});

test('text that is dragged over the page is no file', async () => {
  const page = await open();
  const data = await page.evaluateHandle(() => {
    const transfer = new DataTransfer();
    transfer.setData('text/plain', 'hello');
    return transfer;
  });

  await page.dispatchEvent('body', 'dragenter', {dataTransfer: data});
  await page.dispatchEvent('body', 'drop', {dataTransfer: data});

  expect(await page.getByText('Drop it here').count()).toBe(0);
});
