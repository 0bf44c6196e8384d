// An MCP server on the official TypeScript SDK: node server.mjs PORT, over streamable HTTP with sessions.
import { randomUUID } from "node:crypto";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(process.env.MCP_NODE_MODULES ? `${process.env.MCP_NODE_MODULES}/` : import.meta.url);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { McpServer } = await load("@modelcontextprotocol/sdk/server/mcp.js");
const { StreamableHTTPServerTransport } = await load("@modelcontextprotocol/sdk/server/streamableHttp.js");
const { z } = await load("zod");

function make() {
  const server = new McpServer({ name: "node-shop", version: "1" });
  const text = (text) => ({ content: [{ type: "text", text }] });
  server.registerTool("add", { inputSchema: { one: z.number(), other: z.number() } }, async ({ one, other }) => text(`${one + other}`));
  server.registerTool("slow", { inputSchema: { steps: z.number() } }, async ({ steps }, extra) => {
    for (let step = 1; step <= steps; step += 1) {
      const params = { progressToken: extra._meta?.progressToken, progress: step, total: steps };
      if (params.progressToken !== undefined) await extra.sendNotification({ method: "notifications/progress", params });
    }
    return text("done é");
  });
  server.registerTool("ask", {}, async () => {
    const requestedSchema = { type: "object", properties: { sure: { type: "boolean" } } };
    const answer = await server.server.elicitInput({ message: "Sure?", requestedSchema });
    return text(`${answer.action} ${JSON.stringify(answer.content)}`);
  });
  server.registerTool("fail", {}, async () => {
    throw new Error("no such thing");
  });
  server.registerResource("listed", "shop://list", {}, async (uri) => ({ contents: [{ uri: uri.href, text: "tea\nmilk" }] }));
  return server;
}

const sessions = new Map();
createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = chunks.length ? JSON.parse(Buffer.concat(chunks)) : undefined;
  const id = request.headers["mcp-session-id"];
  let transport = id && sessions.get(id);
  if (!transport && !id && body?.method === "initialize") {
    transport = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: (id) => sessions.set(id, transport),
      onsessionclosed: (id) => sessions.delete(id),
    });
    await make().connect(transport);
  }
  if (!transport) {
    response.writeHead(id ? 404 : 400, { "content-type": "application/json" });
    response.end('{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"no session"}}');
    return;
  }
  await transport.handleRequest(request, response, body);
}).listen(Number(process.argv[2]), "127.0.0.1");
