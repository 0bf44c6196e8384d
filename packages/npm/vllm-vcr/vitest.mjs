// vitest's `test` with a cassette for each test: `test.concurrent("name", async ({ cassette }) => ...)`.

import { relative } from "node:path";
import { afterAll, test as base } from "vitest";
import { cassetteOf, closeTestServer, configure, failureOf, openFor } from "./index.cjs";

function nameOf(task) {
  const names = [];
  for (let at = task; at && at !== task.file; at = at.suite) names.unshift(at.name);
  return names.join(" ");
}

/** Which test has a cassette: two that share one without knowing would consume each other's records. */
const known = new Map();

export const test = base.extend({
  /** Options of a test's cassette: `match`, `onMiss`, `failOn`, `cassette`. */
  vcr: {},
  cassette: async ({ task, vcr }, use) => {
    const name = nameOf(task);
    const key = vcr.cassette ?? cassetteOf(task.file.filepath, name);
    const other = known.get(key);
    if (other !== undefined && other !== task.id) {
      throw new Error(`two tests of ${relative(process.cwd(), task.file.filepath)} have the cassette of "${name}": rename one`);
    }
    known.set(key, task.id);
    const session = await openFor(task.file.filepath, name, vcr);
    let hasPassed = false;
    // Those of earlier tries of a test that is tried again.
    const earlier = task.result?.errors?.length ?? 0;
    try {
      await use(session);
      const hasFailed = (task.result?.errors?.length ?? 0) > earlier && !task.fails;
      const failure = await failureOf(session, hasFailed ? [] : vcr.failOn);
      // That a cassette does not exist stands in place of what the test made of it.
      if (failure) task.result?.errors?.splice(earlier);
      if (failure) throw failure;
      hasPassed = !hasFailed;
    } finally {
      await session.end({ drop: !hasPassed });
    }
  },
});

export const it = test;

afterAll(closeTestServer);

export { configure };
