// SPDX-License-Identifier: Apache-2.0
// Loaded before the style sheet: the page is light or dark from its first paint.
(function () {
  var dark = matchMedia('(prefers-color-scheme: dark)');
  function chosen() {
    try {
      return localStorage.getItem('reprise-theme');
    } catch {
      return null; // storage is blocked: follow the system
    }
  }
  function apply() {
    var theme = chosen();
    if (theme !== 'light' && theme !== 'dark') theme = dark.matches ? 'dark' : 'light';
    if (document.documentElement.dataset.theme === theme) return;
    document.documentElement.dataset.theme = theme;
    dispatchEvent(new Event('reprise-theme'));
  }
  apply();
  dark.addEventListener('change', apply);
  addEventListener('storage', apply);
})();
