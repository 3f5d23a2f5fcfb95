import {fileURLToPath} from 'node:url';
import {defineConfig} from 'vitest/config';

const root = fileURLToPath(new URL('..', import.meta.url));

export default defineConfig({
  root,
  // The tests lie beside this folder, not in it.
  server: {fs: {allow: [root]}},
  test: {include: ['tests/web/**/*.test.ts'], environment: 'node'},
});
