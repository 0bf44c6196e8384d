/** What of a run can fail it. */
export type Concern = "miss" | "unconsumed" | "exhausted" | "loose" | "drift" | "placeholder" | (string & {});

/** What is played and what is recorded. */
export type Mode = "none" | "once" | "new-episodes" | "all" | "live" | "compare";

/** What a request without a record gets. */
export type OnMiss = "error" | "stub" | "upstream" | "record";

/** What a server refused, or a server that did not start or ended with a failure. */
export class VcrError extends Error {}

/** Options of a session. */
export interface SessionOptions {
  /** A file below the server's folder. */
  cassette?: string;
  mode?: Mode;
  /** The ways to find a record, such as "canonical,ordered". */
  match?: string | string[];
  onMiss?: OnMiss;
  /** The command that errors name for recording it. */
  recordWith?: string;
  /** What becomes of a session whose cassette does not exist: it is refused, or opened, and each of its requests is a miss. */
  ifMissing?: "refuse" | "open";
  /** What becomes of what it recorded where it is not ended. */
  ifUnended?: "keep" | "drop";
}

/** A session of a server, with the URLs for the clients of one test. */
export class Session {
  readonly server: Server;
  readonly name: string;
  /** The URL of clients of OpenAI's kind, which ends with /v1. */
  readonly baseURL: string;
  /** The URL before /v1. */
  readonly url: string;
  /** The variables in which clients look for a URL, with this session's. */
  readonly env: Record<string, string>;
  /** The value of OPENAI_API_KEY, else one that stands for it. */
  readonly apiKey: string;
  mcpURL(server: string): string;
  upstreamURL(name: string): string;
  /** The requests that had no record, each with the closest record and the differences. */
  misses(): Promise<Record<string, unknown>[]>;
  report(): Promise<Record<string, unknown>>;
  /** What of these has happened. */
  verify(failOn?: Concern[]): Promise<Concern[]>;
  /** Ends it; what it recorded is in its cassette then, or dropped. */
  end(options?: { drop?: boolean }): Promise<void>;
}

/** A running server. */
export class Server {
  /** The URL without a path. */
  readonly url: string;
  readonly baseURL: string;
  mcpURL(server: string): string;
  session(name: string, options?: SessionOptions): Promise<Session>;
  report(session?: string): Promise<Record<string, unknown>>;
  misses(session?: string): Promise<Record<string, unknown>[]>;
  verify(failOn?: Concern[], session?: string): Promise<Concern[]>;
  /** Ends a server that was started here; fails where it ended with a failure, as under --strict. */
  close(): Promise<void>;
}

/** Options of a test's cassette. */
export interface CassetteOptions {
  match?: string | string[];
  onMiss?: OnMiss;
  /** What fails the test although it passed by itself: `["miss"]` if nothing is said. */
  failOn?: Concern[];
  /** The file below the folder of cassettes, in place of the one named after the test. */
  cassette?: string;
}

/** Settings of all tests. */
export interface Settings {
  mode?: Mode;
  upstream?: string | string[];
  /** The folder: `cassettes`. */
  cassettes?: string;
  failOn?: Concern[];
  /** More flags of the server, and of one that may record. */
  flags?: string[];
  tapFlags?: string[];
}

/** The path of the program. */
export function binary(): string;
/** Starts `vllm-vcr play` on cassettes: files, or one folder. */
export function play(cassettes: string | string[], options?: { flags?: string[] }): Promise<Server>;
/** Starts `vllm-vcr tap` in front of servers, whose answers it records into a cassette. */
export function tap(upstream: string | string[], cassette?: string, options?: { flags?: string[] }): Promise<Server>;
/** Takes the server at a URL, or the one that this process was started under. */
export function connect(url?: string): Server;
/** Changes the settings of all tests; variables of the environment come before them. */
export function configure(settings: Settings): void;
/** Runs a test with a cassette of its own, in any framework. */
export function withCassette<T>(
  file: string,
  name: string,
  test: (cassette: Session) => Promise<T> | T,
  options?: CassetteOptions,
): Promise<T>;
/** The server of the tests in this process, and its end. */
export function testServer(): Promise<Server>;
export function closeTestServer(): Promise<void>;
