const data = JSON.parse($("data").textContent);
const WHY = 8; // positions that are listed of a row
const unpack = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

const state = { t: 0, l: 0, h: 0, view: "from", by: "", rescale: true };
let pointed = null; // token under the mouse, of the first model

class Model {
  constructor(source) {
    Object.assign(this, source);
    this.length = this.tokens.length;
    this.triangle = (this.length * (this.length + 1)) / 2;
    this.weights = unpack(this.weights);
    this.largest = new Float32Array(unpack(this.largest).buffer);
    this.logits = new Float32Array(unpack(this.logits).buffer);
    let slot = 0;
    for (const layer of this.layers) layer.slot = layer.given ? slot++ : -1;
  }
  /** The chosen layer and head, as far as this model has them. */
  get layer() { return Math.min(state.l, this.layers.length - 1); }
  get head() { return Math.min(state.h, this.heads - 1); }
  get given() { return this.layers[this.layer].given; }
  row(i) { return (this.layers[this.layer].slot * this.heads + this.head) * this.length + i; }
  /** A_ij of the chosen layer and head. */
  weight(i, j) {
    if (j > i || !this.given) return 0;
    const matrix = this.layers[this.layer].slot * this.heads + this.head;
    return (this.weights[matrix * this.triangle + (i * (i + 1)) / 2 + j] / 255) ** 2 * this.largest[this.row(i)];
  }
  /** The logit of A_ij: −‖q − k‖² / 2σ² for a Gaussian kernel, q·k / τ for dot-product attention. */
  logit(i, j) { return this.logits[this.row(i)] + Math.log(this.weight(i, j) / this.largest[this.row(i)]); }
  /** The token at the same place of the text as token `index` of `other`. */
  at(index, other) {
    if (other === this) return Math.min(index, this.length - 1);
    const start = other.starts[Math.min(index, other.length - 1)];
    let found = 0;
    while (found + 1 < this.length && this.starts[found + 1] <= start) found++;
    return found;
  }
  get token() { return this.at(pointed ?? state.t, models[0]); }
}
const models = data.models.map((source) => new Model(source));

const digits = (value) => (value == null ? "—" : value !== 0 && Math.abs(value) < 0.001 ? value.toExponential(1) : Number(value.toPrecision(3)).toString());

// ---- the parts of the page, made once ----

function build(model) {
  const view = (model.view = {});
  // In a chat the bits are those of the reply, without the calculator's result, which the engine inserts.
  let inserted = false;
  const own = model.tokens.map((label, i) => {
    const now = inserted || label === "<|output_start|>";
    inserted = now && label !== "<|output_end|>";
    return model.reply == null || (i >= model.reply && !now);
  });
  const bits = model.bits.at(-1).filter((_, i) => own[i + 1]);
  const what = model.reply == null ? "bits per token" : "bits per token of the reply";
  const mean = bits.length ? `, ${(bits.reduce((a, b) => a + b, 0) / bits.length).toFixed(2)} ${what}` : "";
  const cut = model.cut ? "; the rest of the text is not shown" : "";
  view.tokens = model.tokens.map((label, i) => make("span", { className: "token", textContent: visible(label) }));
  view.text = make("div", { className: "text" }, ...view.tokens);
  view.tokens.forEach((span, i) => {
    span.dataset.i = i;
    span.addEventListener("mouseenter", () => point(models[0].at(i, model)));
    span.addEventListener("click", () => choose({ t: models[0].at(i, model) }));
  });
  view.text.addEventListener("mouseleave", () => point(null));
  view.heads = make("table");
  view.canvas = make("canvas", { width: model.length, height: model.length });
  view.mark = make("div", { className: "mark" });
  view.canvas.addEventListener("mousemove", (event) => {
    const [i, j] = cell(event, model);
    view.cell.textContent = `${word(model.tokens[i])} (${i}) puts ${digits(model.weight(i, j))} of its weight on ${word(model.tokens[j])} (${j})`;
  });
  view.canvas.addEventListener("click", (event) => choose({ t: models[0].at(cell(event, model)[0], model) }));
  for (const name of ["why", "next", "lens"]) view[name] = make("table");
  for (const name of ["headsTitle", "whyTitle", "cell", "nextTitle"]) view[name] = make("p", { className: "note" });
  document.querySelector("main").append(make("section", {},
    make("h2", { textContent: model.tag }),
    make("p", { className: "facts", textContent: `${model.mixer}, step ${model.step}${mean}, ${model.length} tokens${cut}` }),
    view.headsTitle, make("div", { className: "heads" }, view.heads),
    make("div", { className: "columns" },
      make("div", { className: "wide" },
        make("h3", { textContent: "The text" }), view.text,
        make("div", { className: "pictures" },
          make("div", {}, make("h3", { textContent: "Attention: rows attend to columns" }),
            framed(make("div", { className: "plane" }, view.canvas, view.mark), ends(model.length), ends(model.length)), view.cell),
          ...(model.training ? [make("div", {}, ...curves(model))] : []))),
      make("div", {},
        make("h3", { textContent: "Where the token looks, and why" }), view.whyTitle, view.why,
        make("h3", { textContent: "What the model predicts next" }), view.nextTitle, view.next,
        make("h3", { textContent: "What each layer alone would predict" }), view.lens))));
}

