"""An agent on LiteLLM, which takes any server that speaks OpenAI's API for `openai/MODEL`."""

import json
import os

# Prices of models are not asked for at its server.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from scenario import MODEL, PARAMETERS, QUESTIONS, SYSTEM, weather

TOOL = {"name": "weather", "description": weather.__doc__, "parameters": PARAMETERS}

messages = [{"role": "system", "content": SYSTEM}]
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    while True:
        answer = litellm.completion(
            model=f"openai/{MODEL}", messages=messages, tools=[{"type": "function", "function": TOOL}]
        )
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(json.dumps([question, message.content]))
