const log = $("log");
let model = null; // the entry of /v1/models
let messages = []; // {role, content}, of a reply also `finish` or `error`, and `parts` if it has called a tool
let running = null; // the AbortController of the reply that is being generated
const BEGINNINGS = ["A list is", "The with statement", "def "]; // a chat model brings its own questions

async function call(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  if ($("key").value) headers.Authorization = `Bearer ${$("key").value}`;
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, signal, body: body && JSON.stringify(body) });
  if (answer.ok) return answer;
  const text = await answer.text();
  if (answer.status === 401) showSettings(true);
  let message = text;
  try { message = JSON.parse(text).error.message; } catch {}
  throw new Error(message || `HTTP ${answer.status}`);
}

async function connect() {
  if (model) return;
  model = (await (await call("v1/models")).json()).data[0];
  $("model").textContent = document.title = model.id;
  const kind = model.kind === "chat" ? "chat model" : "base model, continues text";
  $("about").textContent = `${kind} · context ${model.context}`;
  $("system-label").hidden = model.kind !== "chat";
}

// ---- showing ----

function atEnd() { return log.scrollHeight - log.scrollTop - log.clientHeight < 80; }

// Markdown as elements, never as HTML: what a model says becomes text, and links that open elsewhere.
const SPAN = /(`+)([^`]+)\1(?!`)|\*\*(?=\S)([^*]+)\*\*|\*(?=\S)([^*]+)\*|\[([^[\]]+)\]\((https?:\/\/[^\s()]+)\)|\\([!-/:-@[-`{-~])/;
const FENCE = /^ {0,3}(`{3,}|~{3,})/, HEADING = /^ {0,3}(#{1,6}) +(.*)/, RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?/, ITEM = /^ {0,3}([-*+]|\d{1,9}[.)]) +/, COLUMNS = /^(?=.*\|)[ |:-]*-[ |:-]*$/;

function spans(text) {
  const made = [];
  for (let found; (found = SPAN.exec(text)); text = text.slice(found.index + found[0].length)) {
    const [, , code, strong, emphasis, label, href, escaped] = found;
    made.push(text.slice(0, found.index));
    if (code) made.push(make("code", { textContent: code }));
    else if (strong) made.push(make("strong", {}, ...spans(strong)));
    else if (emphasis) made.push(make("em", {}, ...spans(emphasis)));
    else if (label) made.push(make("a", { textContent: label, href, target: "_blank", rel: "noopener noreferrer" }));
    else made.push(escaped);
  }
  return [...made, text];
}

function blocks(text, depth = 0) {
  const made = [], lines = text.split("\n");
  const take = (wanted) => { const taken = []; while (lines.length && wanted(lines[0])) taken.push(lines.shift()); return taken; };
  const inner = (taken) => depth < 8 ? blocks(taken.join("\n"), depth + 1) : [taken.join("\n")];
  while (lines.length) {
    const line = lines[0], [, mark, rest] = FENCE.exec(line) ?? HEADING.exec(line) ?? ITEM.exec(line) ?? [];
    if (!line.trim()) lines.shift();
    else if (FENCE.test(line)) {
      lines.shift();
      made.push(make("pre", {}, make("code", { textContent: take((l) => !l.trim().startsWith(mark)).join("\n") })));
      lines.shift();
    } else if (HEADING.test(line)) made.push(make(`h${Math.min(mark.length, 3)}`, {}, ...spans(rest))), lines.shift();
    else if (RULE.test(line)) made.push(make("hr")), lines.shift();
    else if (QUOTE.test(line)) {
      made.push(make("blockquote", { dir: "auto" }, ...inner(take((l) => QUOTE.test(l)).map((l) => l.replace(QUOTE, "")))));
    } else if (ITEM.test(line)) {
      const ordered = /\d/.test(mark), list = make(ordered ? "ol" : "ul", { dir: "auto", ...(ordered && { start: parseInt(mark) }) });
      while (lines.length && ITEM.test(lines[0]) && /^ *\d/.test(lines[0]) === ordered && !RULE.test(lines[0])) {
        const first = lines.shift().replace(ITEM, "");
        list.append(make("li", {}, ...inner([first, ...take((l) => /^( {2}|\t|\s*$)/.test(l)).map((l) => l.replace(/^( {1,4}|\t)/, ""))])));
      }
      made.push(list);
    } else if (line.includes("|") && COLUMNS.test(lines[1] ?? "")) {
      const row = (l, cell) => make("tr", {}, ...l.trim().replace(/^\||\|$/g, "").split("|").map((c) => make(cell, {}, ...spans(c.trim()))));
      const [head, , ...body] = take((l) => l.includes("|"));
      made.push(make("table", { dir: "auto" }, row(head, "th"), ...body.map((l) => row(l, "td"))));
    } else {
      const more = take((l) => l === line || (l.trim() && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((kind) => kind.test(l))));
      made.push(make("p", {}, ...spans(more.join("\n"))));
    }
  }
  return made;
}

function show(message) { // the reply in its place: a base model's as it is, a chat model's as Markdown
  const stay = !atEnd(), formatted = model?.kind === "chat";
  message.place.classList.toggle("plain", !formatted);
  const calls = (message.parts ?? []).filter((part) => part.type !== "text").map(({ type, text }, i) =>
    make("span", { className: "call", textContent: type === "python" ? `${i ? "\n" : ""}${text.trim()} ` : `→ ${text}` }));
  const made = calls.length ? [make("p", {}, ...calls)] : [];
  message.place.replaceChildren(...made, ...(formatted ? blocks(message.content) : [message.content]));
  if (!stay) log.scrollTop = log.scrollHeight;
}

function draw() {
  log.replaceChildren(...messages.map(drawn));
  if (!messages.length) {
    const shown = model?.kind === "base" ? BEGINNINGS : (model?.examples ?? []).slice(0, 6);
    const examples = shown.map((text) => make("button", { type: "button", textContent: text, onclick: () => send(text) }));
    const note = `${model?.promise ?? ""} The chat stays in this tab until you close it.`.trim();
    log.append(make("div", { className: "examples" }, ...examples, make("p", { className: "note", textContent: note })));
  }
  $("send").hidden = Boolean(running);
  $("look").hidden = !model?.attention || Boolean(running) || !messages.some(({ role, content }) => role === "assistant" && content);
  $("stop").hidden = !running;
  log.scrollTop = log.scrollHeight;
}

function keep() {
  stored("sessionStorage", "chat", JSON.stringify(messages, ["role", "content", "parts", "type", "text", "finish", "error", "note"]));
}

function kept() {
  try {
    messages = JSON.parse(stored("sessionStorage", "chat") || "[]").filter((message) => typeof message.content === "string");
  } catch {}
  for (const message of messages) if (message.role === "assistant" && !message.finish) message.finish = "stopped";
}

function drawn(message, index) {
  const text = make("div", { className: "text" }), tools = make("div", { className: "tools" });
  const article = make("article", { className: message.role }, text);
  const button = (name, act) => tools.append(make("button", { type: "button", textContent: name, onclick: act }));
  if (message.role === "user") {
    text.classList.add("plain");
    text.textContent = message.content;
    if (!running) button("Edit", () => edit(article, index));
  } else {
    message.place = text;
    show(message);
    const last = index === messages.length - 1;
    if (running && last) text.classList.add("waiting");
    if (message.error) article.append(make("div", { className: "error", textContent: message.error }));
    else if (!running || !last) {
      const notes = { length: "cut off at the maximum reply length or the end of the context", stopped: "stopped" };
      const note = [message.content ? notes[message.finish] : "an empty reply", last && message.note].filter(Boolean).join(" · ");
      if (note) article.append(make("div", { className: "note", textContent: note }));
    }
    if (!running && last) button("Regenerate", () => { messages.pop(); reply(); });
    if (!running && message.content) button("Copy", async ({ target }) => {
      target.textContent = (await copy(message.content)) ? "Copied" : "Not copied";
      setTimeout(() => { target.textContent = "Copy"; }, 2000);
    });
  }
  article.append(tools);
  return article;
}

/** Copy a text, also where plain HTTP from another machine forbids `navigator.clipboard`, and say whether it worked. */
async function copy(text) {
  let done = false;
  $("said").textContent = "";
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    const area = make("textarea", { value: text, className: "unseen" }), focused = document.activeElement;
    document.body.append(area);
    area.select();
    done = document.execCommand("copy");
    area.remove();
    focused?.focus();
  }
  $("said").textContent = done ? "Copied." : "This browser does not let the page copy.";
  return done;
}

function edit(article, index) {
  const area = make("textarea", { value: messages[index].content, ariaLabel: "Edit the message" });
  area.onkeydown = (event) => { if (event.key === "Escape" && !composes(event)) draw(); };
  const tools = make("div", { className: "tools" },
    make("button", { type: "button", textContent: "Cancel", onclick: draw }),
    make("button", { type: "button", textContent: "Send", className: "main", onclick: () => {
      if (!area.value.trim() || running) return;
      messages = [...messages.slice(0, index), { role: "user", content: area.value }];
      reply();
    } }));
  article.replaceChildren(area, tools);
  area.focus();
  article.scrollIntoView({ block: "nearest" });
}

// ---- replies ----

function request() {
  const options = { model: model.id, stream: true, stream_options: { include_usage: true }, temperature: Number($("temperature").value) };
  const tokens = Math.floor(Number($("tokens").value));
  if (tokens >= 1) options.max_tokens = tokens;
  if (model.kind !== "chat") return ["v1/completions", { ...options, prompt: messages.at(-1).content }];
  const said = [];
  for (const { role, content, parts } of messages) {
    if (role === "assistant" && !content.trim()) said.pop(); // an exchange without a reply cannot be sent
    else said.push({ role, content: parts?.some((part) => part.type !== "text") ? parts : content });
  }
  if ($("system").value.trim()) said.unshift({ role: "system", content: $("system").value });
  return ["v1/chat/completions", { ...options, messages: said, truncation: "auto" }];
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let held = ""; ;) {
    const { value, done } = await reader.read();
    if (done) throw new Error("the server ended the reply early");
    const parts = (held + value).split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

function addParts(message, parts) { // a message without a call has none
  for (const { index, type, text } of parts) (message.parts[index] ??= { type, text: "" }).text += text;
}

async function reply() {
  const own = running = new AbortController(), message = { role: "assistant", content: "", parts: [] };
  let asked = null, began = null;
  try {
    await connect();
    asked = request();
    messages.push(message);
    draw();
    for await (const event of events(await call(...asked, own.signal))) {
      const [choice] = event.choices;
      began ??= performance.now();
      if (!choice) { // the last event
        const speed = event.usage.completion_tokens / (performance.now() - began) * 1000;
        message.note = `${event.usage.total_tokens} of ${model.context} tokens, ${speed.toFixed(0)} tokens/s`;
        continue;
      }
      message.content += choice.delta ? choice.delta.content ?? "" : choice.text;
      addParts(message, choice.delta?.parts ?? []);
      message.finish = choice.finish_reason ?? message.finish;
      if (messages.at(-1) === message) show(message);
    }
  } catch (error) {
    if (own.signal.aborted) message.finish = "stopped";
    else message.error = String(error.message ?? error);
    if (!asked) messages.push(message);
  }
  if (running === own) running = null;
  draw();
  keep();
}

function send(text) {
  if (!text.trim() || running) return;
  messages.push({ role: "user", content: text });
  reply();
}

// ---- the attention page of this conversation ----

function said() {
  return messages.filter(({ role, content }) => role !== "assistant" || content.trim())
    .map(({ role, content, parts }) => ({ role, content: parts?.some((part) => part.type !== "text") ? parts : content }));
}

function showAttention(open) {
  $("attention").hidden = !open;
  log.hidden = $("form").parentElement.hidden = open;
  $("look").textContent = open ? "Back to the chat" : "Attention";
}

async function look() {
  if (!$("attention").hidden) return showAttention(false);
  $("look").disabled = true;
  try {
    const system = $("system").value.trim() ? [{ role: "system", content: $("system").value }] : [];
    $("attention").src = (await (await call("v1/attention", { messages: [...system, ...said()] })).json()).page;
    showAttention(true);
  } catch (error) {
    $("about").textContent = String(error.message ?? error);
  }
  $("look").disabled = false;
}

// ---- controls ----

function showSettings(open) {
  $("settings").hidden = !open;
  $("more").setAttribute("aria-expanded", String(open));
}

$("form").onsubmit = (event) => {
  event.preventDefault();
  if (running) return;
  send($("prompt").value);
  $("prompt").value = "";
};
$("prompt").onkeydown = (event) => {
  if (sends(event)) { event.preventDefault(); $("form").requestSubmit(); }
};
if (matchMedia("(hover: hover)").matches) $("prompt").placeholder = "Message (Enter to send, Shift+Enter for a new line)";
addEventListener("pagehide", keep);
$("look").onclick = look;
$("stop").onclick = () => running?.abort();
$("new").onclick = () => { showAttention(false); running?.abort(); running = null; messages = []; draw(); keep(); $("prompt").focus(); };
$("more").onclick = () => showSettings($("settings").hidden);
$("temperature").oninput = () => { $("shown").value = $("temperature").value; };
$("key").value = stored("sessionStorage", "key");
$("key").onchange = () => { stored("sessionStorage", "key", $("key").value); start(); };

function start() {
  connect().then(draw, (error) => { $("about").textContent = error.message; });
}

kept();
draw();
start();
$("prompt").focus();
