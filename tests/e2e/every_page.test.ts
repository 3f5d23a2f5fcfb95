// SPDX-License-Identifier: Apache-2.0

/**
 * Every page at three widths, dark and light: nothing is wider than the screen, nothing is logged
 * as an error, and every control is reached by the Tab key where it can be seen.
 */
import {execFileSync} from 'node:child_process';
import {mkdtempSync, readFileSync, rmSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {fileURLToPath} from 'node:url';
import type {Browser, Page} from 'playwright-core';
import {afterAll, beforeAll, expect, test} from 'vitest';
import type {Plan} from '../../web/src/gen/reprise/v1/plan_pb';
import {openPage, startBrowser} from './browser';
import {startDaemon, type Daemon} from './daemon';
import {layeredGraph, MIB} from './graph';
import {Job} from './job';

const root = (path: string): string => fileURLToPath(new URL(`../../${path}`, import.meta.url));
const GROUND = {dark: 'rgb(15, 18, 23)', light: 'rgb(246, 247, 249)'};

let daemon: Daemon;
let browser: Browser;
/** The ids of imported runs, by name. */
const imported: Record<string, string> = {};

beforeAll(async () => {
  [daemon, browser] = await Promise.all([startDaemon(), startBrowser()]);
  await planned('whole', '0.7x');
  await planned('refused', '45MiB');
  await planned('short', '1x', true);
  const folder = mkdtempSync(join(tmpdir(), 'reprise-every-page-'));
  const python = process.env['REPRISE_PYTHON'] ?? root('.venv/bin/python');
  const file = join(folder, 'snapshot.pickle');
  execFileSync(python, [root('tests/formats/snapshots.py'), file]);
  imported['snapshot'] = await upload('snapshot.pickle', readFileSync(file));
  imported['trace'] = await upload('trace.json', Buffer.from(traceWithKernels()));
  rmSync(folder, {recursive: true, force: true});
});

afterAll(async () => {
  await browser?.close();
  await daemon?.remove();
});

/** Two steps without a plan, and three under one, of which the first is traced. */
async function planned(name: string, budget: string, outOfMemory = false): Promise<void> {
  const job = new Job(daemon, name, `${name} job`);
  job.works([{name: 'torch', value: '2.13.0'}]);
  for (let i = 0; i < 2; i++) await job.step({planId: '', peakBytes: 170 * MIB, stepNs: 257e6});
  const plan: Plan = await job.plan(layeredGraph(name), budget);
  if (plan.feasible) {
    const {planId} = plan;
    const {startNs = [], bytes = []} = plan.predicted ?? {};
    const points = startNs.map((at, i): [number, number] => [Number(at), Number(bytes[i])]);
    const step = {planId, peakBytes: Number(plan.peakBytes), stepNs: Number(plan.timeNs)};
    await job.step({...step, points});
    await job.step({...step, check: [8, 0]});
    await job.step(step);
    if (outOfMemory) {
      const of = {asked: 24 * MIB, alive: 150 * MIB, free: 12 * MIB, total: 170 * MIB};
      await job.outOfMemory(plan, of);
    }
  }
  job.bye();
  await job.over;
}

/** Imports a file as curl does; returns the run's id. */
async function upload(name: string, body: Uint8Array<ArrayBuffer>): Promise<string> {
  const answer = await fetch(`${daemon.url}/import?name=${name}`, {
    method: 'POST',
    headers: {
      authorization: `Bearer ${daemon.token}`,
      'content-type': 'application/octet-stream',
    },
    body,
  });
  const text = await answer.text();
  const found = /[0-9a-f]{8}-[0-9a-f-]{27}/.exec(text);
  if (!found) throw new Error(`${name}: ${answer.status} ${text}`);
  return found[0];
}

/** A step of two ops with memory, and three kernels on two streams of a GPU. */
function traceWithKernels(): string {
  const op = (name: string, ts: number, id: number): object => ({
    ...{ph: 'X', cat: 'cpu_op', name, pid: 1, tid: 1, ts, dur: 20},
    args: {'External id': id},
  });
  const kernel = (name: string, tid: number, ts: number, id: number): object => ({
    ...{ph: 'X', cat: 'kernel', name, pid: 0, tid, ts, dur: 40},
    args: {'External id': id},
  });
  const memory = (ts: number, bytes: number, address: number, total: number): object => ({
    ...{ph: 'i', cat: 'cpu_instant_event', name: '[memory]', pid: 1, tid: 1, ts},
    args: {
      ...{Bytes: bytes, Addr: address, 'Device Id': 0, 'Device Type': 1},
      ...{'Total Allocated': total, 'Total Reserved': 4096},
    },
  });
  const step = {
    ...{ph: 'X', cat: 'user_annotation', name: 'ProfilerStep#3', pid: 1, tid: 1},
    ...{ts: 0, dur: 300, args: {}},
  };
  const events = [
    step,
    op('aten::mm', 10, 1),
    memory(12, 1024, 64, 1024),
    op('aten::gelu', 60, 2),
    memory(65, 2048, 4096, 3072),
    memory(200, -1024, 64, 2048),
    kernel('sgemm_128x128', 7, 30, 1),
    kernel('gelu_kernel', 7, 80, 2),
    kernel('all_reduce', 20, 90, 2),
  ];
  return JSON.stringify({schemaVersion: 1, traceEvents: events});
}

/** Name in pictures, path, and what is there when the page is. */
const PAGES: readonly (readonly [string, () => string, string])[] = [
  ['runs', () => '/', 'whole job'],
  ['runs-grouped', () => '/?group=ending', 'whole job'],
  ['run', () => '/runs/whole', 'At the peak'],
  ['run-what-if', () => '/runs/whole?budget=0.8x', 'what if'],
  ['run-refused', () => '/runs/refused', 'Why no plan fits'],
  ['run-out-of-memory', () => '/runs/short', 'What was alive, and what would have fitted'],
  ['oom', () => '/runs/short/oom', 'See this plan'],
  ['plan', () => '/runs/whole/plan', 'Use this plan'],
  ['graph', () => '/runs/whole/graph', 'kept for the backward pass'],
  ['memory', () => '/runs/whole/memory', 'Alive at'],
  ['snapshot', () => `/runs/${imported['snapshot']}`, 'Alive at'],
  ['trace', () => `/runs/${imported['trace']}/memory`, 'Alive at'],
  ['compare', () => '/compare?a=whole&b=short', 'Alive at the peak'],
  ['status', () => '/status', 'No job of this machine is connected.'],
  ['missing', () => '/nowhere', 'There is no page'],
];

/**
 * The controls that can be seen, as the tags and names of those that Tab does not reach.
 * Whatever listens to clicks is a control, unless an element around it has the keys.
 */
async function unreachable(page: Page): Promise<readonly string[]> {
  const count = await page.evaluate(() => {
    const keys = 'a[href],button,input,select,textarea,summary,[tabindex]';
    const seen = (element: Element | null): boolean => {
      for (let one = element; one !== null; one = one.parentElement) {
        if (one.getBoundingClientRect().width <= 1 && one.tagName !== 'OPTION') return false;
      }
      return element!.checkVisibility({visibilityProperty: true, opacityProperty: true});
    };
    const listens = (element: Element): boolean => '__click' in element;
    const wanted = [...document.querySelectorAll('*')].filter((element) => {
      if (!seen(element) || element.matches(':disabled')) return false;
      if (element.matches(keys)) return element.getAttribute('tabindex') !== '-1';
      return listens(element) && element.closest(keys) === null;
    });
    const reached = new Set<Element>();
    const hidden: Element[] = [];
    document.addEventListener('focusin', ({target}) => {
      if (!(target instanceof Element)) return;
      reached.add(target);
      if (!seen(target)) hidden.push(target);
    });
    Object.assign(window, {controls: {wanted, reached, hidden}});
    return wanted.length;
  });
  for (let i = 0; i < count + 3; i++) await page.keyboard.press('Tab');
  return page.evaluate(() => {
    const {wanted, reached, hidden} = (
      window as unknown as {
        controls: {wanted: Element[]; reached: Set<Element>; hidden: Element[]};
      }
    ).controls;
    const named = (element: Element): string =>
      `${element.tagName.toLowerCase()} ${element.getAttribute('aria-label') ?? element.textContent?.trim().slice(0, 40) ?? ''}`;
    return [
      ...wanted.filter((element) => !reached.has(element)).map((one) => `not: ${named(one)}`),
      ...hidden.map((one) => `unseen: ${named(one)}`),
    ];
  });
}

test.each(PAGES)('%s fits every screen, and is worked by keys', async (name, path, text) => {
  const {page, problems} = await openPage(browser, {width: 390});
  await page.goto(daemon.link(path()));
  await page.getByText(text).first().waitFor();
  for (const scheme of ['light', 'dark'] as const) {
    await page.emulateMedia({colorScheme: scheme});
    for (const width of [390, 1280, 1440]) {
      await page.setViewportSize({width, height: 900});
      const wide = (): Promise<number> => page.evaluate(() => document.documentElement.scrollWidth);
      const ground = (): Promise<string> =>
        page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
      await expect.poll(wide, {message: `${width} px`}).toBe(width);
      await expect.poll(ground).toBe(GROUND[scheme]);
      const pictures = process.env['PICTURES'];
      if (pictures) {
        await page.waitForTimeout(300);
        const file = `${pictures}/${name}-${width}-${scheme}.png`;
        await page.screenshot({path: file, fullPage: true});
      }
    }
  }
  for (const width of [1440, 390]) {
    await page.setViewportSize({width, height: 900});
    expect(await unreachable(page), `${width} px`).toEqual([]);
  }
  await page.close();
  expect(problems).toEqual([]);
});
