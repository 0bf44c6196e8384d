"""What a client on the official Python SDK does and sees; prints it as JSON. client.py MODE URL, or client.py MODE COMMAND ARGUMENT…."""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters, types


async def sure(_context, _params):
    return types.ElicitResult(action="accept", content={"sure": True})


async def main(mode, target, *arguments):
    server = StdioServerParameters(command=target, args=list(arguments)) if arguments else target
    seen, progress = [], []

    async def note(done, total, _message):
        progress.append([done, total])

    def see(name, result):
        seen.append([name, json.loads(result.model_dump_json(by_alias=True, exclude_none=True))])

    async with Client(server, mode=mode, elicitation_callback=sure) as client:
        see("tools", await client.list_tools())
        see("add", await client.call_tool("add", {"one": 2, "other": 40}))
        see("slow", await client.call_tool("slow", {"steps": 3}, progress_callback=note))
        for name, asked in [
            ("ask", lambda: client.call_tool("ask", {})),
            ("fail", lambda: client.call_tool("fail", {})),
            ("missing", lambda: client.call_tool("missing", {})),
            ("resources", client.list_resources),
            ("read", lambda: client.read_resource("shop://list")),
        ]:
            try:
                see(name, await asked())
            except Exception as error:  # the SDKs differ in what it is, and not all servers have everything
                seen.append([name, str(error)])
        together = [client.call_tool("add", {"one": n, "other": n}) for n in range(20)]
        for result in await asyncio.gather(*together):
            see("add", result)
    print(json.dumps({"seen": seen, "progress": progress}, ensure_ascii=False))


asyncio.run(main(*sys.argv[1:]))
