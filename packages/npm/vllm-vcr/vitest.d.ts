import type { TestAPI } from "vitest";
import type { CassetteOptions, Session } from "./index.js";

/** vitest's `test`, whose context has the test's cassette. `test.scoped({ vcr: { onMiss: "stub" } })` sets options. */
export const test: TestAPI<{ cassette: Session; vcr: CassetteOptions }>;
export const it: typeof test;
export { configure } from "./index.js";
