/* Answers the page's messages: `load` once, then `read` a text and show what the network does, or `write` one. */

const BEST = 8; // likeliest next tokens that are shown
const LN2 = Math.log(2);
let network, tokenizer, special, reading, written, stopped;
const mark = (name) => special[`<|${name}|>`];

/** Token ids of a text or a conversation, of which `most` matter, and which of them are scored: all of a text, or what
    a model replied. */
function idsOf({ text, turns, draft }, most) {
  const ids = [special["<|bos|>"]], scored = [false];
  const append = (more, own) => more.forEach((id) => {
    ids.push(id);
    scored.push(own);
  });
  const ask = (prompt) => {
    append([mark("user_start"), ...tokenizer.encode(prompt, most), mark("user_end"), mark("assistant_start")], false);
  };
  if (text !== undefined) append(tokenizer.encode(text, most), true);
  for (const turn of turns ?? []) {
    ask(turn.prompt);
    let own = true; // the calculator's output is not the model's
    for (const id of turn.ids) {
      if (id === mark("output_start")) own = false;
      append([id], own);
      if (id === mark("output_end")) own = true;
    }
    append([mark("assistant_end")], false);
  }
  if (draft) ask(draft);
  return { ids, scored };
}

/** Softmax and the ids of the largest probabilities, of logits (V,). */
function predict(logits, temperature = 1, count = BEST) {
  const chances = new Float64Array(logits.length), largest = logits.reduce((a, b) => Math.max(a, b), -Infinity);
  let sum = 0;
  for (let i = 0; i < logits.length; i++) sum += chances[i] = Math.exp((logits[i] - largest) / temperature);
  for (let i = 0; i < logits.length; i++) chances[i] /= sum;
  const best = [];
  chances.forEach((chance, id) => {
    if (best.length === count && chance <= chances[best[count - 1]]) return;
    best.splice(best.findIndex((other) => chance > chances[other]) >>> 0, 0, id);
    if (best.length > count) best.pop();
  });
  return { chances, best };
}

/** Bits of every token after the first, and the likeliest tokens at every position, under `changes`. */
function pass(state, changes, first) {
  const stream = network.forward(state, 0, changes, first), { C } = network, bits = [0], best = [];
  for (let i = 0; i < state.ids.length; i++) {
    const { chances, best: ids } = predict(network.unembed(stream.subarray(i * C, (i + 1) * C)));
    best.push(ids.map((id) => [tokenizer.label(id), chances[id], id]));
    if (i + 1 < state.ids.length) bits.push(-Math.log2(chances[state.ids[i + 1]]));
  }
  return { bits, best };
}

/** Of each head, the mean weight on the token itself; of tokens that the text has had before, the mean weight on their
    earlier copies and on what followed those. Null if there are none. */
function sharesOf({ ids, attention }) {
  const n = ids.length, repeats = ids.filter((id, i) => ids.indexOf(id) < i).length;
  return Array.from({ length: network.L * network.H }, (_, head) => {
    let itself = 0, copies = 0, followed = 0;
    for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
      const share = attention[(head * n + i) * n + j];
      if (j === i) itself += share;
      else if (ids[j] === ids[i]) copies += share;
      else if (j > 0 && ids[j - 1] === ids[i]) followed += share;
    }
    return [itself / n, ...[copies, followed].map((sum) => (repeats ? sum / repeats : null))];
  });
}

