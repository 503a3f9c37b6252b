// A client without Procession's library, for Node: docs/how-to/use-another-language.md explains it.
//   npm install @nats-io/transport-node@3 @nats-io/jetstream@3
//   node bare_client.mjs nats://127.0.0.1:4222 default demo '{"runId": "my-run", "input": "Hello"}'
import { jetstream } from "@nats-io/jetstream";
import { connect, errors } from "@nats-io/transport-node";
import { createHash } from "node:crypto";

const PATIENCE_MS = 2000;
const RUN_ID = /^[A-Za-z0-9_-]{1,128}$/;

/** The chunks of a run by their numbers, whatever comes twice, late or out of order. */
export class Answer {
  #said = new Map(); // fence -> number -> chunk
  #begun = new Map(); // fence -> the first number that it says, and that from which on it takes back
  #ends = new Map(); // fence -> the number behind its last chunk

  /** Takes a message from `procession.v1.chunk.<tenant>.<run>`, or one of the backlog. */
  take({ seq: first, fence = 0, reset, chunks, end = false }) {
    const start = reset ?? first;
    const [least, earliest] = this.#begun.get(fence) ?? [first, start];
    this.#begun.set(fence, [Math.min(first, least), Math.min(first, start, earliest)]);
    const said = this.#said.get(fence) ?? new Map();
    this.#said.set(fence, said);
    chunks.forEach((chunk, at) => said.set(first + at, chunk));
    if (end) this.#ends.set(fence, first + chunks.length);
  }

  /** The chunks that count by their numbers, and the number of the next one that has not come yet. */
  #counting() {
    const counting = new Map();
    const leftOut = [];
    let limit = Infinity;
    for (const fence of [...this.#said.keys()].sort((a, b) => b - a)) {
      const [first, start] = this.#begun.get(fence);
      if (first > limit) continue; // of somebody who does not know yet that others have the work
      for (const [number, chunk] of this.#said.get(fence)) {
        if (number < limit) counting.set(number, chunk);
      }
      leftOut.push([start, first]);
      limit = Math.min(start, limit);
    }
    for (let following = 0; ; ) {
      if (counting.has(following)) {
        following += 1;
        continue;
      }
      const skipped = leftOut.filter(([start, first]) => start <= following && following < first);
      if (!skipped.length) return { counting, following };
      following = Math.max(...skipped.map(([, first]) => first));
    }
  }

  /** The chunks that count, as far as there is no gap; some may be taken back later. */
  get chunks() {
    const { counting, following } = this.#counting();
    const numbers = [...counting.keys()].filter((number) => number < following).sort((a, b) => a - b);
    return numbers.map((number) => counting.get(number));
  }

  /** Their text, without that of attempts behind which the model was asked again. */
  get text() {
    let [kept, attempt] = ["", ""];
    for (const { type, payload } of this.chunks) {
      if (type === "step-start") [kept, attempt] = [kept + attempt, ""];
      else if (type === "text-delta") attempt += payload.text;
      else if (type === "step-finish" && payload.stepResult.reason === "retry") attempt = "";
    }
    return kept + attempt;
  }

  /** Whether chunks are here that others come before. */
  get gap() {
    const { counting, following } = this.#counting();
    return [...counting.keys()].some((number) => number > following);
  }

  /** Whether the end is here and all before it. */
  get complete() {
    return this.has(this.#ends.get(Math.max(...this.#said.keys())) ?? Infinity);
  }

  /** Whether all before that number is here. */
  has(number) {
    return this.#counting().following >= number;
  }
}

/** What is told of a run beside its chunks; `ours` is the fingerprint of our request. */
export class Outcome {
  #events = {};
  #refusals = {}; // by the number of the request
  #ours;

  constructor(ours) {
    this.#ours = ours;
  }

