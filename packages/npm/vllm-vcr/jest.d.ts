import type { CassetteOptions, Session } from "./index.js";

type Body = (context: { cassette: Session }) => Promise<unknown> | unknown;
type Define = (name: string, body: Body, options?: number | (CassetteOptions & { timeout?: number })) => void;
type Each = (...table: readonly unknown[]) => (name: string, body: (...row: any[]) => Promise<unknown> | unknown, options?: Parameters<Define>[2]) => void;

/** jest's `test`, whose body gets the test's cassette. */
export const test: Define & {
  only: Define & { each: Each };
  skip: Define & { each: Each };
  each: Each;
  todo: (name: string) => void;
  concurrent: Define & { only: Define; skip: (name: string, body?: unknown) => void };
};
export const it: typeof test;
export { configure } from "./index.js";
