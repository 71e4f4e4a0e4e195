"use strict";
// Helpers of all pages. The policy in a page's head lets nothing but its script run.
const $ = (id) => document.getElementById(id);

/** An element with properties and children; strings become text, never markup. */
function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// Tokens as people can see them: with line ends kept, and as one word.
const visible = (label) => label.replace(/\n/g, "↵\n").replace(/\t/g, "→\t");
const word = (label) => label.replace(/\n/g, "↵").replace(/\t/g, "→").replace(/ /g, "·");
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)} %`;

/** Color an element: `share` from 0 to 1 of the color `name`. */
function color(element, share, name) {
  element.style.backgroundColor = share > 0 ? `rgb(var(--${name}) / ${Math.min(1, share).toFixed(3)})` : "";
  element.classList.toggle("strong", share > 0.6);
}

/** Draw a lower triangle of n rows on a canvas: square (i, j) has `share(i, j)` from 0 to 1 of the color of weights. */
function drawTriangle(canvas, n, share) {
  const picture = new ImageData(n, n);
  const rgb = getComputedStyle(document.documentElement).getPropertyValue("--weight").trim().split(/\s+/);
  for (let i = 0; i < n; i++) for (let j = 0; j <= i; j++) {
    picture.data.set([...rgb, 255 * Math.min(1, share(i, j))], 4 * (i * n + j));
  }
  Object.assign(canvas, { width: n, height: n }).getContext("2d").putImageData(picture, 0, 0);
}

/** The [x, y] of an arrow key, else null. */
function arrow(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return null;
  return { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? null;
}

/** Whether a key belongs to the input of a word, as in Japanese. For the Enter that ends it, Safari tells by code 229. */
const composes = (event) => event.isComposing || event.keyCode === 229;
/** Whether a key sends a message. */
const sends = (event) => event.key === "Enter" && !event.shiftKey && !composes(event);

/** Read or keep a value of `localStorage` or `sessionStorage`. Where storage is forbidden, it is lost. */
function stored(storage, name, value) {
  try {
    if (value === undefined) return window[storage].getItem(name) ?? "";
    window[storage].setItem(name, value);
  } catch {}
  return value ?? "";
}

// ---- light or dark: as the system has it, unless the button says otherwise ----

const darkSystem = matchMedia("(prefers-color-scheme: dark)");
let theme = stored("localStorage", "theme");

/** Show the theme: "light", "dark" or "" for that of the system. The event `theme` has a page draw its canvases. */
function showTheme() {
  $("dark").media = { light: "not all", dark: "all" }[theme] ?? darkSystem.media;
  document.documentElement.style.colorScheme = theme;
  $("theme").textContent = { light: "Light", dark: "Dark" }[theme] ?? "Theme: auto";
  dispatchEvent(new Event("theme"));
}

$("theme").addEventListener("click", () => {
  theme = stored("localStorage", "theme", { "": "dark", dark: "light" }[theme] ?? "");
  showTheme();
});
darkSystem.addEventListener("change", () => dispatchEvent(new Event("theme")));
showTheme();

