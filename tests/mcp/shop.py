"""A server of the Python SDK with every kind of message."""

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

server = MCPServer("shop")


class Sure(BaseModel):
    sure: bool


@server.tool()
async def buy(what: str, many: int, ctx: Context) -> str:
    "Buys something, after a question."
    for step in range(3):
        await ctx.report_progress(step + 1, 3, f"step {step}")
    got = await ctx.elicit("Sure?", Sure)
    await ctx.session.send_tool_list_changed()
    return f"bought {many} {what}: {got.action}"


@server.tool()
async def roots(ctx: Context) -> list[str]:
    "Lists the client's roots."
    got = await ctx.session.list_roots()
    return [str(root.uri) for root in got.roots]


@server.tool()
async def count(to: int, ctx: Context) -> int:
    "Counts."
    for step in range(to):
        await ctx.report_progress(step + 1, to, f"step {step}")
    return to


@server.tool()
def fail() -> str:
    "Fails."
    raise ValueError("no")


@server.resource("shop://list")
def listing() -> str:
    return "tea, ü"


@server.resource("shop://item/{name}")
def item(name: str) -> str:
    return name.upper()


@server.prompt()
def ask(topic: str) -> str:
    return f"Tell me about {topic}"


server.run()
