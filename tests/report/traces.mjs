// Traces for pages: sessions whose prompts share prefixes, errors, and names that want to be markup.
import { writeFileSync } from "node:fs";

const hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\u202e";

// Numbers that look random and are the same each time.
function random(seed) {
  let state = seed;
  return () => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return state / 2147483648;
  };
}

function line(number, draw, slower) {
  const tokens = 20 + Math.floor(draw() * 60);
  const ttft = (40 + 30 * draw() + (draw() < 0.03 ? 900 * draw() : 0)) * slower * (number > 250 && number < 320 ? 2 : 1);
  const gaps = Array.from({ length: tokens - 1 }, () => 8 + 4 * draw() + (draw() < 0.01 ? 80 : 0));
  const failed = number % 41 === 7;
  const family = Math.floor(draw() * draw() * 5);
  const turn = number % 6;
  const blocks = [1, 2, 3].map((block) => family * 100 + block);
  for (let earlier = 0; earlier <= turn; earlier++) blocks.push(100000 + (number - turn + earlier) * 10, 100001 + (number - turn + earlier) * 10);
  return {
    prompt_tokens: blocks.length * 16, cached_tokens: turn * 32, output_tokens: tokens, ttft_ms: ttft, itl_ms: gaps,
    e2e_ms: ttft + gaps.reduce((sum, gap) => sum + gap, 0) + 1, arrival_ms: number * 90 + 60 * draw(), block_hashes: blocks,
    request_id: number === 300 ? hostile : `request-${number}`, session: number % 50 ? `session-${number - turn}` : hostile,
    model: number % 97 ? "m" : hostile, endpoint: "chat", stream: true, finish_reason: failed ? "error" : "stop",
    status: failed ? 503 : 200, outcome: failed ? "error" : "finished", ...(failed ? { error: { body: `busy: ${hostile}` } } : {}),
  };
}

export function write(path, seed, slower) {
  const draw = random(seed);
  const meta = { meta: { format: 1, model: "m", block_size: 16, block_hash: "xxh3-64", started_at: "2026-01-01T00:00:00Z" } };
  const lines = [meta, ...Array.from({ length: 600 }, (_, number) => line(number, draw, slower))];
  writeFileSync(path, lines.map((value) => `${JSON.stringify(value)}\n`).join(""));
}

// A trace that says of its requests what it must, and no more.
export function writeBare(path) {
  writeFileSync(path, '{"meta":{"format":1}}\n{"prompt_tokens":4,"output_tokens":1,"ttft_ms":20.0}\n');
}
