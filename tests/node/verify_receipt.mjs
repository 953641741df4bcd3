// Verifies receipts with jose, a library that knows RFC 9864's `alg: "Ed25519"`.
// stdin: {"jwks", "tokens"}; stdout: for each token its header and payload, or the code of the error.
import { readFileSync } from "node:fs";
import { compactVerify, createLocalJWKSet } from "jose";

const { jwks, tokens } = JSON.parse(readFileSync(0, "utf8"));
const keys = createLocalJWKSet(jwks);
const verified = [];
for (const token of tokens) {
  try {
    const { payload, protectedHeader } = await compactVerify(token, keys, { algorithms: ["Ed25519"] });
    verified.push({ header: protectedHeader, payload: new TextDecoder().decode(payload) });
  } catch (error) {
    verified.push({ code: error.code ?? String(error) });
  }
}
console.log(JSON.stringify(verified));
