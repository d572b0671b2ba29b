"use strict";
// DOM without markup: every text of a run goes through `visible`, which only ever makes text nodes.

const SVG = "http://www.w3.org/2000/svg";

// el("a.chip", {href: "#/"}, "text", node): a tag with classes, properties or listeners, and children.
function el(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  if (classes.length) node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && name !== "list") node[name] = value;
    else node.setAttribute(name, value);
  }
  put(node, ...children);
  return node;
}

function put(parent, ...children) {
  parent.append(...children.flat().filter((child) => child !== null && child !== undefined).map(asNode));
}

function clear(node) {
  node.replaceChildren();
  return node;
}

function asNode(child) {
  return child instanceof Node ? child : visible(String(child));
}

// Control, bidirectional and invisible characters, which could hide or reorder what a model wrote.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\ufff9-\ufffb]|\udb40[\udc00-\udfff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

// A text in which hidden characters are shown as their codes.
function visible(text) {
  if (text.search(HIDDEN) < 0) return document.createTextNode(text);
  const fragment = document.createDocumentFragment();
  let from = 0;
  for (const found of text.matchAll(HIDDEN)) {
    fragment.append(text.slice(from, found.index));
    const code = document.createElement("span");
    code.className = "escaped";
    code.textContent = "\\u" + found[0].codePointAt(0).toString(16).padStart(4, "0");
    fragment.append(code);
    from = found.index + found[0].length;
  }
  fragment.append(text.slice(from));
  return fragment;
}

function number(value, digits = 3) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  const text = size >= 1e5 || (size > 0 && size < 1e-3) ? value.toExponential(1) : String(Number(value.toFixed(size >= 100 ? 0 : digits)));
  return text.replace("-", "−");
}

function signed(value) {
  return value === null || value === undefined ? "–" : (value > 0 ? "+" : "") + number(value);
}

function shown(value) {
  if (typeof value === "number") return String(Number(value.toPrecision(7)));
  return value === null || value === undefined ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value);
}

function ago(time) {
  if (!time) return "–";
  const seconds = Math.max(0, Date.now() / 1000 - time);
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) if (seconds >= size) return `${Math.floor(seconds / size)} ${unit} ago`;
  return `${Math.floor(seconds)} s ago`;
}

function chip(text, kind = "") {
  return el(`span.chip${kind ? "." + kind : ""}`, {}, text);
}

function fold(summary, ...children) {
  return el("details", {}, el("summary", {}, summary), ...children);
}

function table(heads, rows) {
  const cells = (row) => row.map((cell) => el("td", {}, cell));
  return el("table", {}, el("thead", {}, el("tr", {}, heads.map((head) => el("th", {}, head)))), el("tbody", {}, rows.map((row) => (row instanceof Node ? row : el("tr", {}, cells(row))))));
}

// A report carries the answers that the server would give, by path.
const embedded = document.getElementById("data");
const answers = embedded ? JSON.parse(embedded.textContent) : null;

async function api(path) {
  if (answers) {
    if (path in answers.paths) return answers.paths[path];
    throw new Error("this report does not contain it; open the run with `coterie view`");
  }
  const reply = await fetch(path);
  const body = await reply.json();
  if (!reply.ok) throw new Error(body.error.message || body.error);
  return body;
}

function at(...parts) {
  return parts.map((part) => encodeURIComponent(part)).join("/");
}

const PALETTE = 8; // colours --c0 … in style.css
function colour(index) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--c${index % PALETTE}`).trim();
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}
