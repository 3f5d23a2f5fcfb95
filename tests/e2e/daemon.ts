// SPDX-License-Identifier: Apache-2.0

/**
 * A real reprised in a folder of its own. With WEB_DIST the pages come from that
 * folder instead of from the program.
 */
import {spawn, type ChildProcess} from 'node:child_process';
import {existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {join} from 'node:path';
import {fileURLToPath} from 'node:url';
import {startFront, type Front} from './front';

const BUILT = fileURLToPath(new URL('../../build/bin/reprised', import.meta.url));

export interface Daemon {
  readonly url: string;
  /** HOST:PORT, where it says that it listens. */
  readonly listen: string;
  /** What its page and its services ask for. */
  readonly token: string;
  /** A link to a page, as a person is given it: with the token. */
  link(path: string): string;
  readonly folder: string;
  readonly socket: string;
  /** Ends it: cleanly, or as a crash would. */
  stop(signal?: 'SIGTERM' | 'SIGKILL'): Promise<void>;
  /** Starts it again on the same port and the same data. */
  start(): Promise<void>;
  /** Stops it and removes its folder. */
  remove(): Promise<void>;
}

/** The path of reprised: REPRISED, else what scripts/build leaves. */
function program(): string {
  const path = process.env['REPRISED'] ?? BUILT;
  if (!existsSync(path))
    throw new Error(`${path}: no reprised here; run scripts/build or set REPRISED`);
  return path;
}

/** With `tokens`, the text of a token file, whose first line is a token alone. */
export async function startDaemon(tokens?: string): Promise<Daemon> {
  const folder = mkdtempSync(join(tmpdir(), 'reprise-e2e-'));
  const tokenFile = join(folder, tokens === undefined ? 'data/token' : 'tokens');
  if (tokens !== undefined) writeFileSync(tokenFile, tokens, {mode: 0o600});
  const socket = join(folder, 'agent.sock');
  let child: ChildProcess | undefined;
  let listen = '127.0.0.1:0';
  let said = '';
  let front: Front | undefined;

  async function start(): Promise<void> {
    said = '';
    const started = spawn(
      program(),
      ['--listen', listen, '--data-dir', join(folder, 'data'), '--agent-socket', socket].concat(
        tokens === undefined ? [] : ['--token-file', tokenFile],
      ),
      {
        stdio: ['ignore', 'pipe', 'pipe'],
        env: {...process.env, REPRISE_SOCKET: socket},
      },
    );
    child = started;
    const keep = (part: Buffer): void => void (said += part.toString());
    started.stdout.on('data', keep);
    started.stderr.on('data', keep);
    const found = await until(() => {
      if (started.exitCode !== null) throw new Error(`reprised ended: ${said}`);
      return serverFile(folder, started.pid);
    }, `reprised did not say where it listens: ${said}`);
    listen = found.listen;
  }

  async function stop(signal: 'SIGTERM' | 'SIGKILL' = 'SIGTERM'): Promise<void> {
    const running = child;
    child = undefined;
    if (!running || running.exitCode !== null) return;
    const ended = new Promise((resolve) => running.once('exit', resolve));
    running.kill(signal);
    await ended;
  }

  await start();
  const pages = process.env['WEB_DIST'];
  if (pages) front = await startFront(pages, () => listen);
  const daemon: Daemon = {
    get url() {
      return `http://${front?.listen ?? listen}`;
    },
    get listen() {
      return listen;
    },
    get token() {
      return readFileSync(tokenFile, 'utf8').split('\n')[0]!.trim();
    },
    link(path) {
      return `${daemon.url}${path}${path.includes('?') ? '&' : '?'}token=${daemon.token}`;
    },
    folder,
    socket,
    stop,
    start,
    async remove() {
      await stop();
      await front?.close();
      rmSync(folder, {recursive: true, force: true});
    },
  };
  return daemon;
}

/** The file a daemon writes beside its socket once it listens. */
function serverFile(folder: string, pid: number | undefined): {listen: string} | undefined {
  const path = join(folder, 'server.json');
  if (!existsSync(path)) return undefined;
  const file = JSON.parse(readFileSync(path, 'utf8')) as {
    listen: string;
    pid: number;
  };
  // One that a killed daemon left names another process.
  return file.pid === pid ? file : undefined;
}

/** The first defined answer; asks every few milliseconds, for 20 seconds. */
export async function until<T>(ask: () => T | undefined, otherwise: string): Promise<T> {
  for (const start = Date.now(); Date.now() - start < 20_000;) {
    const answer = ask();
    if (answer !== undefined) return answer;
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  throw new Error(otherwise);
}
