"""An MCP server on the official Python SDK: server.py stdio, or server.py PORT for streamable HTTP."""

import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("python-shop", log_level="ERROR")


class Sure(BaseModel):
    sure: bool


@server.tool()
def add(one: int, other: int) -> int:
    """Adds."""
    return one + other


@server.tool()
async def slow(steps: int, ctx: Context) -> str:
    """Reports progress."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps)
    return "done é"


@server.tool()
async def ask(ctx: Context) -> str:
    """Asks its client."""
    answer = await ctx.elicit("Sure?", schema=Sure)
    return f"{answer.action} {getattr(answer, 'data', None)}"


@server.tool()
def fail() -> str:
    """Fails."""
    raise ValueError("no such thing")


@server.resource("shop://list")
def listed() -> str:
    """The list."""
    return "tea\nmilk"


if __name__ == "__main__":
    if sys.argv[1] == "stdio":
        server.run("stdio")
    else:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
