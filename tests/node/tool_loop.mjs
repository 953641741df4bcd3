// A tool loop as agents built on the AI SDK run it: two steps with a tool each, then the answer.
// argv: base URL, model, "buffered" or "streamed". stdout: what came, as one JSON document.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, isStepCount, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, model, how] = process.argv.slice(2);
const provider = createOpenAICompatible({ name: "malibu", baseURL, apiKey: "any", includeUsage: true });
const ran = [];
const tools = {
  get_weather: tool({
    description: "Weather of a city",
    inputSchema: z.object({ city: z.string(), days: z.number().int() }),
    execute: async (input) => {
      ran.push({ name: "get_weather", input });
      return { forecast: "4 degrees" };
    },
  }),
  write_file: tool({
    description: "Write a file",
    inputSchema: z.object({ path: z.string(), text: z.string(), mode: z.number().nullable() }),
    execute: async (input) => {
      ran.push({ name: "write_file", input });
      return "written";
    },
  }),
};
const asked = {
  model: provider(model),
  tools,
  stopWhen: isStepCount(5),
  maxRetries: 0,
  system: "You are a careful assistant.",
  prompt: "Write the weather in Berlin for three days to a file.",
};

const parts = [];
let result;
if (how === "streamed") {
  result = streamText({ ...asked, onError: ({ error }) => console.error(error) });
  for await (const part of result.fullStream) {
    parts.push(part.type);
    if (part.type === "error") throw part.error;
  }
} else {
  result = await generateText(asked);
}

const steps = await result.steps;
console.log(
  JSON.stringify({
    ran,
    parts,
    text: await result.text,
    usage: await result.totalUsage,
    steps: steps.map((step) => ({
      finishReason: step.finishReason,
      text: step.text,
      reasoning: step.reasoningText ?? null,
      calls: step.toolCalls.map((call) => ({ id: call.toolCallId, name: call.toolName, input: call.input })),
    })),
  }),
);
