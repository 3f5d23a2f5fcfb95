import js from '@eslint/js';
import svelte from 'eslint-plugin-svelte';
import globals from 'globals';
import ts from 'typescript-eslint';

// Run from the root of the repository: tests/web and tests/e2e are checked too.
export default ts.config(
  {ignores: ['**/node_modules', 'web/dist', 'web/src/gen']},
  js.configs.recommended,
  ...ts.configs.strict,
  ...svelte.configs.recommended,
  {
    languageOptions: {globals: {...globals.browser, ...globals.node}},
    rules: {
      // The compiler checks indexes; a `!` after a bounds check is the idiom.
      '@typescript-eslint/no-non-null-assertion': 'off',
      'no-undef': 'off',
      '@typescript-eslint/no-unused-vars': [
        'error',
        {argsIgnorePattern: '^_$', varsIgnorePattern: '^_$', destructuredArrayIgnorePattern: '^_$'},
      ],
      eqeqeq: 'error',
    },
  },
  {
    files: ['**/*.svelte', '**/*.svelte.ts'],
    languageOptions: {parserOptions: {parser: ts.parser}},
    rules: {
      // Routes are our own: there is no SvelteKit to resolve them.
      'svelte/no-navigation-without-resolve': 'off',
    },
  },
);
