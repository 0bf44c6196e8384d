// What every agent here does: it asks about the weather, with one tool. DRIFT names what its developer changed after the recording.
const drift = process.env.DRIFT;

export const MODEL = "m";
export const SYSTEM = drift === "prompt" ? "You are a terse weather bot." : "You are a weather bot.";
export const QUESTIONS = ["What is the weather in London?", "And in Paris?", "Which of them is warmer?"].filter(
  (_, turn) => !(drift === "turn" && turn === 1) && !(drift === "end" && turn === 2),
);

export const DESCRIPTION = "The weather in a city.";
export const PARAMETERS = {
  type: "object",
  properties: { city: { type: "string" }, ...(drift === "tool" && { unit: { type: "string" } }) },
  required: ["city"],
};
export const weather = ({ city }) => `15 degrees in ${city}`;