/** A picture with numbers along its upper and its left side. */
function framed(picture, across, down) {
  const axis = (className, numbers) => make("div", { className }, ...numbers.map((text) => make("span", { textContent: text })));
  return make("div", { className: "framed" }, axis("across", across), axis("down", down), picture);
}
const ends = (count) => [...new Set([0, Math.floor((count - 1) / 2), count - 1])].map(String);

function cell(event, model) {
  const box = event.target.getBoundingClientRect();
  const place = (at, size) => Math.max(0, Math.min(model.length - 1, Math.floor((at / size) * model.length)));
  return [place(event.clientY - box.top, box.height), place(event.clientX - box.left, box.width)];
}

/** σ of every head over training, a line each. */
function curves(model) {
  const { tokens, sigma, layers } = model.training;
  const values = sigma.flat(2).filter((v) => v != null);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 100 60");
  svg.setAttribute("preserveAspectRatio", "none");
  model.view.lines = [];
  layers.forEach((layer, index) => sigma[0][index].forEach((_, head) => {
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    const points = sigma.map((step, n) => [(98 * n) / Math.max(1, tokens.length - 1) + 1, 57 - (54 * (step[index][head] - low)) / (high - low || 1)]);
    line.setAttribute("points", points.map((p) => p.map((v) => v.toFixed(2)).join()).join(" "));
    model.view.lines.push({ line, layer, head });
    svg.append(line);
  }));
  const across = [...new Set([tokens[0], tokens.at(-1)])].map((count) => `${count.toLocaleString("en")} tokens`);
  return [make("h3", { textContent: "σ over training" }), framed(svg, across, [digits(high), digits(low)])];
}

// ---- what depends on the state ----

/** Numbers of the tokens of a model that color its text. */
function numbers(model) {
  const t = model.token;
  return model.tokens.map((_, i) => {
    if (state.view === "bits") return i ? model.bits.at(-1)[i - 1] : 0;
    return state.view === "from" ? model.weight(t, i) : model.weight(i, t);
  });
}

function drawText() {
  const bits = state.view === "bits";
  const all = models.map(numbers);
  const kept = (model, i) => bits || !state.rescale || i !== model.token;
  let largest = 1;
  if (bits || state.rescale) largest = Math.max(1e-9, ...models.flatMap((model, k) => all[k].filter((_, i) => kept(model, i))));
  models.forEach((model, k) => model.view.tokens.forEach((span, i) => {
    const value = all[k][i];
    span.dataset.value = value.toFixed(5);
    span.title = bits ? (i ? `${value.toFixed(2)} bits` : "") : `weight ${digits(value)}`;
    span.classList.toggle("chosen", i === model.token);
    const share = value / largest;
    color(span, bits ? share : Math.sqrt(share), bits ? "surprise" : "weight");
  }));
  $("high").textContent = bits ? `${largest.toFixed(1)} bits` : `weight ${digits(largest)} (square root scale)`;
  $("legend").style.setProperty("--ramp", `var(--${bits ? "surprise" : "weight"})`);
}

