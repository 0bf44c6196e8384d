import { expect } from "vitest";
import { test } from "./vcr.js";

for (const city of ["London", "Paris", "Rome"]) {
  test(`whole ${city}`, async ({ client }) => {
    const messages = [{ role: "user", content: `rainy in ${city}` }];
    const answer = await client.chat.completions.create({ model: "m", messages });
    expect(answer.choices[0].message.content).toContain(`rainy in ${city}`);
  });

  test(`stream ${city}`, async ({ client }) => {
    const messages = [{ role: "user", content: `sunny in ${city}` }];
    let text = "";
    for await (const chunk of await client.chat.completions.create({ model: "m", messages, stream: true })) {
      text += chunk.choices[0]?.delta.content ?? "";
    }
    expect(text).toContain(`sunny in ${city}`);
  });
}
