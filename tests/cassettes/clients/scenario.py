"""What every agent here does: it asks about the weather, with one tool. DRIFT names what its developer changed after the recording."""

import inspect
import os

DRIFT = os.environ.get("DRIFT")
MODEL = "m"
SYSTEM = "You are a terse weather bot." if DRIFT == "prompt" else "You are a weather bot."
QUESTIONS = ["What is the weather in London?", "And in Paris?", "Which of them is warmer?"]
if DRIFT == "turn":
    del QUESTIONS[1]
if DRIFT == "end":
    del QUESTIONS[2]

if DRIFT == "tool":

    def weather(city: str, unit: str = "celsius") -> str:
        """The weather in a city."""
        return f"15 degrees {unit} in {city}"

else:

    def weather(city: str) -> str:
        """The weather in a city."""
        return f"15 degrees in {city}"


PARAMETERS = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in inspect.signature(weather).parameters},
    "required": ["city"],
}
