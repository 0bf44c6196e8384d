"""A small agent with one tool, on the OpenAI SDK: prints what it saw.

PROMPT, MODEL, STREAM=1, TURNS and SESSION change what it does. With SCRIPTED=1 it tells the engine what to say, turn by turn, for
a real vLLM whose model is too small to call tools (`vllm_xargs`, read by a logits processor).
"""

import json
import os

import openai

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "A city"}},
                "required": ["city"],
            },
        },
    }
]
PROMPT = os.environ.get("PROMPT", "What is the weather\nin London?")
STREAM = os.environ.get("STREAM") == "1"
MODEL = os.environ.get("MODEL", "m")
TURNS = int(os.environ.get("TURNS", "3"))
SCRIPTS = [
    '<think>\nI need the weather first.\n</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "London"}}\n</tool_call>',
    '<think>\nParis, to compare.\n</think>\n\nLet me look at Paris too.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "<think>\nBoth are known.\n</think>\n\nLondon: 15 degrees.\nParis: 15 degrees, so take the same coat.",
]


def client():
    session = os.environ.get("SESSION")
    base = f"{os.environ['VLLM_VCR_URL']}/vcr/s/{session}/v1" if session else None
    return openai.OpenAI(base_url=base, max_retries=2)


def asked(messages, turn):
    more = {"vllm_xargs": {"script": SCRIPTS[turn]}} if os.environ.get("SCRIPTED") == "1" else {}
    return {"model": MODEL, "messages": messages, "tools": TOOLS, "extra_body": more}


def whole(sdk, messages, turn):
    answer = sdk.chat.completions.create(**asked(messages, turn))
    return answer.choices[0].message.model_dump()


def streamed(sdk, messages, turn):
    content, reasoning, calls = "", "", []
    options = {"include_usage": True}
    with sdk.chat.completions.create(**asked(messages, turn), stream=True, stream_options=options) as stream:
        for delta in (choice.delta for chunk in stream for choice in chunk.choices):
            content += delta.content or ""
            reasoning += getattr(delta, "reasoning", None) or ""
            for part in delta.tool_calls or []:
                if part.id:
                    calls.append({"id": part.id, "type": "function", "function": {"name": part.function.name, "arguments": ""}})
                calls[-1]["function"]["arguments"] += part.function.arguments or ""
    message = {"role": "assistant", "content": content or None, "reasoning": reasoning or None}
    return {**message, "tool_calls": calls} if calls else message


def main():
    sdk = client()
    messages = [{"role": "system", "content": "You are a weather bot."}, {"role": "user", "content": PROMPT}]
    for turn in range(TURNS):
        message = (streamed if STREAM else whole)(sdk, messages, turn)
        calls = message.get("tool_calls") or []
        print(json.dumps({"content": message["content"], "calls": [call["function"] for call in calls]}, sort_keys=True))
        messages.append(message)
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": "15 degrees"} for call in calls]
        if not calls:
            break


if __name__ == "__main__":
    main()