function read({ source, changes, most }) {
  most = Math.min(most, network.context);
  const { ids: all, scored } = idsOf(source, most), ids = all.slice(0, most), n = ids.length;
  if (String(reading?.ids) !== String(ids)) {
    reading = Object.assign(network.newState(n), { ids, changes: network.trained() });
    reading.attention = new Float32Array(network.L * network.H * n * n);
    reading.before = pass(reading, reading.changes, 0).bits;
  }
  const same = (layer) => JSON.stringify(changes[layer]) === JSON.stringify(reading.changes[layer]);
  let first = 0; // the first layer that has to be computed again
  while (first < network.L - 1 && same(first)) first++;
  const { bits, best } = pass(reading, changes, first), special = ids.map((id) => tokenizer.names.has(id));
  reading.changes = changes;
  let bytes = 0, total = 0, before = 0;
  ids.forEach((id, i) => {
    if (!scored[i] || special[i]) return;
    bytes += tokenizer.bytes(id).length;
    total += bits[i];
    before += reading.before[i];
  });
  const { attention, before: bitsBefore } = reading, labels = ids.map((id) => tokenizer.label(id));
  const score = { perByte: total / bytes, perByteBefore: before / bytes };
  return { ids, labels, special, cut: n < all.length, bits, before: bitsBefore, best, attention, shares: sharesOf(reading), ...score };
}

/** Continue a text, or reply to the last message of a conversation, and post every token. */
async function write({ source, changes, temperature, most = 256, kept = 50 }) {
  const chat = source.text === undefined, { C, context } = network;
  const longest = context - Math.min(most, context >> 2); // the reply needs room
  let { ids } = idsOf(source, context);
  while (chat && source.turns.length && ids.length > longest) { // the oldest turns go if the context is too short
    source.turns.shift();
    ({ ids } = idsOf(source, context));
  }
  const key = JSON.stringify(changes);
  let start = 0; // positions before it are known from the last call
  if (written?.key === key) while (start < ids.length - 1 && ids[start] === written.ids[start]) start++;
  else written = Object.assign(network.newState(context), { key });
  written.ids = ids;
  const decoder = new TextDecoder("utf-8", { ignoreBOM: true }), began = performance.now();
  const forced = [], code = []; // the tokens of a calculator's result, which must come next, and of its call
  const [python, called, output, done] = ["python_start", "python_end", "output_start", "output_end"].map(mark);
  let part = "text", tokens = 0, pause = began, reason = "";
  for (stopped = false; !stopped && tokens < most; tokens++) {
    if (ids.length >= context) { reason = ", the context is full"; break; }
    const logits = network.unembed(network.forward(written, start, changes).subarray(-C)).subarray(0, tokenizer.size);
    const inserted = forced.length > 0, id = inserted ? forced.shift() : sample(logits, temperature, kept);
    const isMark = tokenizer.names.has(id);
    const stops = chat ? isMark && id !== python && id !== called : id === mark("bos");
    if (stops && !inserted) break;
    start = ids.length;
    ids.push(id);
    if (id === called && part === "python") {
      const result = calculate(tokenizer.decode(code.splice(0)));
      if (result !== null) forced.push(output, ...tokenizer.encode(result, context), done);
    }
    if (isMark) part = id === python ? "python" : id === output ? "output" : "text";
    else if (part === "python") code.push(id);
    postMessage({ type: "piece", id, part, opens: id === python, text: isMark ? "" : decoder.decode(tokenizer.bytes(id), { stream: true }) });
    if (performance.now() > pause) { // let a message to stop come in
      await new Promise((resolve) => setTimeout(resolve));
      pause = performance.now() + 50;
    }
  }
  postMessage({ type: "end", tokens, reason, seconds: (performance.now() - began) / 1000 });
}

function sample(logits, temperature, kept) {
  const { chances, best } = predict(logits, temperature || 1, temperature ? kept : 1);
  let left = Math.random() * best.reduce((sum, id) => sum + chances[id], 0);
  return best.find((id) => (left -= chances[id]) < 0) ?? best[0];
}

onmessage = ({ data }) => {
  if (data.type === "load") {
    const text = atob(data.weights), bytes = new Uint8Array(text.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
    tokenizer = new Tokenizer(data.spec.tokenizer);
    special = tokenizer.special;
    network = new Network(data.spec, bytes.buffer);
    postMessage({ type: "ready", trained: network.trained() });
  } else if (data.type === "read") postMessage({ type: "read", ...read(data) });
  else if (data.type === "write") write(data);
  else stopped = true;
};
onunhandledrejection = ({ reason }) => { throw reason; }; // the page's `onerror` shows it
