// Uses the shop with the TypeScript SDK and prints what it sees, a line of JSON each.
// Usage: node client.mjs NODE_MODULES URL|COMMAND [ARGUMENT...]

const [modules, target, ...args] = process.argv.slice(2);
const sdk = (name) => import(`${modules}/@modelcontextprotocol/sdk/dist/esm/${name}.js`);
const { Client } = await sdk("client/index");
const { StdioClientTransport } = await sdk("client/stdio");
const { StreamableHTTPClientTransport } = await sdk("client/streamableHttp");
const types = await sdk("types");

const show = (...seen) => console.log(JSON.stringify(seen));
const client = new Client({ name: "ts", version: "1" }, { capabilities: { roots: {}, elicitation: {} } });
client.setRequestHandler(types.ListRootsRequestSchema, async () => ({ roots: [{ uri: "file:///a", name: "a" }] }));
client.setRequestHandler(types.ElicitRequestSchema, async (request) => {
  show("elicitation", request.params.message);
  return { action: "accept", content: { sure: true } };
});
const notes = [];
client.setNotificationHandler(types.ToolListChangedNotificationSchema, async (note) => { notes.push(note.method); });
const transport = target.startsWith("http")
  ? new StreamableHTTPClientTransport(new URL(target))
  : new StdioClientTransport({ command: target, args, stderr: "ignore" });
await client.connect(transport);
show("opened", client.getServerVersion(), client.getServerCapabilities());

const progress = [];
const call = async (name, given, options) => {
  try {
    show("call", name, await client.callTool({ name, arguments: given }, undefined, options));
  } catch (error) {
    show("error", name, error.code, error.message);
  }
};
const onprogress = (step) => progress.push(step);
show("tools", await client.listTools());
await client.ping();
await call("buy", { what: "tea", many: 2 }, { onprogress });
await call("roots", {});
await call("count", { to: 3 }, { onprogress });
show("progress", progress);
await call("fail", {});
await call("nothing", {});
show("resources", await client.listResources(), await client.listResourceTemplates());
show("read", await client.readResource({ uri: "shop://list" }), await client.readResource({ uri: "shop://item/tea" }));
show("prompts", await client.listPrompts(), await client.getPrompt({ name: "ask", arguments: { topic: "tea" } }));
const echo = (to) => client.callTool({ name: "count", arguments: { to } });
show("together", await Promise.all([echo(1), client.readResource({ uri: "shop://item/milk" }), echo(2)]));
for (let tries = 0; tries < 100 && notes.length === 0; tries += 1) {
  await new Promise((resolve) => setTimeout(resolve, 100));
}
show("notes", notes);
if (target.startsWith("http")) {
  await transport.terminateSession();
}
await client.close();
