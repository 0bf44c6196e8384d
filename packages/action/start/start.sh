#!/usr/bin/env bash
# Installs the program unless it is there, starts a server on a free port, and writes where it is. The gate ends it.
set -euo pipefail

fail() {
  echo "::error title=vllm-vcr::$1"
  exit 1
}

folder=$(mktemp -d "${RUNNER_TEMP:-/tmp}/vllm-vcr.XXXXXX")
program=$INPUT_BINARY
if [ -z "$program" ]; then
  requirement=vllm-vcr${INPUT_VERSION:+==$INPUT_VERSION}
  flags=()
  if [ -n "$INPUT_DIGEST" ]; then
    [ -n "$INPUT_VERSION" ] || fail "a digest needs a version"
    for digest in $INPUT_DIGEST; do requirement+=" --hash=$digest"; done
    flags=(--require-hashes)
  fi
  echo "$requirement" > "$folder/requirements.txt"
  python3 -m venv "$folder/venv"
  "$folder/venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: --no-deps ${flags[@]+"${flags[@]}"} -r "$folder/requirements.txt"
  program=$folder/venv/bin/vllm-vcr
fi

if [ "$INPUT_MODE" = none ]; then
  command=(play --port 0)
  if [ -n "$INPUT_CASSETTE" ]; then command+=(--cassette "$INPUT_CASSETTE" --report "$folder/report.json"); fi
else
  [ -n "$INPUT_UPSTREAM" ] || fail "mode $INPUT_MODE needs an upstream"
  command=(tap --listen 127.0.0.1:0 --upstream "$INPUT_UPSTREAM" --mode "$INPUT_MODE" --cassette "$INPUT_CASSETTE" --report "$folder/report.json")
fi
if [ -n "$INPUT_ARGS" ]; then
  words=$(printf '%s' "$INPUT_ARGS" | xargs -n 1 printf '%s\n') || fail "args have a quote without an end: $INPUT_ARGS"
  while IFS= read -r word; do command+=("$word"); done <<< "$words"
fi

log=$folder/log
: > "$log"
# It outlives this step, and its exit code is there for the gate.
# shellcheck disable=SC2016 # The inner shell expands it.
nohup bash -c '"$@" > "$0/log" 2>&1 & echo $! > "$0/pid"; wait $!; echo $? > "$0/code"' "$folder" "$program" "${command[@]}" < /dev/null > /dev/null 2>&1 &

url=
for _ in $(seq 300); do
  url=$(sed -nE 's/^(play|tap) on (http:[^ ]+).*/\2/p' "$log" | head -1)
  if [ -n "$url" ] || [ -e "$folder/code" ]; then break; fi
  sleep 0.1
done
if [ -z "$url" ]; then
  cat "$log"
  fail "$(head -1 "$log")"
fi
echo "vllm-vcr ${command[*]}: $url"
{ echo "url=$url"; echo "log=$log"; echo "binary=$program"; } >> "$GITHUB_OUTPUT"
echo "VCR_ACTION_FOLDER=$folder" >> "$GITHUB_ENV"
if [ "$INPUT_ENV" = true ]; then
  { echo "VLLM_VCR_URL=$url"; echo "OPENAI_BASE_URL=$url/v1"; echo "OPENAI_API_BASE=$url/v1"; echo "ANTHROPIC_BASE_URL=$url"; } >> "$GITHUB_ENV"
fi
