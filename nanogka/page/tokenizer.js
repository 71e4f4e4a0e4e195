/* Byte-level BPE: the ids of nanogka/tokenizer.py. A token is a string with one character per byte. */

class Tokenizer {
  constructor({ tokens, special, pattern }) {
    Object.assign(this, { tokens, special, pattern: new RegExp(pattern, "gu") });
    this.ids = new Map(tokens.map((token, id) => [token, id]));
    this.names = new Map(Object.entries(special).map(([name, id]) => [id, name]));
    this.size = tokens.length + this.names.size;
  }

  encode(text) {
    return (text.match(this.pattern) ?? []).flatMap((piece) => {
      const bytes = Array.from(new TextEncoder().encode(piece), (byte) => String.fromCharCode(byte));
      return this.merge(bytes).map((token) => this.ids.get(token));
    });
  }

  /** Join neighbors whose concatenation is a token, the earliest token first, until none is left. */
  merge(parts) {
    const whole = parts.join("");
    if (this.ids.has(whole)) return [whole];
    const rank = (i) => this.ids.get(parts[i] + parts[i + 1]) ?? Infinity;
    const ranks = parts.slice(1).map((_, i) => rank(i));
    for (;;) {
      let best = 0;
      for (let i = 1; i < ranks.length; i++) if (ranks[i] < ranks[best]) best = i;
      if (!(ranks[best] < Infinity)) return parts;
      parts.splice(best, 2, parts[best] + parts[best + 1]);
      ranks.splice(best, 1);
      if (best < ranks.length) ranks[best] = rank(best);
      if (best > 0) ranks[best - 1] = rank(best - 1);
    }
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