  /** Takes an event from `procession.v1.event.<tenant>.<run>.*.*`; of ends that are heard the first one counts. */
  take(event, stored = false) {
    if ((event.fingerprint ?? this.#ours) !== this.#ours) return; // about somebody else's request of the same id
    if (event.type === "request.rejected") this.#refusals[event.sequence] = event.error.message;
    else if (stored || event.type !== "run.finished") this.#events[event.type] = event;
    else this.#events[event.type] ??= event;
  }

  /** Why the request of that number was refused; others are about somebody else's of the same id. */
  refusal(sequence) {
    return this.#refusals[sequence] ?? this.#refusals[undefined];
  }

  /** The event that the run has ended, or that it waits for a person and nobody has decided. */
  get end() {
    const { "run.finished": finished, "run.suspended": waits, "run.resumed": resumed } = this.#events;
    return finished ?? (waits?.fence > (resumed?.fence ?? -1) ? waits : undefined);
  }

  /**
   * The result, when all chunks are here that came before; `whole` says that no others will come. Of a run that did not
   * end well some may never come, and chunks are forgotten after an hour: the result has the whole text.
   */
  result(answer, whole) {
    if (!this.end) return undefined;
    const { result, endSeq } = this.end;
    const isRead = answer.complete && answer.has(endSeq ?? 0);
    return whole || isRead || !["finished", "suspended"].includes(result.status) ? result : undefined;
  }
}

const place = (end) => end && `${end.type} ${end.fence}`;

/**
 * Sends a request, which names its `runId`, and returns the `result` of the run; throws when it was refused.
 * The same request again is the same run: who has lost the connection, or died, calls this once more; so does who has
 * decided for what a run waits whose `status` is `suspended`. `connection` are options of `connect`; a user with
 * permissions hears answers below `inboxPrefix: "_INBOX.<user>"` only.
 */
export async function ask(url, tenant, agent, request, show, connection = {}) {
  const run = request.runId;
  if (!RUN_ID.test(run ?? "")) throw new Error(`runId must be 1 to 128 letters, digits, '_' or '-': else nobody hears its end`);
  const [address, body] = [`procession.v1.run.${tenant}.${agent}`, JSON.stringify(request)];
  const ours = createHash("sha256").update(address).update(body).digest("hex").slice(0, 32);
  const answer = new Answer();
  const outcome = new Outcome(ours);
  const subject = `procession.v1.event.${tenant}.${run}`;
  let seen = 0;
  let ring = () => {};
  let refused;
  let all; // the end for which all is here that is stored: it was looked up behind it
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
    const ended = place(outcome.end);
    for (;;) {
      const asked = JSON.stringify({ run, after: seen });
      const told = await bus.request(`procession.v1.api.orchestrator.${tenant}.backlog`, asked, { timeout: 5000 });
      const { last, batches } = told.json();
      if (!last) break;
      seen = last;
      batches.forEach((batch) => answer.take(batch));
    }
    for (const type of ["run.suspended", "run.resumed", "run.finished", "request.rejected"]) {
      const stored = await bus.request(`$JS.API.DIRECT.GET.EVENTS.${subject}.${type}`, "", { timeout: 5000 });
      if (stored.headers?.code !== 404) outcome.take(stored.json(), true);
    }
    all = ended;
  }

  try {
    hear(`procession.v1.chunk.${tenant}.${run}`, (batch) => {
      answer.take(batch);
      show(answer);
    });
    hear(`${subject}.*.*`, (event) => outcome.take(event));
    const stored = await jetstream(bus).publish(address, body);
    let behind = stored.duplicate; // the run is older than we, and what comes may be of anybody
    for (;;) {
      if (behind || answer.gap) {
        await catchUp().then(() => (behind = false), later);
        show(answer);
      }
      if (refused) throw refused;
      const refusal = outcome.refusal(stored.seq);
      if (refusal) throw new Error(refusal);
      const whole = request.stream === false || (all !== undefined && all === place(outcome.end));
      const result = outcome.result(answer, whole);
      if (result && !behind) return result;
      behind = !(await news()) || behind;
    }
  } finally {
    await bus.close();
  }
}

if (process.argv[1] === import.meta.filename) {
  const [url, tenant, agent, request] = process.argv.slice(2);
  if (request === undefined) {
    console.error("usage: bare_client.mjs NATS_URL TENANT AGENT REQUEST, which is JSON");
    process.exit(1);
  }
  let shown = "";
  const result = await ask(url, tenant, agent, JSON.parse(request), ({ text }) => {
    if (text !== shown) console.log(JSON.stringify({ text: (shown = text) }));
  });
  console.log(JSON.stringify({ result }));
}
