// Where the program is: in the optional dependency for this platform, or where VLLM_VCR_BINARY says.

const { accessSync, constants } = require("node:fs");

function isMusl() {
  if (process.platform !== "linux") return false;
  // Without the addresses of network interfaces, whose names may take long to look up.
  process.report.excludeNetwork = true;
  return !process.report.getReport().header.glibcVersionRuntime;
}

/** The packages that this platform could have, the best first: a static binary runs beside glibc too. */
function packages(platform = process.platform, arch = process.arch, musl = isMusl()) {
  const name = `@vllm-vcr/${platform}-${arch}`;
  if (platform === "linux") return musl ? [`${name}-musl`] : [`${name}-gnu`, `${name}-musl`];
  return [name];
}

/** The path of the program. */
function binary() {
  const named = process.env.VLLM_VCR_BINARY;
  if (named) {
    try {
      accessSync(named, constants.X_OK);
    } catch {
      throw new Error(`VLLM_VCR_BINARY is ${named}, which is no program`);
    }
    return named;
  }
  const names = packages();
  for (const name of names) {
    try {
      return require.resolve(`${name}/bin/vllm-vcr`);
    } catch {
      // The next one may be there.
    }
  }
  throw new Error(missing(names[0]));
}

function missing(name) {
  const { optionalDependencies = {} } = require("./package.json");
  if (!(name in optionalDependencies)) {
    const known = Object.keys(optionalDependencies).map((known) => known.replace("@vllm-vcr/", ""));
    return (
      `vllm-vcr has no program for ${name.replace("@vllm-vcr/", "")}, only for ${known.join(", ")}: ` +
      "build it with cargo, and set VLLM_VCR_BINARY to its path"
    );
  }
  return (
    `vllm-vcr: its program, the optional dependency ${name}, is not installed. Either optional dependencies were left out ` +
    "(--omit=optional, --no-optional), or node_modules or the lock file come from another system: install again here with " +
    "npm install --include=optional, or set VLLM_VCR_BINARY to the path of a program"
  );
}

module.exports = { binary, packages };
