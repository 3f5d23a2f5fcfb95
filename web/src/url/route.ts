// SPDX-License-Identifier: Apache-2.0

/** Which page a path names. */
export type Route =
  | {readonly page: 'runs'}
  | {readonly page: 'run'; readonly runId: string}
  | {readonly page: 'status'}
  | {readonly page: 'compare'}
  | {readonly page: 'missing'; readonly path: string};

export function routeOf(path: string): Route {
  const parts = path.split('/').filter((part) => part !== '');
  if (parts.length === 0) return {page: 'runs'};
  if (parts.length === 1 && parts[0] === 'runs') return {page: 'runs'};
  if (parts.length === 1 && parts[0] === 'status') return {page: 'status'};
  if (parts.length === 1 && parts[0] === 'compare') return {page: 'compare'};
  if (parts.length === 2 && parts[0] === 'runs') {
    const runId = decoded(parts[1]!);
    if (runId !== undefined) return {page: 'run', runId};
  }
  return {page: 'missing', path};
}

export function runPath(runId: string): string {
  return `/runs/${encodeURIComponent(runId)}`;
}

/** Two runs beside each other. */
export function comparePath(a: string, b: string): string {
  return `/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`;
}

function decoded(part: string): string | undefined {
  try {
    return decodeURIComponent(part);
  } catch {
    return undefined;
  }
}
