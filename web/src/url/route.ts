// SPDX-License-Identifier: Apache-2.0

/** The pages of one run. */
export const RUN_PAGES = ['overview', 'oom', 'plan', 'graph', 'memory'] as const;
export type RunPage = (typeof RUN_PAGES)[number];

/** Which page a path names. */
export type Route =
  | {readonly page: 'runs'}
  | {readonly page: 'run'; readonly runId: string; readonly view: RunPage}
  | {readonly page: 'status'}
  | {readonly page: 'compare'}
  | {readonly page: 'missing'; readonly path: string};

export function routeOf(path: string): Route {
  const parts = path.split('/').filter((part) => part !== '');
  if (parts.length === 0) return {page: 'runs'};
  if (parts.length === 1 && parts[0] === 'runs') return {page: 'runs'};
  if (parts.length === 1 && parts[0] === 'status') return {page: 'status'};
  if (parts.length === 1 && parts[0] === 'compare') return {page: 'compare'};
  if ((parts.length === 2 || parts.length === 3) && parts[0] === 'runs') {
    const runId = decoded(parts[1]!);
    const view = RUN_PAGES.find((page) => page === (parts[2] ?? 'overview'));
    if (runId !== undefined && view !== undefined) return {page: 'run', runId, view};
  }
  return {page: 'missing', path};
}

/** With a what-if, if there is one. */
export function runPath(runId: string, page: RunPage = 'overview', budget = ''): string {
  const path = `/runs/${encodeURIComponent(runId)}${page === 'overview' ? '' : `/${page}`}`;
  return budget === '' ? path : `${path}?budget=${encodeURIComponent(budget)}`;
}

/** Starts a server that has ended, and prints the link to this page or the nearest one. */
export function againCommand(route: Route): string {
  return `reprise show ${route.page === 'run' ? route.runId : 'latest'}`;
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
