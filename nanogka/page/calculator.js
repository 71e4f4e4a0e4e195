/* The calculator that a chat model calls: nanogka/generate/calculator.py. Whole numbers are BigInt, others Number.

   It refuses some spellings that Python allows (1_000, 0x10, backslashes, comments, line ends, triple quotes). What it
   computes is what Python computes, rounded to four decimals. */

const BLANKS = "[\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]+"; // of Python's `strip`
const ENDS = new RegExp(`^${BLANKS}|${BLANKS}$`, "g");
const WORDS = /[ \t\f]*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|"[^"\\\n\r\0]*"|'[^'\\\n\r\0]*'|\/\/|[-+*/%().,]|count|join)[ \t\f]*/y;

/** The value of an expression, or null if it is not one that is allowed. */
function calculate(text) {
  if ([...text].length > 200 || /"""|'''/.test(text)) return null;
  text = (/["']/.test(text) ? text : text.replaceAll(",", "")).replace(ENDS, "");
  const words = [];
  WORDS.lastIndex = 0;
  while (WORDS.lastIndex < text.length) {
    const found = WORDS.exec(text);
    if (!found) return null;
    words.push(found[1]);
  }
  try {
    const value = terms(words);
    if (words.length) return null;
    if (value.spelled !== undefined) return [...value.spelled].length <= 400 ? value.spelled : null;
    if (!isNumber(value) || !Number.isFinite(Number(value))) return null;
    return typeof value === "bigint" ? String(value) : rounded(value);
  } catch { // a SyntaxError of `expect`
    return null;
  }
}

function expect(valid) {
  if (!valid) throw new SyntaxError("not an expression that is allowed");
}

const isNumber = (value) => typeof value === "bigint" || typeof value === "number";
const terms = (words) => chain(words, ["+", "-"], (rest) => chain(rest, ["*", "/", "//", "%"], factor));

function chain(words, operators, part) {
  let value = part(words);
  while (operators.includes(words[0])) value = operate(words.shift(), value, part(words));
  return value;
}

function factor(words) {
  if (words[0] !== "-" && words[0] !== "+") return called(words);
  const sign = words.shift(), value = factor(words);
  expect(isNumber(value));
  return sign === "-" ? -value : value;
}

/** A number, a text, or a call of a text's `count` or `join`. */
function called(words) {
  let value = atom(words);
  while (words[0] === "." || (words[0] === "(" && value.method !== undefined)) {
    if (words.shift() === ".") {
      expect(typeof value === "string" && (words[0] === "count" || words[0] === "join"));
      value = { text: value, method: words.shift() };
    } else {
      const { text, method } = value, given = terms(words);
      expect(typeof given === "string");
      if (words[0] === ",") words.shift();
      expect(words.shift() === ")");
      if (method === "join") value = { spelled: [...given].join(text) };
      else value = BigInt(given ? text.split(given).length - 1 : [...text].length + 1);
    }
  }
  return value;
}

function atom(words) {
  const word = words.shift() ?? "";
  if (word === "(") {
    const value = terms(words);
    expect(words.shift() === ")");
    return value;
  }
  if (/^["']/.test(word)) {
    let text = word.slice(1, -1);
    while (/^["']/.test(words[0] ?? "")) text += words.shift().slice(1, -1); // "a" "b" is "ab"
    return text;
  }
  expect(/^[.\d]*\d/.test(word) && !/^0\d*[1-9]\d*$/.test(word)); // Python has no 012
  return /^\d+$/.test(word) ? BigInt(word) : Number(word);
}

function operate(operator, a, b) {
  expect(isNumber(a) && isNumber(b));
  if (typeof a !== typeof b) [a, b] = [Number(a), Number(b)];
  if (operator === "+") return a + b;
  if (operator === "-") return a - b;
  if (operator === "*") return a * b;
  expect(Number(b) !== 0);
  if (operator === "/") return typeof a === "bigint" ? ratio(a, b) : a / b;
  // Python rounds a quotient down: the rest has the sign of b.
  let rest = a % b;
  if (typeof a === "bigint") {
    if (rest !== 0n && rest < 0n !== b < 0n) rest += b;
    return operator === "%" ? rest : (a - rest) / b;
  }
  let quotient = (a - rest) / b;
  if (rest === 0) rest = b < 0 ? -0 : 0;
  else if (rest < 0 !== b < 0) {
    rest += b;
    quotient -= 1;
  }
  if (operator === "%") return rest;
  if (quotient === 0) return a / b < 0 || Object.is(a / b, -0) ? -0 : 0;
  const down = Math.floor(quotient);
  return quotient - down > 0.5 ? down + 1 : down;
}

/** a / b of whole numbers of any size, rounded once. */
function ratio(a, b) {
  const size = (value) => value.toString(2).replace("-", "").length, shift = BigInt(size(a) - size(b) - 66);
  const [above, below] = shift > 0n ? [a, b << shift] : [a << -shift, b];
  const quotient = above / below, odd = above % below ? (a < 0n === b < 0n ? 1n : -1n) : 0n; // more than 64 bits, and a rest
  return Number(2n * quotient + odd) * 2 ** (Number(shift) - 1);
}

/** A float with at most 4 decimals, and 7 for 7.0. */
function rounded(value) {
  if (Math.abs(value) >= 1e15) return printed(value);
  const short = Number(value.toFixed(4));
  if (value !== 0 && short === 0) return printed(Number(value.toPrecision(4)));
  return Number.isInteger(short) ? String(short + 0) : printed(short);
}

/** A float as Python's repr: the same shortest digits, and an exponent below −4 or from 16 on. */
function printed(value) {
  const [mantissa, exponent] = Math.abs(value).toExponential().split("e");
  const digits = mantissa.replace(".", ""), power = Number(exponent);
  const sign = value < 0 || Object.is(value, -0) ? "-" : "";
  if (power < -4 || power >= 16) {
    const fraction = digits.length > 1 ? `.${digits.slice(1)}` : "";
    return `${sign}${digits[0]}${fraction}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
  }
  if (power < 0) return `${sign}0.${"0".repeat(-power - 1)}${digits}`;
  const whole = digits.padEnd(power + 1, "0");
  return `${sign}${whole.slice(0, power + 1)}.${whole.slice(power + 1) || "0"}`;
}
