// Asks the gateway at argv[2] in every way and prints what came back as one line of JSON.

import OpenAI from "openai";

const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const chat = { model: "scripted", messages: [{ role: "user", content: "hi" }] };

async function refusal(changes) {
  try {
    await client.chat.completions.create({ ...chat, ...changes });
  } catch (error) {
    return { status: error.status, code: error.code, param: error.param };
  }
  throw new Error("it was not refused");
}

const whole = await client.chat.completions.create({ ...chat, logprobs: true });
let streamed = "";
let streamedUsage = null;
const stream = await client.chat.completions.create({
  ...chat,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  streamedUsage = chunk.usage ?? streamedUsage;
}
const rebuilt = await client.chat.completions.stream(chat).finalChatCompletion();
const several = await client.chat.completions.stream({ ...chat, n: 3 }).finalChatCompletion();
const legacy = await client.completions.create({ model: "scripted", prompt: "hi" });
const models = [];
for await (const model of client.models.list()) models.push(model.id);

console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    tokens: whole.choices[0].logprobs.content.map((entry) => entry.token).join(""),
    usage: whole.usage,
    streamed,
    streamedUsage,
    rebuilt: rebuilt.choices[0].message.content,
    outputs: several.choices.map((choice) => choice.message.content),
    legacy: legacy.choices[0].text,
    models,
    missing: await refusal({ model: "nobody" }),
    hot: await refusal({ temperature: 3 }),
  }),
);
