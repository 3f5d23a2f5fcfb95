// SPDX-License-Identifier: Apache-2.0

/**
 * Files that were dropped on a page or chosen, sent to the server one after
 * another. XMLHttpRequest, because fetch says nothing about what was sent. A
 * file is streamed from the disk; the page never holds it.
 */
import {place} from '../url/location.svelte';
import {runPath} from '../url/route';
import {brokenOff, readAnswer, readEnd, whyNot, type Progress} from '../data/imports';

export interface Import {
  readonly id: number;
  readonly name: string;
  readonly bytes: number;
  readonly progress: Progress;
}

class Imports {
  list: readonly Import[] = $state.raw([]);

  #count = 0;
  #queue: Promise<unknown> = Promise.resolve();
  #requests = new Map<number, XMLHttpRequest>();

  /** Goes to the run when it was the only file of its drop. */
  add(files: readonly File[]): void {
    for (const file of files) {
      const id = ++this.#count;
      const why = whyNot(file);
      const progress: Progress = why ? {phase: 'failed', why} : {phase: 'waiting'};
      this.list = [...this.list, {id, name: file.name, bytes: file.size, progress}];
      if (why) continue;
      this.#queue = this.#queue.then(async () => {
        // Taken off the list while it waited.
        if (!this.list.some((one) => one.id === id)) return;
        const end = await this.#send(id, file);
        this.#set(id, end);
        if (end.phase === 'done' && files.length === 1) {
          this.remove(id);
          place.go(runPath(end.run.runId));
        }
      });
    }
  }

  /** Takes a file off the list, and stops sending it. */
  remove(id: number): void {
    this.list = this.list.filter((one) => one.id !== id);
    this.#requests.get(id)?.abort();
  }

  #set(id: number, progress: Progress): void {
    this.list = this.list.map((one) => (one.id === id ? {...one, progress} : one));
  }

  #send(id: number, file: File): Promise<Progress> {
    return new Promise((resolve) => {
      const request = new XMLHttpRequest();
      this.#requests.set(id, request);
      const end = (progress: Progress): void => {
        this.#requests.delete(id);
        resolve(progress);
      };
      this.#set(id, {phase: 'sending', share: 0});
      request.upload.onprogress = (event) => {
        this.#set(id, {phase: 'sending', share: event.loaded / Math.max(1, file.size)});
      };
      request.upload.onload = () => this.#set(id, {phase: 'reading', share: 0});
      request.onprogress = () => {
        if (request.status === 200) this.#set(id, readAnswer(request.responseText));
      };
      request.onload = () => end(readEnd(file.name, request.status, request.responseText));
      request.onerror = () => end({phase: 'failed', why: brokenOff(file.name)});
      request.onabort = () => end({phase: 'failed', why: `${file.name}: stopped`});
      request.open('POST', `/import?name=${encodeURIComponent(file.name)}`);
      request.setRequestHeader('Content-Type', 'application/octet-stream');
      request.send(file);
    });
  }
}

export const imports = new Imports();
