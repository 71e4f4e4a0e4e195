/* Byte-level BPE: the ids of nanogka/tokenizer.py. A token is a string with one character per byte. */

/** Numbers, of which the smallest comes first. */
class Heap {
  numbers = [];
  get size() { return this.numbers.length; }

  push(number) {
    const { numbers } = this;
    let at = numbers.length;
    for (let up; at && numbers[up = (at - 1) >> 1] > number; at = up) numbers[at] = numbers[up];
    numbers[at] = number;
  }

  pop() {
    const { numbers } = this, first = numbers[0], last = numbers.pop(), count = numbers.length;
    let at = 0;
    for (let down; (down = 2 * at + 1) < count; at = down) {
      if (down + 1 < count && numbers[down + 1] < numbers[down]) down++;
      if (numbers[down] >= last) break;
      numbers[at] = numbers[down];
    }
    if (count) numbers[at] = last;
    return first;
  }
}

class Tokenizer {
  constructor({ tokens, special, pattern }) {
    Object.assign(this, { tokens, special, pattern: new RegExp(pattern, "gu") });
    this.ids = new Map(tokens.map((token, id) => [token, id]));
    this.names = new Map(Object.entries(special).map(([name, id]) => [id, name]));
    this.size = tokens.length + this.names.size;
    this.longest = tokens.reduce((longest, { length }) => Math.max(longest, length), 0); // bytes of a token
  }

  /** The ids of a text; of a longer one at least the first `most`, and then some whose words may be cut. */
  encode(text, most = Infinity) {
    text = text.slice(0, (most + 64) * this.longest);
    return (text.match(this.pattern) ?? []).flatMap((piece) => {
      const bytes = Array.from(new TextEncoder().encode(piece), (byte) => String.fromCharCode(byte));
      return this.merge(bytes).map((token) => this.ids.get(token));
    });
  }

  /** Join neighbors whose concatenation is a token, the earliest token first and the leftmost of equals. */
  merge(parts) {
    const whole = parts.join(""), count = parts.length;
    if (this.ids.has(whole)) return [whole];
    const next = parts.map((_, i) => i + 1), before = parts.map((_, i) => i - 1), pairs = new Heap();
    const token = (i) => (next[i] < count ? this.ids.get(parts[i] + parts[next[i]]) : undefined);
    const offer = (i) => i >= 0 && token(i) !== undefined && pairs.push(token(i) * 2 ** 31 + i);
    for (let i = 0; i < count; i++) offer(i);
    while (pairs.size) {
      const pair = pairs.pop(), i = pair % 2 ** 31, other = next[i];
      if (!parts[i] || token(i) !== Math.floor(pair / 2 ** 31)) continue; // one of its parts has been joined already
      parts[i] += parts[other];
      parts[other] = "";
      next[i] = next[other];
      before[next[i]] = i;
      offer(before[i]);
      offer(i);
    }
    return parts.filter(Boolean);
  }

  /** The bytes of a token; a special token stands for no text. */
  bytes(id) {
    return Uint8Array.from(this.tokens[id] ?? "", (byte) => byte.charCodeAt(0));
  }

  /** The text of one token. Bytes that are only part of a character are written as \xf0. */
  label(id) {
    if (this.names.has(id)) return this.names.get(id);
    const text = this.decode([id]), escaped = (byte) => `\\x${byte.charCodeAt(0).toString(16)}`;
    return text.includes("\ufffd") ? this.tokens[id].replace(/[\x80-\xff]/g, escaped) : text;
  }

  decode(ids) {
    const bytes = ids.flatMap((id) => [...this.bytes(id)]);
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
  }
}
