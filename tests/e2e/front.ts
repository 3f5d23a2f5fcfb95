// SPDX-License-Identifier: Apache-2.0

/**
 * Pages from a folder, everything else from a reprised: a change of a page is
 * tried without building the daemon that embeds it. The daemon still answers
 * every request, so its token, its headers and its refusals are the real ones;
 * of a page or a file of the folder the body is exchanged.
 */
import {existsSync, readFileSync, statSync} from 'node:fs';
import {createServer as createHttpServer, request, type IncomingMessage} from 'node:http';
import {connect, createServer, type AddressInfo, type Socket} from 'node:net';
import {join, normalize} from 'node:path';

const TYPES: Readonly<Record<string, string>> = {
  css: 'text/css; charset=utf-8',
  html: 'text/html; charset=utf-8',
  js: 'text/javascript; charset=utf-8',
  svg: 'image/svg+xml',
};

export interface Front {
  /** HOST:PORT. */
  readonly listen: string;
  close(): Promise<void>;
}

/** `target`: where the daemon listens at the moment, HOST:PORT. */
export async function startFront(folder: string, target: () => string): Promise<Front> {
  const http = createHttpServer((incoming, outgoing) => {
    const {method, url = '/', headers} = incoming;
    const [host, port] = target().split(':');
    const asked = request({host, port, method, path: url, headers}, (answer) => {
      const file = method === 'GET' ? fileFor(folder, url, answer) : undefined;
      const kept = {...answer.headers};
      if (file === undefined) {
        outgoing.writeHead(answer.statusCode ?? 502, kept);
        answer.pipe(outgoing);
        return;
      }
      answer.resume();
      const packed = /\bbr\b/.test(String(headers['accept-encoding'])) && existsSync(`${file}.br`);
      const body = readFileSync(packed ? `${file}.br` : file);
      delete kept['content-encoding'];
      delete kept['transfer-encoding'];
      kept['content-type'] = TYPES[file.slice(file.lastIndexOf('.') + 1)];
      kept['content-length'] = String(body.length);
      if (packed) kept['content-encoding'] = 'br';
      outgoing.writeHead(200, kept);
      outgoing.end(body);
    });
    // The daemon is gone, or the browser is: so is the other side.
    asked.on('error', () => incoming.socket.destroy());
    outgoing.on('close', () => asked.destroy());
    incoming.pipe(asked);
  });

  const sockets = new Set<Socket>();
  const server = createServer((socket) => {
    sockets.add(socket);
    socket.on('close', () => sockets.delete(socket));
    socket.on('error', () => socket.destroy());
    socket.once('data', (first) => {
      // gRPC shares the port: HTTP/2 begins with these letters.
      if (first.subarray(0, 4).toString() === 'PRI ') {
        const [host, port] = target().split(':');
        const inner = connect(Number(port), host!);
        inner.on('error', () => socket.destroy());
        inner.on('close', () => socket.destroy());
        socket.on('close', () => inner.destroy());
        inner.write(first);
        socket.pipe(inner);
        inner.pipe(socket);
        return;
      }
      socket.pause();
      socket.unshift(first);
      http.emit('connection', socket);
      process.nextTick(() => socket.resume());
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    listen: `127.0.0.1:${(server.address() as AddressInfo).port}`,
    close: () =>
      new Promise((resolve) => {
        for (const socket of sockets) socket.destroy();
        server.close(() => resolve());
      }),
  };
}

/** The file of the folder that stands for what the daemon answered, if one does. */
function fileFor(folder: string, url: string, answer: IncomingMessage): string | undefined {
  const path = normalize(new URL(url, 'http://page').pathname);
  const file = join(folder, path);
  const isFile = path !== '/' && existsSync(file) && statSync(file).isFile();
  if (isFile && (answer.statusCode === 200 || answer.statusCode === 404)) return file;
  const isPage = answer.statusCode === 200 && answer.headers['content-type']?.includes('text/html');
  return isPage ? join(folder, 'index.html') : undefined;
}
