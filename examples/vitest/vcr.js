// A cassette per test: a session that plays cassettes/NAME.yaml, or records it (see docs/src/guides/test-frameworks.md).
import OpenAI from "openai";
import { test as base } from "vitest";

const server = process.env.VLLM_VCR_URL ?? "http://localhost:8000";

async function vcr(method, path, body) {
  const headers = { "content-type": "application/json" };
  const answer = await fetch(server + path, { method, headers, body: body && JSON.stringify(body) });
  const json = await answer.json();
  if (!answer.ok) throw new Error(json.error);
  return json;
}

export const test = base.extend({
  client: async ({ task }, use) => {
    const name = `${task.file.name}-${task.name}`.replace(/[^A-Za-z0-9_.-]+/g, "-").slice(-100);
    const mode = process.env.VLLM_VCR_MODE ?? "none";
    const opened = { name, cassette: `${name}.yaml`, mode, if_unended: "drop" };
    const session = await vcr("POST", "/vcr/sessions", opened);
    await use(new OpenAI({ baseURL: server + session.base_url }));
    await vcr("DELETE", `/vcr/sessions/${name}?recorded=${task.result?.errors?.length ? "drop" : "keep"}`);
  },
});
