// The peer's side of the benchmarks: Mastra agents that do the work of processors.py and agents.py.
//
// Speaks the protocol of client.py: a JSON command per line on stdin; for each, the lines {"event":"begin"} and
// {"event":"end"} around what counts, then the outcome. Started by peer.py, which puts node_modules beside it.
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import { existsSync, readFileSync } from 'node:fs';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { Agent } from '@mastra/core/agent';
import { UnicodeNormalizer } from '@mastra/core/processors';
import { createTool } from '@mastra/core/tools';
import { z } from 'zod';

const settings = JSON.parse(process.argv[2]);
const endpoint = createOpenAICompatible({ name: 'mock', baseURL: settings.api, apiKey: 'none', includeUsage: true });
const blocked = ['top-secret', 'do-not-share', 'verboten'];

const inputProcessors = () => [
  new UnicodeNormalizer(),
  { id: 'bench-input-as-is', processInput: ({ messages }) => messages },
  { id: 'bench-step-number', processInputStep: ({ stepNumber, state }) => { state.step = stepNumber; return {}; } },
];
const passThrough = id => ({
  id,
  async processOutputStream({ part, state }) {
    state.chunks = (state.chunks ?? 0) + 1;
    return part;
  },
});
const wordCount = {
  id: 'bench-word-count',
  async processOutputStream({ part, state }) {
    if (part.type === 'text-delta') {
      state.words = (state.words ?? 0) + part.payload.text.split(/\s+/).filter(Boolean).length;
    }
    return part;
  },
  async processOutputResult({ messages }) { return messages; },
};
const contentFilter = {
  id: 'bench-content-filter',
  async processOutputStream({ part, abort }) {
    if (part.type === 'text-delta' && blocked.some(word => part.payload.text.includes(word))) abort('blocked word');
    return part;
  },
};
const outputProcessors = count => count === 3
  ? [passThrough('bench-pass-through'), wordCount, contentFilter]
  : Array.from({ length: count }, (_, number) => passThrough(`pass-${number}`));
const echo = createTool({
  id: 'bench-echo',
  description: 'Returns its argument.',
  inputSchema: z.object({ x: z.number() }),
  execute: async input => ({ echoed: (input.context ?? input).x }),
});

const canRemember = existsSync(`${settings.modules}/@mastra/memory`) && existsSync(`${settings.modules}/@mastra/libsql`);
let memory;
if (canRemember) {
  const { Memory } = await import('@mastra/memory');
  const { LibSQLStore } = await import('@mastra/libsql');
  const options = { lastMessages: 10, semanticRecall: false, workingMemory: { enabled: false }, generateTitle: false };
  memory = new Memory({ storage: new LibSQLStore({ id: 'bench', url: settings.database }), options });
}

const agents = new Map();
function agentFor({ model, inputs, outputs, tools, thread }) {
  const key = JSON.stringify([model, inputs, outputs, tools, thread !== null]);
  if (!agents.has(key)) {
    agents.set(key, new Agent({
      id: 'bench', name: 'bench', instructions: settings.instructions, model: endpoint(model),
      inputProcessors: inputs ? inputProcessors() : [],
      outputProcessors: outputProcessors(outputs),
      ...(tools ? { tools: { 'bench-echo': echo } } : {}),
      ...(thread === null ? {} : { memory }),
    }));
  }
  return agents.get(key);
}

async function* agentTexts(command) {
  const remembered = command.thread === null ? {} : { memory: { thread: command.thread, resource: settings.resource } };
  const run = await agentFor(command).stream(settings.input, { maxSteps: 30, ...remembered });
  for await (const chunk of run.fullStream) {
    if (chunk.type === 'text-delta') yield chunk.payload.text;
    else if (chunk.type === 'error') throw chunk.payload.error;
    else if (chunk.type === 'tripwire') throw new Error('blocked');
  }
}

async function* rawTexts({ model }) {
  const response = await fetch(settings.api + '/chat/completions', {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer none' },
    body: JSON.stringify({
      model, stream: true, stream_options: { include_usage: true },
      messages: [{ role: 'system', content: settings.instructions }, { role: 'user', content: settings.input }],
    }),
  });
  const decoder = new TextDecoder();
  let rest = '';
  for await (const bytes of response.body) {
    const lines = (rest + decoder.decode(bytes, { stream: true })).split('\n');
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data: {')) continue;
      const text = JSON.parse(line.slice(6)).choices[0]?.delta?.content;
      if (text) yield text;
    }
  }
}

async function oneRun(command, onText) {
  const began = performance.now();
  let first = null;
  const texts = [];
  let problem = null;
  try {
    for await (const text of command.raw ? rawTexts(command) : agentTexts(command)) {
      first ??= performance.now() - began;
      texts.push(text);
      onText?.(text);
    }
    const wrong = command.text === null ? texts.length !== command.chunks : texts.join('') !== command.text;
    if (wrong) problem = `wrong text in ${texts.length} chunks: ${texts.join('').slice(0, 200)}`;
  } catch (error) {
    problem = String(error?.stack ?? error);
  }
  return { wallMs: performance.now() - began, firstMs: first, chunks: texts.length, problem };
}

const say = value => process.stdout.write(JSON.stringify(value) + '\n');

async function pool(command, count) {
  let left = count;
  const runs = [];
  const worker = async () => { while (left-- > 0) runs.push(await oneRun(command)); };
  await Promise.all(Array.from({ length: Math.min(command.concurrency, count) }, worker));
  return runs;
}

async function pooled(command) {
  const warm = await pool(command, command.warm);
  say({ event: 'begin' });
  const began = performance.now();
  const runs = await pool(command, command.runs);
  const seconds = (performance.now() - began) / 1000;
  await sleep(settings.settleMs);
  say({ event: 'end' });
  return { runs, seconds, lags: [], problems: [...warm, ...runs].map(run => run.problem).filter(Boolean) };
}

async function paced(command) {
  const lags = [];
  let counting = false;
  const onText = text => {
    if (!counting) return;
    lags.push(Number(process.hrtime.bigint() - BigInt(text.slice(1, text.indexOf('@', 1)))) / 1e6);
  };
  const all = Array.from({ length: command.concurrency }, async (_, number) => {
    await sleep((number * settings.spread % 1) * 1000);
    return oneRun(command, onText);
  });
  await sleep(1500);
  say({ event: 'begin' });
  counting = true;
  const began = performance.now();
  await sleep(command.seconds * 1000);
  counting = false;
  const seconds = (performance.now() - began) / 1000;
  say({ event: 'end' });
  const runs = await Promise.all(all);
  return { runs, seconds, lags, problems: runs.map(run => run.problem).filter(Boolean) };
}

const version = name => JSON.parse(readFileSync(`${settings.modules}/${name}/package.json`, 'utf8')).version;
const names = ['@mastra/core', 'ai', ...(canRemember ? ['@mastra/memory', '@mastra/libsql'] : [])];
const versions = Object.fromEntries(names.map(name => [name, version(name)]));
say({ event: 'ready', versions: { node: process.version, ...versions } });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  say(await (command.seconds ? paced(command) : pooled(command)));
}
process.exit(0);
