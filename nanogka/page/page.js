const spec = JSON.parse($("spec").textContent);
const MOST = 256; // tokens that are read: every head has a square of this size
const HEADS = spec.num_attention_heads;
const state = { mode: spec.kind === "chat" ? "chat" : "text", turns: [], token: Infinity, layer: 0, head: 0 };
let trained, shown, pointed = null, writing = false, busy = false, stale = false;

const quoted = (i) => `“${word(shown.labels[i])}”`;
const copy = (value) => JSON.parse(JSON.stringify(value));
/** The token under the mouse, else the chosen one, at first the last; a finished reply's mark predicts nothing. */
function token() {
  const end = shown.labels.at(-1) === "<|assistant_end|>" ? 2 : 1;
  return Math.min(pointed ?? state.token, shown.ids.length - (pointed === null && state.token === Infinity ? end : 1));
}
/** A_ij of a head: the share of its look that token i gives to token j. */
const weight = (l, h, i, j) => shown.attention[((l * HEADS + h) * shown.ids.length + i) * shown.ids.length + j];

// ---- the worker ----

const engine = new Blob([$("engine").textContent], { type: "text/javascript" });
const worker = new Worker(URL.createObjectURL(engine));
const post = (type, values) => worker.postMessage({ type, ...values });
const chatting = () => state.mode === "chat";
function source() {
  return chatting() ? { turns: state.turns, draft: $("draft").value.trim() } : { text: $("source").value };
}

/** Have the text read again. While the worker is busy, only the last request is kept. */
function refresh() {
  stale = busy || writing;
  if (stale) return;
  busy = true;
  $("reading").setAttribute("aria-busy", "true");
  post("read", { source: source(), changes: state.changes, most: MOST });
}

const receive = {
  ready(data) {
    trained = data.trained;
    state.changes = copy(trained);
    $("weights").remove();
    $("loading").hidden = true;
    document.querySelector("main").hidden = false;
    trained.forEach(buildLayer);
    choose(state.layer, state.head);
    setMode(state.mode);
  },
  read(data) {
    shown = data;
    busy = false;
    $("reading").setAttribute("aria-busy", "false");
    draw();
    if (stale) refresh();
  },
  piece({ text, part, id, opens }) {
    if (!chatting()) {
      $("source").value += text;
      $("source").scrollTop = $("source").scrollHeight;
      return;
    }
    const turn = state.turns.at(-1), { calls } = turn;
    turn.ids.push(id);
    if (opens) calls.push({ code: "", result: "" });
    else if (part === "text") turn.text = (turn.text + text).trimStart(); // a reply may begin with a blank
    else calls.at(-1)[part === "python" ? "code" : "result"] += text;
    drawMessages();
  },
  end({ tokens, seconds, reason }) {
    writing = false;
    $("speed").textContent = `${tokens} tokens, ${(tokens / seconds).toFixed(0)} per second${reason}`;
    drawMessages();
    refresh();
  },
};
worker.onmessage = ({ data }) => receive[data.type](data);
worker.onerror = (event) => {
  $("loading").hidden = false;
  $("loading").textContent = `The model stopped: ${event.message}. Reload the page.`;
};

function write() {
  if (writing) return post("stop");
  const asked = source(), prompt = asked.draft;
  if (prompt === "") return $("draft").focus();
  post("write", { source: asked, changes: state.changes, temperature: Number($("temperature").value) });
  writing = true;
  if (prompt) state.turns.push({ prompt, ids: [], text: "", calls: [] });
  $("draft").value = "";
  drawMessages();
}

// ---- what is shown ----

function draw() {
  const change = shown.perByte - shown.perByteBefore, [number, unit, effect] = $("score").children;
  const scored = Number.isFinite(shown.perByte), changed = JSON.stringify(state.changes) !== JSON.stringify(trained);
  const cut = shown.cut ? `, first ${shown.ids.length} tokens` : "";
  number.textContent = scored ? shown.perByte.toFixed(3) : "";
  unit.textContent = scored ? `bits per byte of the ${chatting() ? "replies" : "text"}${cut}` : "Nothing to score yet";
  const sign = change < 0 ? "−" : "+";
  effect.textContent = scored && changed ? `${sign}${Math.abs(change).toFixed(3)} through your changes` : "";
  effect.className = change < 0 ? "better" : "";
  $("reset").disabled = !changed;
  $("tokens").replaceChildren(...shown.labels.map((label, i) => {
    const span = make("span", { textContent: visible(label), className: shown.special[i] ? "special" : "" });
    span.dataset.i = i;
    return span;
  }));
  drawToken();
  trained.forEach((layer, l) => layer.sigma.forEach((_, h) => drawHead(l, h)));
}

