"""The agent's loop over chat completions, for libraries whose answers have the form of OpenAI's."""

import json

from scenario import PARAMETERS, QUESTIONS, SYSTEM, weather

TOOL = {"name": "weather", "description": weather.__doc__, "parameters": PARAMETERS}


def ask_all(complete):
    """Asks the questions; `complete` sends messages and tools and returns the answer."""
    messages = [{"role": "system", "content": SYSTEM}]
    for question in QUESTIONS:
        messages.append({"role": "user", "content": question})
        while True:
            message = complete(messages=messages, tools=[{"type": "function", "function": TOOL}]).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                result = weather(**json.loads(call.function.arguments))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        print(json.dumps([question, message.content]))
