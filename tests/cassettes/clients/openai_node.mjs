// An agent on the openai SDK for Node: chat completions, streamed.
import OpenAI from "openai";
import { DESCRIPTION, MODEL, PARAMETERS, QUESTIONS, SYSTEM, weather } from "./scenario.mjs";

const tools = [{ type: "function", function: { name: "weather", description: DESCRIPTION, parameters: PARAMETERS } }];

const client = new OpenAI();
const messages = [{ role: "system", content: SYSTEM }];
for (const question of QUESTIONS) {
  messages.push({ role: "user", content: question });
  let message;
  do {
    message = await client.chat.completions.stream({ model: MODEL, messages, tools }).finalMessage();
    messages.push(message);
    for (const call of message.tool_calls ?? []) {
      const content = weather(JSON.parse(call.function.arguments));
      messages.push({ role: "tool", tool_call_id: call.id, content });
    }
  } while (message.tool_calls?.length);
  console.log(JSON.stringify([question, message.content]));
}
