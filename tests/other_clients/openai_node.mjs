// The official client for Node: text, structured answers, streams, the old endpoint, and what a refusal becomes.
import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const MODEL = "free";
const QUESTION = "Tell me of the mill.";
const Mood = z.object({
  mood: z.enum(["bright", "dark", "calm"]),
  score: z.int().min(1).max(9),
  tags: z.array(z.string().regex(/^[a-z]{2,8}$/)).min(1).max(3),
});
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none" });
const messages = [{ role: "user", content: QUESTION }];
const asked = { model: MODEL, messages };
const long = { ...asked, max_tokens: 5_000, structured_outputs: { regex: "[a-z]{1000}".repeat(16) } }; // 20 seconds
const outcomes = {};

async function call(name, ask) {
  try {
    outcomes[name] = await ask();
  } catch (error) {
    console.error(error);
    outcomes[name] = { error: `${error.name}: ${error.message}` };
  }
}

await call("plain", async () => (await client.chat.completions.create(asked)).choices[0].message.content);
await call("parse", async () => {
  const response_format = zodResponseFormat(Mood, "mood");
  return (await client.chat.completions.parse({ ...asked, response_format })).choices[0].message.parsed;
});
await call("tool", async () => {
  const tools = [zodFunction({ name: "mood", parameters: Mood })];
  const answer = await client.chat.completions.parse({ ...asked, tools, tool_choice: "required" });
  return answer.choices[0].message.tool_calls[0].function.parsed_arguments;
});
await call("stream", async () => {
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  return text;
});
await call("stream of a model", async () => {
  const stream = client.chat.completions.stream({ ...asked, response_format: zodResponseFormat(Mood, "mood") });
  return (await stream.finalChatCompletion()).choices[0].message.parsed;
});
await call("usage of a stream", async () => {
  const stream = client.chat.completions.stream({ ...asked, stream_options: { include_usage: true } });
  return (await stream.totalUsage()).total_tokens;
});
await call("completion", async () => (await client.completions.create({ model: MODEL, prompt: QUESTION })).choices[0].text);
await call("models", async () => (await client.models.list()).data.map((model) => model.id));
await call("timed out", async () => {
  // A call's own timeout goes out in a header; one of the whole client would not. It would try twice more.
  try {
    await client.chat.completions.create(long, { timeout: 8_000 });
    return "nothing was raised";
  } catch (error) {
    return { kind: error.constructor.name, status: error.status };
  }
});
await call("left", async () => {
  for await (const chunk of await client.chat.completions.create({ ...long, stream: true })) {
    if (chunk.choices[0]?.delta?.content) break; // which closes the connection
  }
  return "after the first token";
});
await call("refused", async () => {
  try {
    await client.chat.completions.create({ ...asked, responseFormat: {} });
    return "nothing was raised";
  } catch (error) {
    return { kind: error.constructor.name, status: error.status, param: error.param, code: error.code };
  }
});
console.log(JSON.stringify(outcomes));
