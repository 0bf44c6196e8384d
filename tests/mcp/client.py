"""Uses the shop with the Python SDK and prints what it sees, a line of JSON each.

Usage: client.py legacy|modern URL|COMMAND [ARGUMENT...]
"""

import asyncio
import json
import sys

from mcp import ClientSession, StdioServerParameters, types
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


def show(*seen):
    print(json.dumps(seen, sort_keys=True, default=str), flush=True)


def plain(result):
    return result.model_dump(mode="json", by_alias=True, exclude_none=True)


async def elicited(context, params):
    show("elicitation", params.message)
    return types.ElicitResult(action="accept", content={"sure": True})


async def listed_roots(context):
    return types.ListRootsResult(roots=[types.Root(uri="file:///a", name="a")])


async def use(session, era, notes):
    async def call(name, arguments, **more):
        try:
            show("call", name, plain(await session.call_tool(name, arguments, **more)))
        except Exception as error:
            show("error", name, str(error))

    progressed = []

    async def progress(done, total, message):
        progressed.append([done, total, message])

    show("tools", plain(await session.list_tools()))
    if era == "legacy":
        await session.send_ping()
        await call("buy", {"what": "tea", "many": 2}, progress_callback=progress)
        await call("roots", {})
    await call("count", {"to": 3}, progress_callback=progress)
    show("progress", progressed)
    await call("fail", {})
    await call("nothing", {})
    show("resources", plain(await session.list_resources()), plain(await session.list_resource_templates()))
    show("read", plain(await session.read_resource("shop://list")), plain(await session.read_resource("shop://item/tea")))
    show("prompts", plain(await session.list_prompts()), plain(await session.get_prompt("ask", {"topic": "tea"})))
    together = [session.call_tool("count", {"to": 1}), session.read_resource("shop://item/milk"), session.call_tool("count", {"to": 2})]
    show("together", [plain(result) for result in await asyncio.gather(*together)])
    for _ in range(100):
        if era == "modern" or notes:
            break
        await asyncio.sleep(0.1)
    show("notes", notes)


async def main(era, target, *arguments):
    notes = []

    async def received(message):
        method = getattr(getattr(message, "root", message), "method", "")
        if method.endswith("list_changed"):
            notes.append(method)

    if target.startswith("http"):
        transport = streamable_http_client(target)
    else:
        transport = stdio_client(StdioServerParameters(command=target, args=list(arguments)))
    async with transport as streams:
        callbacks = {"elicitation_callback": elicited, "list_roots_callback": listed_roots, "message_handler": received}
        async with ClientSession(streams[0], streams[1], **callbacks) as session:
            opened = await (session.discover() if era == "modern" else session.initialize())
            show("opened", plain(opened))
            await use(session, era, notes)


asyncio.run(main(*sys.argv[1:]))
