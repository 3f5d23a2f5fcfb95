// SPDX-License-Identifier: Apache-2.0
// Loaded before the program: asks for what the page of this address will need first. The program
// takes the answer (src/api/early.ts) if its own first request has the same bytes.
(function () {
  var path = location.pathname.split('/').filter(Boolean);

  // The build names the files of each page in an attribute of this script.
  var files = JSON.parse(document.currentScript.dataset.pages || '{}');
  var pages = path[0] === 'runs' && path[1] ? ['run', 'run/' + (path[2] || '')] : [path[0]];
  pages.forEach(function (page) {
    (Object.hasOwn(files, page) ? files[page] : []).forEach(function (file) {
      var link = document.createElement('link');
      link.crossOrigin = '';
      if (/\.css$/.test(file)) {
        link.rel = 'preload';
        link.as = 'style';
      } else {
        link.rel = 'modulepreload';
      }
      link.href = '/' + file;
      document.head.append(link);
    });
  });

  // Fields of protobuf messages, by number.
  function varint(number, value) {
    var bytes = [number << 3];
    for (; value >= 128; value = Math.floor(value / 128)) bytes.push((value % 128) | 128);
    return bytes.concat(value);
  }
  function text(number, value) {
    var bytes = Array.from(new TextEncoder().encode(value));
    return [(number << 3) | 2, bytes.length].concat(bytes);
  }
  function ask(method, type, message) {
    var stop = new AbortController();
    var url = location.origin + '/reprise.v1.Query/' + method;
    var body = new Uint8Array(message);
    var answer = fetch(url, {
      method: 'POST',
      redirect: 'error',
      headers: {'content-type': type, 'connect-protocol-version': '1'},
      signal: stop.signal,
      body: body,
    });
    // The program tells of an error, should it take this answer.
    answer.catch(function () {});
    window.repriseEarly = {url: url, body: body, answer: answer, stop: stop};
  }
  if (path.length === 0 && location.search === '') {
    // The first 50 runs.
    ask('ListRuns', 'application/proto', varint(1, 50));
  } else if (path[0] === 'runs' && /^[\w-]{1,120}$/.test(path[1] || '')) {
    // The run, with its steps in 700 buckets at most.
    var message = text(1, path[1]).concat(varint(2, 700));
    ask('WatchRun', 'application/connect+proto', [0, 0, 0, 0, message.length].concat(message));
  }
})();
