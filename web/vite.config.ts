import {svelte} from '@sveltejs/vite-plugin-svelte';
import {defineConfig} from 'vite';

// The result is embedded into reprised and served under a strict content
// security policy: no inline script, no data: URL, nothing from elsewhere.
export default defineConfig({
  plugins: [svelte()],
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
