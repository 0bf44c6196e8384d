// jest's `test` with a cassette for each test: `test.concurrent("name", async ({ cassette }) => ...)`.

const { closeTestServer, configure, withCassette } = require("./index.cjs");

const names = new Set();

function wrap(define) {
  return (name, body, options = {}) => {
    const { timeout, ...vcr } = typeof options === "number" ? { timeout: options } : options;
    const key = vcr.cassette ?? name;
    if (names.has(key)) {
      throw new Error(`two tests of this file are called "${name}", and would share a cassette: rename one, or give one { cassette: "NAME.yaml" }`);
    }
    names.add(key);
    const file = expect.getState().testPath;
    define(name, () => withCassette(file, name, (cassette) => body({ cassette }), vcr), timeout);
  };
}

const base = globalThis.test;
const test = wrap(base);
test.only = wrap(base.only);
test.skip = base.skip;
test.todo = base.todo;
test.concurrent = wrap(base.concurrent);
test.concurrent.only = wrap(base.concurrent.only);
test.concurrent.skip = base.concurrent.skip;

afterAll(closeTestServer);

module.exports = { configure, it: test, test };
