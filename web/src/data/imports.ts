// SPDX-License-Identifier: Apache-2.0

/**
 * Files on their way to the server, in words and numbers. The server answers an
 * upload by lines of JSON (server/net/import_upload.h):
 *
 *   {"progress":0.25}   {"run":{"runId":...}}   {"error":{"message":...}}
 */
import {formatBytes} from '../format/units';

/** The most that the server takes: asked here first, before 4 GiB are sent. */
export const MOST_BYTES = 4 * 2 ** 30;

export interface ImportedRun {
  readonly runId: string;
  readonly name: string;
  /** "memory snapshot", "profiler trace", "step graph". */
  readonly format: string;
  readonly ops: number;
}

export type Progress =
  | {readonly phase: 'waiting'}
  /** `share` of the file is with the server. */
  | {readonly phase: 'sending'; readonly share: number}
  | {readonly phase: 'reading'; readonly share: number}
  | {readonly phase: 'done'; readonly run: ImportedRun}
  | {readonly phase: 'failed'; readonly why: string};

/** What the answer says so far; its last line may still be incomplete. */
export function readAnswer(text: string): Progress {
  let progress: Progress = {phase: 'reading', share: 0};
  for (const line of text.split('\n')) {
    const said = parsed(line);
    if (said?.error) return {phase: 'failed', why: said.error.message};
    if (said?.run) return {phase: 'done', run: said.run};
    if (said?.progress !== undefined) progress = {phase: 'reading', share: said.progress};
  }
  return progress;
}

/** The end of an upload: an answer that breaks off is a failure. */
export function readEnd(name: string, httpStatus: number, text: string): Progress {
  if (httpStatus === 200) {
    const said = readAnswer(text);
    return said.phase === 'reading' ? {phase: 'failed', why: brokenOff(name)} : said;
  }
  const why = (parsed(text) as {message?: string} | undefined)?.message ?? text.trim();
  return {phase: 'failed', why: why || brokenOff(name)};
}

export function brokenOff(name: string): string {
  return `${name}: the connection to the server broke off; drop it again`;
}

/** Why a file need not be sent at all; undefined: it may be. */
export function whyNot(file: {readonly name: string; readonly size: number}): string | undefined {
  if (file.size === 0) return `${file.name}: is empty, or a folder`;
  if (file.size > MOST_BYTES) {
    const most = formatBytes(MOST_BYTES);
    return `${file.name}: is ${formatBytes(file.size)}, and ${most} is the most that is taken here; use \`reprise import\``;
  }
  return undefined;
}

/** An error under the name of its file need not say the name again. */
export function withoutName(name: string, why: string): string {
  return why.startsWith(`${name}: `) ? why.slice(name.length + 2) : why;
}

export function progressText(progress: Progress): string {
  const percent = (share: number): string => `${Math.floor(share * 100)} %`;
  switch (progress.phase) {
    case 'waiting':
      return 'waits for the one before';
    case 'sending':
      return `sending, ${percent(progress.share)}`;
    case 'reading':
      return `reading, ${percent(progress.share)}`;
    case 'done':
      return progress.run.ops > 0 ? `${progress.run.format}, can be planned` : progress.run.format;
    case 'failed':
      return progress.why;
  }
}

/** Of the bar under a file: sending is its first tenth, as the server is here. */
export function barShare(progress: Progress): number {
  if (progress.phase === 'sending') return progress.share * 0.1;
  if (progress.phase === 'reading') return 0.1 + progress.share * 0.9;
  return progress.phase === 'done' ? 1 : 0;
}

interface Said {
  readonly progress?: number;
  readonly run?: ImportedRun;
  readonly error?: {readonly message: string};
}

function parsed(line: string): Said | undefined {
  if (line === '') return undefined;
  try {
    return JSON.parse(line) as Said;
  } catch {
    return undefined;
  }
}
