/* The calculator that a chat model calls: nanogka/generate/calculator.py. Whole numbers are BigInt, others Number. */

const WORDS = /\s*((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|"[^"\\]*"|'[^'\\]*'|\/\/|[-+*/%().]|count)/y;

/** The value of an expression as Python prints it, or null if it is not one that is allowed. */
function calculate(text) {
  if (text.length > 200) return null;
  text = (/["']/.test(text) ? text : text.replaceAll(",", "")).trim();
  const words = [];
  WORDS.lastIndex = 0;
  while (WORDS.lastIndex < text.length) {
    const found = WORDS.exec(text);
    if (!found) return null;
    words.push(found[1]);
  }
  try {
    const value = terms(words);
    if (words.length || !Number.isFinite(Number(value))) return null;
    return typeof value === "bigint" ? String(value) : printed(value);
  } catch { // a division of BigInt by zero, or a SyntaxError of `expect`
    return null;
  }
}

function expect(valid) {
  if (!valid) throw new SyntaxError("not an expression that is allowed");
}

const terms = (words) => chain(words, ["+", "-"], (rest) => chain(rest, ["*", "/", "//", "%"], factor));

function chain(words, operators, part) {
  let value = part(words);
  while (operators.includes(words[0])) value = operate(words.shift(), value, part(words));
  return value;
}

function factor(words) {
  const word = words.shift() ?? "";
  if (word === "-" || word === "+") return word === "-" ? -factor(words) : factor(words);
  if (word === "(") {
    const value = terms(words);
    expect(words.shift() === ")");
    return value;
  }
  if (/^["']/.test(word)) { // "text".count("t")
    const [dot, count, open, needle = "", close] = words.splice(0, 5);
    expect([dot, count, open, close].join("") === ".count()" && /^["']/.test(needle));
    const inside = word.slice(1, -1), sought = needle.slice(1, -1);
    return BigInt(sought ? inside.split(sought).length - 1 : [...inside].length + 1);
  }
  expect(/^[.\d]*\d/.test(word) && !/^0\d*[1-9]\d*$/.test(word)); // Python has no 012
  return /^\d+$/.test(word) ? BigInt(word) : Number(word);
}

function operate(operator, a, b) {
  if (operator === "/" || typeof a !== typeof b) [a, b] = [Number(a), Number(b)];
  expect(!"/%".includes(operator[0]) || Number(b) !== 0);
  if (operator === "+") return a + b;
  if (operator === "-") return a - b;
  if (operator === "*") return a * b;
  if (operator === "/") return a / b;
  const zero = typeof a === "bigint" ? 0n : 0; // Python rounds a quotient down: the rest has the sign of b
  let rest = a % b;
  if (rest !== zero && rest < zero !== b < zero) rest += b;
  if (operator === "%") return rest === zero && zero === 0 && b < 0 ? -0 : rest === zero ? zero : rest;
  const quotient = (a - rest) / b;
  return typeof a === "bigint" ? quotient : Math.round(quotient) || 0 * Math.sign(a / b);
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
