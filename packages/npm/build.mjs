// Makes the packages from binaries: one for each platform, and the one that depends on them.
//
// Usage: node build.mjs --out FOLDER PLATFORM=BINARY ...
// PLATFORM is a name of platforms.json, such as linux-x64-gnu. FOLDER gets a folder for each package, to be packed and published:
// those of platforms first. The version is the workspace's. Platforms without a binary stay optional dependencies that are not there.
//
// See docs/decisions/0137-the-npm-package-brings-its-program.md.

import { chmodSync, copyFileSync, cpSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const root = resolve(here, "../..");
const platforms = JSON.parse(readFileSync(join(here, "platforms.json"), "utf8"));
const about = { license: "MIT OR Apache-2.0" };

function fail(message) {
  console.error(`build.mjs: ${message}`);
  process.exit(2);
}

function version() {
  const manifest = readFileSync(join(root, "Cargo.toml"), "utf8");
  const [, found] = manifest.match(/\[workspace\.package\][^[]*?\nversion = "([^"]+)"/) ?? [];
  return found ?? fail("Cargo.toml has no version in [workspace.package]");
}

function write(folder, manifest) {
  for (const licence of ["LICENSE-MIT", "LICENSE-APACHE"]) copyFileSync(join(root, licence), join(folder, licence));
  writeFileSync(join(folder, "package.json"), `${JSON.stringify(manifest, null, 2)}\n`);
  console.log(`${manifest.name}@${manifest.version} ${folder}`);
}

function platform(out, name, binary, version) {
  const { os, cpu, libc } = platforms[name];
  const folder = join(out, name);
  mkdirSync(join(folder, "bin"), { recursive: true });
  copyFileSync(binary, join(folder, "bin", "vllm-vcr"));
  chmodSync(join(folder, "bin", "vllm-vcr"), 0o755);
  const text = `The program of the package \`vllm-vcr\` for ${name}. Install that one.\n`;
  writeFileSync(join(folder, "README.md"), text);
  const only = { os: [os], cpu: [cpu], ...(libc && { libc: [libc] }) };
  write(folder, { name: `@vllm-vcr/${name}`, version, description: text.trim(), ...about, ...only, preferUnplugged: true });
}

function main(out, version) {
  const folder = join(out, "vllm-vcr");
  cpSync(join(here, "vllm-vcr"), folder, { recursive: true });
  const manifest = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const names = Object.keys(platforms).map((name) => [`@vllm-vcr/${name}`, version]);
  write(folder, { ...manifest, version, ...about, optionalDependencies: Object.fromEntries(names) });
}

const words = process.argv.slice(2);
const at = words.indexOf("--out");
const [, out] = at < 0 ? fail("name the folder: --out FOLDER") : words.splice(at, 2);
const binaries = words.map((word) => word.split(/=(.*)/s));
for (const [name, binary] of binaries) {
  if (!platforms[name]) fail(`${name} is none of ${Object.keys(platforms).join(", ")}`);
  if (!binary || !existsSync(binary)) fail(`${name}: there is no binary ${binary ?? ""}; write ${name}=PATH`);
}
rmSync(resolve(out), { recursive: true, force: true });
for (const [name, binary] of binaries) platform(resolve(out), name, binary, version());
main(resolve(out), version());
