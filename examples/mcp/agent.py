"""An agent with two MCP servers: one knows the time, the other one files.

    vllm-vcr tap --upstream http://localhost:8000 --cassette agent.yaml --ignore '$.vllm_xargs' \\
        --mcp-stdio 'time=mcp-server-time --local-timezone UTC' \\
        --mcp-stdio 'files=npx -y @modelcontextprotocol/server-filesystem notes' -- python agent.py
    vllm-vcr play --cassette agent.yaml --strict -- python agent.py

Needs the packages `openai` and `mcp`. Servers are at $VLLM_VCR_URL/mcp/NAME, else what MCP_TIME and MCP_FILES say: a URL or a command.
"""

import asyncio
import json
import os
import shlex
from contextlib import AsyncExitStack

from mcp import Client, StdioServerParameters
from openai import AsyncOpenAI

MODEL = os.environ.get("AGENT_MODEL", "tiny-qwen3")
TASK = os.environ.get("AGENT_TASK", "Read meeting.txt, and tell when that is in Tokyo.")
TOOLS = {"time": ["convert_time"], "files": ["read_text_file"]}
# What a model for tests is to say, turn by turn; see tests/mcp/taps/README.md.
SCRIPT = json.loads(os.environ.get("AGENT_SCRIPT", "[]"))


def server(name):
    place = os.environ.get(f"MCP_{name.upper()}") or f"{os.environ['VLLM_VCR_URL']}/mcp/{name}"
    if place.startswith("http"):
        return place
    command, *arguments = shlex.split(place)
    return StdioServerParameters(command=command, args=arguments)


async def main():
    async with AsyncExitStack() as stack:
        tools, owners = [], {}
        for name, wanted in TOOLS.items():
            client = await stack.enter_async_context(Client(server(name), mode="legacy"))
            for tool in (await client.list_tools()).tools:
                if tool.name not in wanted:
                    continue
                owners[tool.name] = client
                function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
                tools.append({"type": "function", "function": function})
        llm = await stack.enter_async_context(AsyncOpenAI(max_retries=0))
        messages = [{"role": "user", "content": TASK}]
        try:
            await converse(llm, messages, tools, owners)
        finally:
            print(json.dumps(messages, indent=1, ensure_ascii=False))


async def converse(llm, messages, tools, owners):
    """Lets the model call tools until it has said what it has to say."""
    for turn in range(8):
        extra = {"vllm_xargs": {"script": SCRIPT[turn]}} if SCRIPT else None
        answer = await llm.chat.completions.create(
            model=MODEL, messages=messages, tools=tools, temperature=0, extra_body=extra
        )
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return
        for call in message.tool_calls:
            text = await run(owners, call.function)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": text})


async def run(owners, function):
    """Runs a tool; what goes wrong is for the model to read."""
    try:
        result = await owners[function.name].call_tool(function.name, json.loads(function.arguments))
    except Exception as error:
        return f"error: {error}"
    return "\n".join(part.text for part in result.content if part.type == "text")


asyncio.run(main())
