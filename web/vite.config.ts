import {svelte} from '@sveltejs/vite-plugin-svelte';
import {readdirSync, readFileSync, writeFileSync} from 'node:fs';
import {join} from 'node:path';
import {brotliCompressSync} from 'node:zlib';
import {defineConfig, type Plugin} from 'vite';

// Puts FILE.br beside every file of the result that brotli makes smaller: the
// daemon sends it to a browser that takes it, and has no brotli of its own.
function brotli(): Plugin {
  let folder = '';
  return {
    name: 'brotli',
    apply: 'build',
    configResolved: (config) => void (folder = config.build.outDir),
    closeBundle() {
      for (const name of readdirSync(folder, {recursive: true}) as string[]) {
        if (!/\.(js|css|html|svg)$/.test(name)) continue;
        const plain = readFileSync(join(folder, name));
        const packed = brotliCompressSync(plain);
        if (packed.length < plain.length) writeFileSync(join(folder, `${name}.br`), packed);
      }
    },
  };
}

// The result is embedded into reprised and served under a strict content
// security policy: no inline script, no data: URL, nothing from elsewhere.
export default defineConfig({
  plugins: [svelte(), brotli()],
  build: {
    target: 'es2022',
    assetsInlineLimit: 0,
    modulePreload: false,
    reportCompressedSize: false,
  },
  server: {
    // `npm run dev` shows the page of a reprised on its usual port.
    proxy: {'^/(reprise\\.v1\\.|import)': 'http://127.0.0.1:7070'},
  },
});
