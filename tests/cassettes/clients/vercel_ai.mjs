// An agent on the Vercel AI SDK, with its provider for OpenAI.
import { openai } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, tool } from "ai";
import { DESCRIPTION, MODEL, PARAMETERS, QUESTIONS, SYSTEM, weather } from "./scenario.mjs";

const tools = { weather: tool({ description: DESCRIPTION, inputSchema: jsonSchema(PARAMETERS), execute: weather }) };

const messages = [];
for (const question of QUESTIONS) {
  messages.push({ role: "user", content: question });
  const answer = await generateText({ model: openai(MODEL), system: SYSTEM, messages, tools, stopWhen: stepCountIs(5) });
  messages.push(...answer.response.messages);
  console.log(JSON.stringify([question, answer.text]));
}
