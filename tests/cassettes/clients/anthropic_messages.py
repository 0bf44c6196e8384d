"""A Claude-style agent on the anthropic SDK: messages with tools, streamed."""

import json

import anthropic
from scenario import MODEL, PARAMETERS, QUESTIONS, SYSTEM, weather

TOOL = {"name": "weather", "description": weather.__doc__, "input_schema": PARAMETERS}

client = anthropic.Anthropic()
messages = []
for question in QUESTIONS:
    messages.append({"role": "user", "content": question})
    while True:
        with client.messages.stream(model=MODEL, max_tokens=1024, system=SYSTEM, messages=messages, tools=[TOOL]) as stream:
            answer = stream.get_final_message()
        messages.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            break
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": weather(**call.input)} for call in calls]
        messages.append({"role": "user", "content": results})
    print(json.dumps([question, answer.content[-1].text]))
