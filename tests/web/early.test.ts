// SPDX-License-Identifier: Apache-2.0
import {create, toBinary} from '@bufbuild/protobuf';
import {encodeEnvelope} from '@connectrpc/connect/protocol';
import {readFileSync} from 'node:fs';
import {fileURLToPath} from 'node:url';
import {runInNewContext} from 'node:vm';
import {describe, expect, test, vi} from 'vitest';
import {fetchWith, type Early} from '../../web/src/api/early';
import {FIRST_RUNS, listRequest} from '../../web/src/data/runs';
import {BUCKETS} from '../../web/src/data/steps';
import {ListRunsRequestSchema, WatchRunRequestSchema} from '../../web/src/gen/reprise/v1/query_pb';

const ORIGIN = 'http://127.0.0.1:7070';
const script = readFileSync(
  fileURLToPath(new URL('../../web/public/early.js', import.meta.url)),
  'utf8',
);

/** Runs the script as a browser does at this address; returns its request and its links. */
function at(address: string, pages: Readonly<Record<string, readonly string[]>> = {}) {
  const {pathname, search, origin} = new URL(address, ORIGIN);
  const links: Record<string, string>[] = [];
  const window: {repriseEarly?: Early} = {};
  runInNewContext(script, {
    AbortController,
    TextEncoder,
    Uint8Array,
    document: {
      createElement: () => ({}),
      currentScript: {dataset: {pages: JSON.stringify(pages)}},
      head: {append: (link: Record<string, string>) => links.push(link)},
    },
    fetch: () => Promise.resolve(new Response()),
    location: {pathname, search, origin},
    window,
  });
  return {early: window.repriseEarly, links};
}

describe('what is asked before the program is there', () => {
  test('is what the list of runs asks first', () => {
    const request = create(ListRunsRequestSchema, listRequest({}, FIRST_RUNS));

    const {early} = at('/');

    expect(early?.url).toBe(`${ORIGIN}/reprise.v1.Query/ListRuns`);
    expect(early?.body).toEqual(toBinary(ListRunsRequestSchema, request));
  });

  test('is what the page of a run asks first', () => {
    const runId = '01890a5d-ac96-774b-bcce-b302099a8057';
    const request = create(WatchRunRequestSchema, {runId, buckets: BUCKETS});

    for (const page of ['', '/memory', '/plan?budget=4GiB']) {
      const {early} = at(`/runs/${runId}${page}`);

      expect(early?.url).toBe(`${ORIGIN}/reprise.v1.Query/WatchRun`);
      expect(early?.body).toEqual(encodeEnvelope(0, toBinary(WatchRunRequestSchema, request)));
    }
  });

  test('is nothing where the address says more than that, or less', () => {
    for (const address of ['/?q=resnet', '/status', '/compare?a=1&b=2', '/runs/a%20b']) {
      expect(at(address).early).toBeUndefined();
    }
  });

  test('names the files of the page, and of the pages in it', () => {
    const pages = {run: ['assets/Run-1.js', 'assets/Run-1.css'], 'run/plan': ['assets/Plan-1.js']};

    const {links} = at('/runs/1/plan', pages);

    expect(links.map(({rel, href}) => [rel, href])).toEqual([
      ['modulepreload', '/assets/Run-1.js'],
      ['preload', '/assets/Run-1.css'],
      ['modulepreload', '/assets/Plan-1.js'],
    ]);
    expect(at('/constructor', pages).links).toEqual([]);
  });
});

describe('its answer', () => {
  const early = (): Early => ({
    url: 'u',
    body: Uint8Array.of(1),
    answer: Promise.resolve(new Response('early')),
    stop: new AbortController(),
  });
  const send = vi.fn(() => Promise.resolve(new Response('sent')));
  const textOf = async (response: Promise<Response>): Promise<string> => (await response).text();

  test('is that of the first request, if this is the same, and of no other', async () => {
    const fetch = fetchWith(early(), send);

    expect(await textOf(fetch('u', {body: Uint8Array.of(1)}))).toBe('early');
    expect(await textOf(fetch('u', {body: Uint8Array.of(1)}))).toBe('sent');
  });

  test('is let go of where the first request is another one', async () => {
    for (const [url, body] of [
      ['v', Uint8Array.of(1)],
      ['u', Uint8Array.of(2)],
    ] as const) {
      const one = early();

      expect(await textOf(fetchWith(one, send)(url, {body}))).toBe('sent');
      expect(one.stop.signal.aborted).toBe(true);
    }
  });

  test('ends when whoever took it stops', async () => {
    const one = early();
    const abort = new AbortController();
    await fetchWith(one, send)('u', {body: Uint8Array.of(1), signal: abort.signal});

    abort.abort();

    expect(one.stop.signal.aborted).toBe(true);
  });
});
