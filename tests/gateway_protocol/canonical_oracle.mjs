// The canonical form of requests once more, in the language that RFC 8785 is defined by.
// stdin: one body per line; stdout: its canonical form per line.
import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const removed = new Set(["stream", "stream_options", "user", "metadata"]);
const accepted = /^call_[A-Za-z0-9]{16,64}$/;

const withoutNulls = (object) =>
  Object.fromEntries(Object.entries(object).filter(([, value]) => value !== null));

function callId(value) {
  if (typeof value !== "string" || value === "" || accepted.test(value)) return value;
  return "call_" + createHash("sha256").update(value, "utf8").digest("hex").slice(0, 32);
}

function message(given) {
  const kept = withoutNulls(given);
  if ("tool_call_id" in kept) kept.tool_call_id = callId(kept.tool_call_id);
  if (Array.isArray(kept.tool_calls)) {
    kept.tool_calls = kept.tool_calls.map((call) => ("id" in call ? { ...call, id: callId(call.id) } : call));
  }
  return kept;
}

function request(body) {
  const kept = withoutNulls(body);
  for (const name of removed) delete kept[name];
  kept.messages = kept.messages.map(message);
  return kept;
}

function jcs(value) {
  if (Array.isArray(value)) return "[" + value.map(jcs).join(",") + "]";
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const members = Object.keys(value).sort().map((name) => JSON.stringify(name) + ":" + jcs(value[name]));
  return "{" + members.join(",") + "}";
}

for (const line of readFileSync(0, "utf8").split("\n")) {
  if (line) console.log(jcs(request(JSON.parse(line))));
}
