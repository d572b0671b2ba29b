"use strict";
// The router: the part of the address after # says which page is shown.

let leave = []; // what to close when the page changes
let drawn = 0; // a page that is overtaken by another is dropped

async function show() {
  leave.splice(0).forEach((close) => close());
  const turn = ++drawn;
  const [path, words] = location.hash.slice(1).split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const page = el("div");
  const live = (close, running) => {
    leave.push(close);
    document.getElementById("live").replaceChildren(running ? chip("live", "good") : "");
  };
  document.getElementById("live").replaceChildren();
  document.getElementById("crumbs").replaceChildren(...crumbs(parts));
  document.title = ["Coterie", ...parts.slice(1, 2)].reverse().join(" · ");
  const holder = document.getElementById("page");
  holder.replaceChildren(page); // attached first: charts need to know their width
  try {
    await pageOf(page, parts, new URLSearchParams(words || ""), live);
  } catch (error) {
    page.replaceChildren(el("p.note.warn", {}, error.message));
  }
  if (turn === drawn) window.scrollTo(0, 0);
}

function pageOf(page, parts, query, live) {
  const [place, run, kind, step, line, group] = parts;
  if (place === "paired") return pairedPage(page, ...parts.slice(1));
  if (place === "results") return resultPage(page, run, live);
  if (place !== "run") return answers ? comparisonPage(page, answers, () => {}) : runsPage(page);
  if (!kind) return runPage(page, run.split(","), live);
  if (!step) return episodesPage(page, run, kind, query);
  return line === "group" ? groupPage(page, run, kind, step, group, query) : episodePage(page, run, kind, step, line);
}

function crumbs(parts) {
  const [place, run, kind, step] = parts;
  if (place === "results") return [el("span", {}, run)];
  if (place !== "run") return place === "paired" ? [el("a", { href: `#/run/${at(run)}` }, run)] : [];
  const found = [el("a", { href: `#/run/${at(run)}` }, run)];
  if (kind) found.push(el("a", { href: `#/run/${at(run)}/${kind}` }, NAMES[kind] || kind));
  if (step) found.push(answers ? el("span", {}, `step ${step}`) : el("a", { href: `#/run/${at(run)}/${kind}?step=${encodeURIComponent(step)}` }, `step ${step}`));
  return found;
}

window.addEventListener("hashchange", show);
show();