/** The number of each token that colors it, and what the largest stands for. */
function tokenValues() {
  const t = token(), { layer, head } = state, view = $("view").value, bits = view === "bits" || view === "change";
  const values = shown.labels.map((_, i) => {
    if (view === "from") return i <= t ? weight(layer, head, t, i) : 0;
    if (view === "to") return i >= t ? weight(layer, head, i, t) : 0;
    return shown.bits[i] - (view === "change" ? shown.before[i] : 0);
  });
  return { values, bits, largest: bits ? Math.max(1, ...values.map(Math.abs)) : 1 };
}

function drawToken() {
  const t = token(), { layer, head } = state, { values, bits, largest } = tokenValues();
  [...$("tokens").children].forEach((span, i) => {
    const share = values[i] / largest;
    span.classList.toggle("chosen", i === t);
    span.title = bits ? `${values[i].toFixed(2)} bits` : `weight ${percent(values[i])}`;
    color(span, bits ? Math.abs(share) : Math.sqrt(share), !bits ? "weight" : share < 0 ? "better" : "surprise");
  });
  $("low").textContent = $("view").value === "change" ? `−${largest.toFixed(1)}` : "0";
  $("high").textContent = bits ? `${largest.toFixed(1)} bits` : "100 % of the weight";
  $("scale").dataset.view = $("view").value;
  const most = (a, b) => weight(layer, head, t, b) - weight(layer, head, t, a);
  const looks = shown.ids.map((_, j) => j).slice(0, t + 1).sort(most).slice(0, 4).map((j) => {
    const place = j === t ? "itself" : `${quoted(j)} ${t - j} back`;
    return `${place} (${percent(weight(layer, head, t, j))})`;
  });
  $("looks").textContent = `Layer ${layer}, head ${head}: ${quoted(t)} looks at ${looks.join(", ")}.`;
  drawNext(t);
  const place = { top: `${(100 * t) / shown.ids.length}%`, height: `${100 / shown.ids.length}%` };
  document.querySelectorAll(".line").forEach((line) => Object.assign(line.style, place));
}

function drawNext(t) {
  $("after").textContent = `What comes after ${quoted(t)}?`;
  const follows = t + 1 < shown.ids.length;
  $("actual").textContent = follows ? `In this text, ${quoted(t + 1)}: ${shown.bits[t + 1].toFixed(2)} bits.` : "";
  $("next").replaceChildren(...shown.best[t].map(([label, chance, id]) => {
    const parts = [make("b", { textContent: word(label) }), make("i", { textContent: percent(chance) })];
    const button = make("button", { type: "button", disabled: chatting(), title: "append it to the text" }, ...parts);
    button.classList.toggle("actual", follows && id === shown.ids[t + 1]);
    button.style.setProperty("--share", `${100 * chance}%`);
    button.addEventListener("click", () => {
      $("source").value += label;
      state.token = Infinity;
      refresh();
    });
    return button;
  }));
}

function drawHead(l, h) {
  const card = document.querySelector(`[data-head="${l} ${h}"]`), n = shown.ids.length;
  const { sigma, cut } = state.changes[l];
  card.querySelector("output").textContent = sigma[h].toFixed(2);
  card.querySelector("[type=range]").value = Math.log2(sigma[h] / trained[l].sigma[h]);
  card.querySelector("[type=checkbox]").checked = cut[h];
  card.classList.toggle("cut", cut[h]);
  const canvas = card.querySelector("canvas");
  drawTriangle(canvas, n, (i, j) => Math.sqrt(weight(l, h, i, j)));
  canvas.style.imageRendering = n > canvas.clientWidth ? "auto" : "pixelated"; // squares, unless some would be left out
  card.querySelectorAll("i").forEach((place, k) => {
    const share = shown.shares[l * HEADS + h][k];
    place.textContent = share === null ? "—" : percent(share);
  });
}

function drawMessages() {
  $("write").textContent = writing ? "Stop" : chatting() ? "Send" : "Continue";
  $("messages").replaceChildren(...state.turns.flatMap(({ prompt, text, calls }, i) => {
    const waiting = writing && i === state.turns.length - 1;
    const call = (c) => make("p", { className: "call", textContent: `calculator: ${c.code} → ${c.result || "no result"}` });
    const reply = { className: waiting ? "waiting" : "", textContent: text || (waiting ? "" : "(an empty reply)") };
    return [make("p", { className: "user", textContent: prompt }), ...calls.map(call), make("p", reply)];
  }));
  $("messages").scrollTop = $("messages").scrollHeight;
}

// ---- what a visitor does ----

