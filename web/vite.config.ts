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

// Writes the files of each page into index.html, where public/early.js finds them: a browser that
// opens the page fetches them beside the program, not after it. A page is named by the beginning of
// its address: RunPlan.svelte is run/plan.
function pageFiles(): Plugin {
  return {
    name: 'page-files',
    apply: 'build',
    transformIndexHtml: {
      order: 'post',
      handler(html, {bundle = {}}) {
        const files: Record<string, string[]> = {};
        for (const chunk of Object.values(bundle)) {
          if (chunk.type !== 'chunk' || !chunk.isDynamicEntry) continue;
          const source = `${chunk.name}.svelte`;
          if (!chunk.moduleIds.some((id) => id.endsWith(`/src/pages/${source}`))) continue;
          const needed = new Set<string>();
          const add = (name: string): void => {
            const one = bundle[name];
            if (one?.type !== 'chunk' || one.isEntry || needed.has(name)) return;
            needed.add(name);
            one.imports.forEach(add);
            one.viteMetadata?.importedCss.forEach((css) => needed.add(css));
          };
          add(chunk.fileName);
          files[chunk.name.replace(/^Run(?=[A-Z])/, 'run/').toLowerCase()] = [...needed];
        }
        if (!files['run/plan']) throw new Error('no page is fetched by itself');
        const script = '<script src="/early.js"';
        if (!html.includes(script)) throw new Error(`index.html has no ${script}`);
        return html.replace(script, `${script} data-pages='${JSON.stringify(files)}'`);
      },
    },
  };
}

// The result is embedded into reprised and served under a strict content
// security policy: no inline script, no data: URL, nothing from elsewhere.
export default defineConfig({
  plugins: [svelte(), pageFiles(), brotli()],
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