function drawHeads() {
  const high = Math.max(1e-9, ...models.flatMap((model) => (model.measures[state.by] ?? []).flat()));
  for (const model of models) {
    const rows = model.layers.map((layer, l) => {
      const buttons = Array.from({ length: model.heads }, (_, h) => {
        const value = model.measures[state.by]?.[l][h];
        const button = make("button", { textContent: digits(value), title: `layer ${l}, head ${h}` });
        button.setAttribute("aria-pressed", l === model.layer && h === model.head);
        button.addEventListener("click", () => choose({ l, h }));
        color(button, (value ?? 0) / high, "weight");
        return make("td", {}, button);
      });
      const window = layer.window == null ? "whole context" : `window ${layer.window}`;
      const about = layer.given ? window : "no attention weights";
      return make("tr", {}, make("th", { textContent: `layer ${l}` }), ...buttons, make("th", { textContent: ` ${layer.mixer}, ${about}` }));
    });
    const [name, meaning] = data.measures[state.by] ?? ["", ""];
    model.view.headsTitle.textContent = `${name}: ${meaning}`;
    model.view.heads.replaceChildren(...rows);
  }
}

function cells(...parts) {
  return make("tr", {}, ...parts.map((part) => make("td", { className: typeof part === "number" ? "number" : "word", textContent: typeof part === "number" ? digits(part) : part })));
}
const MEANING = { "tokens back": "positions before the selected token", "in σ": "distance d in units of σ; the weight is proportional to exp(−d² / 2)", "‖q − k‖": "distance of query and key", logit: "the weight is its exponential, normalized over the row" };
const NUMBERS = ["weight", "tokens back", "‖q − k‖", "in σ", "logit", "bits of the next token"];
const heading = (...names) => make("tr", {}, ...names.map((name) => make("th", { textContent: name, title: MEANING[name] ?? "", className: NUMBERS.includes(name) ? "number" : "" })));

function drawToken(model) {
  const t = model.token, view = model.view, layer = model.layers[model.layer], sigma = layer.sigma?.[model.head];
  const name = `${word(model.tokens[t])} (${t})`;
  view.whyTitle.textContent = model.given ? `${name}, layer ${model.layer}, head ${model.head}` + (sigma ? `, σ = ${digits(sigma)}` : "") + `: weight ∝ ${layer.formula}` : `layer ${model.layer} has no attention weights`;
  const order = model.given ? Array.from({ length: t + 1 }, (_, j) => j).sort((a, b) => model.weight(t, b) - model.weight(t, a)) : [];
  const listed = order.slice(0, WHY).filter((j) => model.weight(t, j) > 0);
  const why = layer.gaussian ? ["‖q − k‖", "in σ"] : ["logit"];
  view.why.replaceChildren(heading("token", "weight", "tokens back", ...why), ...listed.map((j) => {
    const logit = model.logit(t, j), distance = Math.sqrt(Math.max(0, -2 * logit));
    // Weights are stored in one byte and logits in float32, so a distance is good to about two digits.
    const values = layer.gaussian ? [distance * sigma, distance].map((value) => Number(value.toFixed(1))) : [logit];
    return cells(word(model.tokens[j]), model.weight(t, j), t - j, ...values);
  }));
  const bits = model.bits.at(-1), own = t ? `${name}: ${bits[t - 1].toFixed(2)} bits of surprise. ` : "";
  const follows = t + 1 < model.length ? `Next comes ${word(model.tokens[t + 1])}, at ${bits[t].toFixed(2)} bits. ` : "";
  view.nextTitle.textContent = `${own}${follows}Most likely next tokens:`;
  view.next.replaceChildren(...model.likeliest[t].map((place, n) => cells(word(model.words[place]), percent(model.chances[t][n]))));
  view.lens.replaceChildren(heading("layer", "most likely next token", "probability", "bits of the next token"), ...model.layers.map((_, l) =>
    cells(String(l), word(model.words[model.lens[l][t]]), percent(model.lensChances[l][t]), t + 1 < model.length ? model.bits[l][t] : "—")));
}

