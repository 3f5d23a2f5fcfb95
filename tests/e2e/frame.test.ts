// SPDX-License-Identifier: Apache-2.0

/** The frame of every page: the link with the token, the state of the server, restarts, help, light and dark. */
import {beforeAll, describe, expect, test} from 'vitest';
import {openPage} from './browser';
import {MIB} from './graph';
import {Job} from './job';
import {startSite} from './site';
import {sentenceOf, verdict, wholeRun} from './whole_run';

const site = startSite();

beforeAll(async () => {
  const {job} = await wholeRun(site.daemon, 'whole', '0.6x');
  job.bye();
});

test('has help behind a key', async () => {
  const page = await site.open('/runs/whole');
  await page.getByRole('status', {name: 'Verdict'}).waitFor();

  await page.keyboard.press('?');
  await page.getByRole('dialog', {name: 'Keys and symbols'}).waitFor();
  await page.keyboard.press('Escape');

  await page.getByRole('dialog').waitFor({state: 'hidden'});
});

test('is dark from its first paint where the system is, and light on request', async () => {
  const page = await site.open('/runs/whole', {dark: true});
  const ground = (): Promise<string> =>
    page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);

  expect(await ground()).toBe('rgb(15, 18, 23)');
  await page.getByRole('button', {name: 'Light or dark'}).click();
  expect(await ground()).toBe('rgb(246, 247, 249)');
  await page.reload();
  expect(await ground()).toBe('rgb(246, 247, 249)');
});

describe('the server', () => {
  test('opens by the link it prints alone, and then by its bare address', async () => {
    const {page, problems} = await openPage(site.browser);
    const refused = await page.goto(site.daemon.url);
    expect(refused?.status()).toBe(401);
    expect(await page.getByText('open the link that').isVisible()).toBe(true);

    await page.goto(site.daemon.link('/status'));
    await page.getByText(site.daemon.socket).waitFor();
    expect(page.url()).toBe(`${site.daemon.url}/status`);
    await page.goto(site.daemon.url);
    await page.getByRole('heading', {name: 'Runs'}).waitFor();

    const cookies = await page.context().cookies();
    expect(cookies.map(({httpOnly, sameSite}) => ({httpOnly, sameSite}))).toEqual([
      {httpOnly: true, sameSite: 'Strict'},
    ]);
    expect(JSON.stringify(cookies)).not.toContain(site.daemon.token);
    expect(problems).toEqual([]);
    await page.close();
  });

  test('has a page of its own', async () => {
    const page = await site.open('/status');

    await page.getByRole('status').waitFor();

    expect(await page.getByText(site.daemon.socket).isVisible()).toBe(true);
    expect(await page.getByText(site.daemon.listen, {exact: true}).isVisible()).toBe(true);
  });

  test('may be killed: the page says so, keeps what it has, and how it is opened again', async () => {
    const page = await site.open('/runs/whole');
    const sentence = await sentenceOf(site.daemon, 'whole');
    await expect.poll(() => verdict(page)).toBe(sentence);

    await site.daemon.stop('SIGKILL');
    await page.getByRole('alert').getByText('does not answer').waitFor();

    // Whoever took its port meanwhile may have been sent the cookie: it is worth nothing now.
    await site.daemon.start();
    await page.getByRole('alert').getByText('has a new token').waitFor();
    await page.getByRole('alert').getByText('reprise show whole').waitFor();
    expect(await verdict(page)).toBe(sentence);
    await page.goto(site.daemon.link('/runs/whole'));
    await expect.poll(() => verdict(page)).toBe(sentence);
  });

  test('may end: the page says so, keeps what it has, and goes on by itself', async () => {
    const page = await site.open('/runs/whole');
    const sentence = await sentenceOf(site.daemon, 'whole');
    await expect.poll(() => verdict(page)).toBe(sentence);

    await site.daemon.stop();
    await page.getByRole('alert').getByText('does not answer').waitFor();
    await page.getByRole('alert').getByText('reprise show whole').waitFor();
    expect(await verdict(page)).toBe(sentence);

    await site.daemon.start();
    await page.getByRole('alert').waitFor({state: 'detached'});
    await page.getByText('connected', {exact: true}).waitFor();
    await expect.poll(() => verdict(page)).toBe(await sentenceOf(site.daemon, 'whole'));

    // And it is live again: a run that begins now shows up.
    const job = new Job(site.daemon, 'after', 'after the restart');
    await job.step({planId: '', peakBytes: MIB, stepNs: 1e6});
    await page.getByRole('link', {name: 'Runs'}).click();
    await page.getByRole('link', {name: 'after the restart'}).waitFor();
    job.bye();
  });
});
