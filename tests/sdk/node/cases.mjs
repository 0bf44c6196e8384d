// What the openai Node SDK must be able to do against a server. Usage: node cases.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const url = process.argv[2];
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const messages = [{ role: "user", content: "What is the capital of France?" }];
const model = (await client.models.list()).data[0].id;

async function collected(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const cases = {
  async chat() {
    const answer = await client.chat.completions.create({ model, messages, max_tokens: 16 });
    const [choice] = answer.choices;
    assert.equal(choice.message.role, "assistant");
    assert.ok(choice.message.content);
    assert.ok(["stop", "length"].includes(choice.finish_reason));
    assert.equal(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens);
  },
  async chatStream() {
    const asked = { model, messages, max_tokens: 16, stream: true, stream_options: { include_usage: true } };
    const chunks = await collected(await client.chat.completions.create(asked));
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    assert.ok(chunks.flatMap((chunk) => chunk.choices).map((choice) => choice.delta.content ?? "").join(""));
    assert.deepEqual(chunks.at(-1).choices, []);
    assert.ok(chunks.at(-1).usage.completion_tokens > 0);
  },
  async streamHelper() {
    const runner = client.chat.completions.stream({ model, messages, max_tokens: 16 });
    let text = "";
    runner.on("content", (delta) => (text += delta));
    const final = await runner.finalChatCompletion();
    assert.ok(text);
    assert.equal(final.choices[0].message.content, text);
  },
  async completion() {
    const answer = await client.completions.create({ model, prompt: "The capital of France is", max_tokens: 4 });
    assert.equal(answer.usage.completion_tokens, 4);
    assert.equal(answer.choices[0].finish_reason, "length");
  },
  async completionStream() {
    const asked = { model, prompt: "The capital of France is", max_tokens: 8, stream: true };
    const chunks = await collected(await client.completions.create(asked));
    assert.ok(chunks.map((chunk) => chunk.choices[0].text).join(""));
  },
  async aClientThatLeaves() {
    const stream = await client.chat.completions.create({ model, messages, stream: true });
    for await (const _ of stream) break;
    assert.ok((await client.models.list()).data.length);
  },
  async errorsHaveTheirClass() {
    const unknown = client.chat.completions.create({ model: "no-such-model", messages });
    await assert.rejects(unknown, (error) => error instanceof OpenAI.NotFoundError && error.type === "NotFoundError");
    const refused = client.chat.completions.create({ model, messages, max_tokens: 0 });
    await assert.rejects(refused, (error) => error instanceof OpenAI.BadRequestError && error.status === 400);
  },
};

let failed = 0;
for (const [name, run] of Object.entries(cases)) {
  try {
    await run();
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}\n${error.stack}`);
  }
}
console.log(`${Object.keys(cases).length - failed} passed, ${failed} failed`);
process.exitCode = failed ? 1 : 0;