function drawMatrix() {
  let largest = 1;
  if (state.rescale) {
    largest = 1e-9;
    for (const model of models) for (let i = 1; i < model.length; i++) for (let j = 0; j < i; j++) largest = Math.max(largest, model.weight(i, j));
  }
  for (const model of models) {
    const share = (i, j) => (state.rescale && i === j ? 0 : Math.sqrt(model.weight(i, j) / largest));
    drawTriangle(model.view.canvas, model.length, share);
    model.view.mark.style.top = `${(100 * model.at(state.t, models[0])) / model.length}%`;
    model.view.mark.style.height = `${100 / model.length}%`;
    for (const { line, layer, head } of model.view.lines ?? []) line.classList.toggle("chosen", layer === model.layer && head === model.head);
  }
}

function drawPointed() {
  drawText();
  models.forEach(drawToken);
}

function draw() {
  $("view").value = state.view;
  $("measure").value = state.by;
  $("rescale").checked = state.rescale;
  drawHeads();
  drawMatrix();
  drawPointed();
}

function point(token) {
  pointed = token;
  drawPointed();
}

// ---- the state and the address ----

const address = () => "#" + new URLSearchParams({ t: state.t, l: state.l, h: state.h, view: state.view, by: state.by, rescale: Number(state.rescale) });

/** Change the state, within what there is, show it and put it into the address. */
function choose(changes) {
  Object.assign(state, changes);
  const inside = (value, count) => Math.max(0, Math.min(count - 1, Math.trunc(Number(value)) || 0));
  state.t = inside(state.t, models[0].length);
  state.l = inside(state.l, Math.max(...models.map((model) => model.layers.length)));
  state.h = inside(state.h, Math.max(...models.map((model) => model.heads)));
  if (!["from", "to", "bits"].includes(state.view)) state.view = "from";
  if (!measures.includes(state.by)) state.by = measures[0] ?? "";
  pointed = null;
  draw();
  if (location.hash !== address()) location.replace(address());
}

function readAddress() {
  const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const known = Object.fromEntries(Object.keys(state).filter((key) => key in given).map((key) => [key, given[key]]));
  if ("rescale" in known) known.rescale = known.rescale === "1";
  choose(known);
}

/** Scroll the text, not the page, to the chosen token. */
function scrollToChosen(model) {
  const { text, tokens } = model.view, token = tokens[model.token];
  text.scrollTop = token.offsetTop - text.offsetTop - text.clientHeight / 2;
}

document.addEventListener("keydown", (event) => {
  const [x, y] = arrow(event) ?? [];
  if (x === undefined || /SELECT|INPUT/.test(event.target.tagName)) return;
  event.preventDefault();
  choose(y ? { l: state.l + y } : event.shiftKey ? { h: state.h + x } : { t: state.t + x });
  for (const model of models) scrollToChosen(model);
});

const measures = Object.keys(data.measures).filter((name) => models.some((model) => name in model.measures));
$("measure").append(...measures.map((name) => make("option", { value: name, textContent: data.measures[name][0] })));
$("view").addEventListener("change", (event) => choose({ view: event.target.value }));
$("measure").addEventListener("change", (event) => choose({ by: event.target.value }));
$("rescale").addEventListener("change", (event) => choose({ rescale: event.target.checked }));
addEventListener("hashchange", () => location.hash !== address() && readAddress());
addEventListener("theme", drawMatrix);
models.forEach(build);
Object.assign(state, data.view);
readAddress();
for (const model of models) scrollToChosen(model);