function buildLayer({ sigma, successor }, l) {
  const layer = $("layer").content.cloneNode(true), { window } = spec.mixers[l], box = layer.querySelector("input");
  layer.querySelector("h3").textContent = `Layer ${l}`;
  layer.querySelector("small").textContent = window ? `sees ${window} tokens back` : "sees the whole text";
  box.checked = successor;
  box.addEventListener("change", () => { state.changes[l].successor = box.checked; refresh(); });
  $("reset").addEventListener("click", () => { box.checked = successor; });
  sigma.forEach((learned, h) => {
    const head = $("head").content.cloneNode(true), card = head.firstElementChild, name = `layer ${l}, head ${h}`;
    const [range, cut] = card.querySelectorAll("input");
    card.dataset.head = `${l} ${h}`;
    card.querySelector("b").textContent = `Head ${h}`;
    card.firstElementChild.setAttribute("aria-label", `choose ${name}`);
    range.setAttribute("aria-label", `σ of ${name}`);
    cut.setAttribute("aria-label", `cut ${name}`);
    const change = (key, value) => {
      state.changes[l][key][h] = value;
      choose(l, h);
      refresh();
    };
    range.addEventListener("input", () => change("sigma", learned * 2 ** range.value)); // the middle is exact
    cut.addEventListener("change", () => change("cut", cut.checked));
    card.firstElementChild.addEventListener("click", () => choose(l, h));
    layer.querySelector(".heads").append(head);
  });
  $("layers").append(layer);
}

function choose(layer, head) {
  Object.assign(state, { layer, head });
  document.querySelectorAll(".head").forEach((card) => {
    const chosen = card.dataset.head === `${layer} ${head}`;
    card.classList.toggle("chosen", chosen);
    card.firstElementChild.setAttribute("aria-pressed", chosen);
  });
  if (shown) drawToken();
}

function setMode(mode) {
  Object.assign(state, { mode, token: Infinity });
  for (const name of ["chat", "text"]) $(name).hidden = name !== mode;
  for (const button of $("tabs").children) button.setAttribute("aria-pressed", button.value === mode);
  drawMessages();
  refresh();
}

function clear() {
  if (writing) return;
  state.turns = [];
  $(chatting() ? "draft" : "source").value = "";
  drawMessages();
  refresh();
}

const facts = [spec.label, `${spec.parameters.toLocaleString("en")} weights as ${spec.weights}`, `step ${spec.step}`];
const safe = "It runs in your browser, offline. Nothing that you type leaves this page.";
const says = spec.promise ? `It says: “${spec.promise}” Write to it, or press an example.` : "Write to it.";
$("promise").textContent = chatting() ? says : "It continues text: it guesses the next token, again and again.";
$("about").textContent = `${spec.tag}: ${facts.join(", ")}. ${safe}`;
$("source").value = spec.text;
$("draft").value = spec.questions[0] ?? "";
$("tabs").hidden = !chatting();
$("questions").append(...spec.questions.map((question) => {
  const button = make("button", { type: "button", textContent: question });
  button.addEventListener("click", () => {
    if (writing) return;
    $("draft").value = question;
    write();
  });
  return button;
}));
for (const button of $("tabs").children) button.addEventListener("click", () => !writing && setMode(button.value));
for (const id of ["source", "draft"]) $(id).addEventListener("input", () => {
  state.token = Infinity;
  refresh();
});
$("draft").addEventListener("keydown", (event) => {
  if (!sends(event) || writing) return;
  event.preventDefault();
  write();
});
$("write").addEventListener("click", write);
$("clear").addEventListener("click", clear);
$("reset").addEventListener("click", () => {
  state.changes = copy(trained);
  refresh();
});
$("view").addEventListener("change", drawToken);
function showTemperature() {
  $("temperature").nextElementSibling.textContent = Number($("temperature").value).toFixed(2);
}
$("temperature").addEventListener("input", showTemperature);
showTemperature();

const tokenAt = (event) => (event.target.dataset.i === undefined ? null : Number(event.target.dataset.i));
function point(token) {
  pointed = token;
  drawToken();
}
$("tokens").addEventListener("mouseover", (event) => point(tokenAt(event)));
$("tokens").addEventListener("mouseleave", () => point(null));
$("tokens").addEventListener("click", (event) => {
  state.token = tokenAt(event) ?? state.token;
  drawToken();
});
$("tokens").addEventListener("keydown", (event) => {
  const [step, turn] = arrow(event) ?? [];
  if (step === undefined) return;
  event.preventDefault();
  state.token = Math.max(0, Math.min(shown.ids.length - 1, token() + step));
  pointed = null;
  const heads = HEADS * spec.num_hidden_layers, next = (state.layer * HEADS + state.head + turn + heads) % heads;
  choose(Math.floor(next / HEADS), next % HEADS);
});
addEventListener("theme", () => shown && draw());
post("load", { spec, weights: $("weights").textContent });
