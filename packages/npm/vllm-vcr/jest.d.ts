import type { CassetteOptions, Session } from "./index.js";

type Body = (context: { cassette: Session }) => Promise<unknown> | unknown;
type Define = (name: string, body: Body, options?: number | (CassetteOptions & { timeout?: number })) => void;

/** jest's `test`, whose body gets the test's cassette. */
export const test: Define & {
  only: Define;
  skip: (name: string, body?: unknown) => void;
  todo: (name: string) => void;
  concurrent: Define & { only: Define; skip: (name: string, body?: unknown) => void };
};
export const it: typeof test;
export { configure } from "./index.js";
