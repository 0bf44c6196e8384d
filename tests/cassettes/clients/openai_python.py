"""An agent on the openai SDK for Python: chat completions, received whole."""

import json

import openai
from scenario import MODEL, PARAMETERS, QUESTIONS, SYSTEM, weather

TOOL = {"name": "weather", "description": weather.__doc__, "parameters": PARAMETERS}

client = openai.OpenAI()
messages = [{"role": "system", "content": SYSTEM}]
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    while True:
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=[{"type": "function", "function": TOOL}])
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(json.dumps([question, message.content]))
