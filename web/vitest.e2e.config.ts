import {fileURLToPath} from 'node:url';
import {defineConfig} from 'vitest/config';

const root = fileURLToPath(new URL('..', import.meta.url));

export default defineConfig({
  root,
  // The tests lie beside this folder, not in it.
  server: {fs: {allow: [root]}},
  test: {
    include: ['tests/e2e/**/*.test.ts'],
    environment: 'node',
    // One reprised and one browser at a time.
    fileParallelism: false,
    testTimeout: 60_000,
    expect: {poll: {timeout: 15_000, interval: 50}},
    hookTimeout: 120_000,
  },
});
