// A client without Procession's library, for Node: docs/how-to/use-another-language.md explains it.
//   npm install @nats-io/transport-node@3 @nats-io/jetstream@3
//   node bare_client.mjs nats://127.0.0.1:4222 default demo '{"runId": "my-run", "input": "Hello"}'
import { jetstream } from "@nats-io/jetstream";
import { connect, errors } from "@nats-io/transport-node";

const PATIENCE_MS = 2000;

/** The chunks of a run by their numbers, whatever comes twice, late or out of order. */
export class Answer {
  #held = new Map(); // number -> { fence, chunk }
  #starts = new Map(); // fence -> the first number that it says anew
  #leftOut = [];
  #next = 0;
  #end = { fence: -1, total: 0 };

  /** Takes a message from `procession.v1.chunk.<tenant>.<run>`, or one of the backlog. */
  take({ seq: first, fence = 0, reset = null, chunks, end = false }) {
    const start = reset === null ? first : Math.min(first, reset);
    if (start < (this.#starts.get(fence) ?? Infinity)) {
      this.#starts.set(fence, start);
      for (const [number, held] of this.#held) {
        if (!this.#counts(number, held.fence)) this.#held.delete(number);
      }
      this.#next = Math.min(this.#next, start);
    }
    if (reset !== null) this.#leftOut.push([reset, first]);
    chunks.forEach((chunk, at) => {
      if (this.#counts(first + at, fence)) this.#held.set(first + at, { fence, chunk });
    });
    const total = first + chunks.length;
    if (end && (fence > this.#end.fence || (fence === this.#end.fence && total > this.#end.total))) {
      this.#end = { fence, total };
    }
  }

  /** Whether nobody of a greater fence has said this number, or one before it, anew. */
  #counts(number, fence) {
    return [...this.#starts].every(([other, start]) => other <= fence || number < start);
  }

  /** The number of the next chunk that has not come yet. */
  #following() {
    for (;;) {
      const over = this.#leftOut.filter(([from, to]) => from <= this.#next && this.#next < to);
      if (this.#held.has(this.#next)) this.#next += 1;
      else if (over.length) this.#next = Math.max(...over.map(([, to]) => to));
      else return this.#next;
    }
  }

  /** The chunks that count, as far as there is no gap; some may be taken back later. */
  get chunks() {
    const following = this.#following();
    const numbers = [...this.#held.keys()].filter((number) => number < following).sort((a, b) => a - b);
    return numbers.map((number) => this.#held.get(number).chunk);
  }

  get text() {
    return this.chunks.filter((c) => c.type === "text-delta").map((c) => c.payload.text).join("");
  }

  /** Whether chunks are here that others come before. */
  get gap() {
    const following = this.#following();
    return [...this.#held.keys()].some((number) => number > following);
  }

  /** Whether the end is here and all before it. */
  get complete() {
    return this.#end.fence === Math.max(...this.#starts.keys()) && this.#following() >= this.#end.total;
  }
}

/**
 * Sends a request, which names its `runId`, and returns the `result` of the run; throws when it was refused.
 * The same request again is the same run: who has lost the connection, or died, calls this once more. `connection` are
 * options of `connect`; a user with permissions hears answers below `inboxPrefix: "_INBOX.<user>"` only.
 */
export async function ask(url, tenant, agent, request, show, connection = {}) {
  const run = request.runId;
  const answer = new Answer();
  const events = {};
  const subject = `procession.v1.event.${tenant}.${run}`;
  let seen = 0;
  let ring = () => {};
  let refused;
  const bus = await connect({ servers: url, maxReconnectAttempts: -1, ...connection });

  function hear(subjectOfThem, take) {
    bus.subscribe(subjectOfThem, {
      callback: (error, message) => {
        if (error) refused = error; // by the server: we may not listen there
        else take(message.json());
        ring(true);
      },
    });
  }
  const news = () =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, PATIENCE_MS, false);
      ring = (rung) => (clearTimeout(timer), resolve(rung));
    });
  function later(error) {
    const away = error instanceof errors.TimeoutError || error instanceof errors.RequestError;
    if (!away) throw error; // nobody has answered; the next look is soon
  }
  async function catchUp() {
    for (;;) {
      const asked = JSON.stringify({ run, after: seen });
      const told = await bus.request(`procession.v1.api.orchestrator.${tenant}.backlog`, asked, { timeout: 5000 });
      const { last, batches } = told.json();
      if (!last) break;
      seen = last;
      batches.forEach((batch) => answer.take(batch));
    }
    const stored = await bus.request(`$JS.API.DIRECT.GET.EVENTS.${subject}.run.finished`, "", { timeout: 5000 });
    if (stored.headers?.code !== 404) events["run.finished"] = stored.json();
  }

  try {
    hear(`procession.v1.chunk.${tenant}.${run}`, (batch) => {
      answer.take(batch);
      show(answer);
    });
    hear(`${subject}.*.*`, (event) => (events[event.type] = event));
    const stored = await jetstream(bus).publish(`procession.v1.run.${tenant}.${agent}`, JSON.stringify(request));
    for (;;) {
      if (refused) throw refused;
      const rejected = events["request.rejected"];
      if (rejected && [undefined, stored.seq].includes(rejected.sequence)) throw new Error(rejected.error.message);
      const result = events["run.finished"]?.result;
      const whole = answer.complete || request.stream === false;
      if (result && (whole || result.status !== "finished")) return result;
      const quiet = !(await news());
      if (quiet || answer.gap) {
        await catchUp().catch(later); // something was missed, or the run is older than we
        show(answer);
      }
    }
  } finally {
    await bus.close();
  }
}

if (process.argv[1] === import.meta.filename) {
  const [url, tenant, agent, request] = process.argv.slice(2);
  let shown = "";
  const result = await ask(url, tenant, agent, JSON.parse(request), ({ text }) => {
    if (text !== shown) console.log(JSON.stringify({ text: (shown = text) }));
  });
  console.log(JSON.stringify({ result }));
}
