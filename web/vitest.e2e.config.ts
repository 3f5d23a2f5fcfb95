import {defineConfig} from 'vitest/config';

// One reprised and one browser at a time: the tests of a file share them.
export default defineConfig({
  root: '..',
  test: {
    include: ['tests/e2e/**/*.test.ts'],
    environment: 'node',
    fileParallelism: false,
    testTimeout: 60_000,
    hookTimeout: 120_000,
  },
});
