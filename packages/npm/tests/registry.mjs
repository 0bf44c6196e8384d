// A registry of packages that were built here, for npm on this machine.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { createServer } from "node:http";
import { join } from "node:path";

/** Packs the folders of `built` into `packed`; returns the files by the packages' names. */
export function pack(built, packed) {
  const folders = readdirSync(built).map((folder) => join(built, folder));
  const files = execFileSync("npm", ["pack", "--silent", "--pack-destination", packed, ...folders], { encoding: "utf8" }).trim().split("\n");
  const manifests = folders.map((folder) => JSON.parse(readFileSync(join(folder, "package.json"), "utf8")));
  return Object.fromEntries(manifests.map((manifest, at) => [manifest.name, { file: join(packed, files[at]), manifest }]));
}

/** Serves packages; `url` is where, `close` ends it. */
export async function serve(packages) {
  const server = createServer((request, answer) => {
    const path = decodeURIComponent(request.url);
    const file = packages[path.slice(1).replace(/\.tgz$/, "")];
    if (!file) {
      answer.writeHead(404).end("{}");
    } else if (path.endsWith(".tgz")) {
      answer.end(readFileSync(file.file));
    } else {
      const { manifest } = file;
      const integrity = `sha512-${createHash("sha512").update(readFileSync(file.file)).digest("base64")}`;
      const dist = { tarball: `${url}/${manifest.name}.tgz`, integrity };
      const versions = { [manifest.version]: { ...manifest, dist } };
      answer.writeHead(200, { "content-type": "application/json" });
      answer.end(JSON.stringify({ name: manifest.name, "dist-tags": { latest: manifest.version }, versions }));
    }
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const url = `http://127.0.0.1:${server.address().port}`;
  return { url, close: () => server.close() };
}
