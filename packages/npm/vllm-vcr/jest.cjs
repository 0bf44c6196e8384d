// jest's `test` with a cassette for each test: `test.concurrent("name", async ({ cassette }) => ...)`.

const { inspect } = require("node:util");
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

/** The row of each test of a table: another one with its name would share its cassette. */
const rows = new Map();

/** A table's tests are named by jest, so that each has a cassette by the name that it shows. The test's context follows the row's values. */
function wrapEach(each) {
  return (...table) => (name, body, options = {}) => {
    const { timeout, ...vcr } = typeof options === "number" ? { timeout: options } : options;
    const run = (...row) => {
      const { testPath, currentTestName } = expect.getState();
      const shown = inspect(row);
      if ((rows.get(currentTestName) ?? shown) !== shown) {
        throw new Error(`two rows have the name "${currentTestName}", and would share a cassette: have their values in the title`);
      }
      rows.set(currentTestName, shown);
      return withCassette(testPath, currentTestName, (cassette) => body(...row, { cassette }), vcr);
    };
    each(...table)(name, run, timeout);
  };
}

const base = globalThis.test;
const test = Object.assign(wrap(base), {
  only: Object.assign(wrap(base.only), { each: wrapEach(base.only.each) }),
  skip: base.skip,
  todo: base.todo,
  each: wrapEach(base.each),
  concurrent: Object.assign(wrap(base.concurrent), { only: wrap(base.concurrent.only), skip: base.concurrent.skip }),
});

afterAll(closeTestServer);

module.exports = { configure, it: test, test };
