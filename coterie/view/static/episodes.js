"use strict";
// Episodes: the list with its filters, one episode as lanes, a group side by side.

const WHY = {
  constant: "every turn of its group got the same return, so there is nothing to learn from it",
  truncated: "it was cut off at max_tokens, and such turns are left out",
  frozen: "its policy is frozen",
  stale: "it was sampled with other weights than the learner has",
  round: "its round is not trained in this step",
  replayed: "it was copied from the episode that this one was forked from",
  fixed: "its text was given, not sampled",
  excluded: "the workflow, its sampling (top-p, top-k, greedy) or the algorithm excludes it",
  empty: "it has no tokens",
};
const ENDED = ["right", "wrong", "failed", "truncated", ...Object.keys(WHY).filter((why) => why !== "truncated")];
const NAMES = { episodes: "Episodes", eval: "Held-out episodes", counterfactuals: "Counterfactuals" };
const LONG = 700; // characters of a message that is folded

async function episodesPage(page, name, kind, query) {
  const run = await api(`/api/runs/${at(name)}`);
  const list = el("tbody");
  const more = el("button", { type: "button", hidden: true }, "more");
  const count = el("span.soft");
  put(page, 
    el("div.head", {}, el("h1", {}, NAMES[kind] || kind), count, el("span.grow"), ...Object.keys(NAMES).filter((other) => other !== kind && run.stored[other].length).map((other) => el("a.button", { href: `#/run/${at(name)}/${other}` }, NAMES[other]))),
    answers ? null : filterForm(run, name, kind, query),
    el("table", {}, el("thead", {}, el("tr", {}, ["step", "task", "reward", "turns: role and advantage", "tokens", ""].map((head) => el("th", {}, head)))), list),
    el("p", {}, more),
  );
  let shownRows = 0;
  async function load(after) {
    const words = new URLSearchParams(query);
    if (after) words.set("after", after);
    const text = words.toString();
    const found = await api(`/api/runs/${at(name)}/${kind}${text ? "?" + text : ""}`);
    list.append(...found.episodes.map((episode) => episodeRow(name, kind, episode)));
    shownRows += found.episodes.length;
    count.textContent = `${shownRows}${found.more ? " of more" : ""}`;
    more.hidden = !found.more;
    more.onclick = () => load(found.more);
  }
  await load(null);
}

function filterForm(run, name, kind, query) {
  const field = (key, text, input) => el("label", {}, el("span", {}, text), Object.assign(input, { name: key, value: query.get(key) || "" }));
  const choice = (options) => el("select", {}, el("option", { value: "" }, "all"), options.map((option) => el("option", { value: String(option) }, String(option))));
  const form = el("form.filter", {},
    field("step", "step", choice([...run.stored[kind]].reverse())),
    field("role", "role", choice(run.roles)),
    field("ended", "outcome", choice(ENDED)),
    field("low", "reward from", el("input", { type: "number", step: "any" })),
    field("high", "to", el("input", { type: "number", step: "any" })),
    field("task", "task", el("input", { type: "search", placeholder: "its id" })),
    field("text", "text", el("input", { type: "search", placeholder: "in replies, answers, tasks" })),
    el("button", { type: "submit" }, "Filter"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const words = new URLSearchParams([...new FormData(form)].filter(([, value]) => value));
    location.hash = `#/run/${at(name)}/${kind}?${words}`;
  });
  return form;
}

function episodeRow(name, kind, episode) {
  const href = `#/run/${at(name)}/${kind}/${at(episode.step, episode.line)}`;
  const turns = episode.turns.map(([role, , , stop, , , advantage, , leftOut]) => {
    const mark = leftOut ? leftOut : defined(advantage) ? signed(advantage) : "";
    const kindOf = leftOut ? "muted" : advantage > 0 ? "good" : advantage < 0 ? "bad" : "";
    return chip([role, mark, stop === "length" ? "…" : ""].filter(Boolean).join(" "), kindOf);
  });
  const tokens = episode.turns.reduce((sum, turn) => sum + turn[2], 0);
  return el("tr.link", { onclick: () => (location.hash = href) },
    el("td.num", {}, episode.step), el("td", {}, el("a", { href }, episode.id)), el("td.num", {}, rewardChip(episode)),
    el("td.chips", {}, turns), el("td.num", {}, tokens), el("td", {}, episode.error_kind ? chip(episode.error_kind, "bad") : episode.fork ? chip(episode.fork, "muted") : ""),
  );
}

function rewardChip(episode) {
  if (episode.error_kind) return chip("failed", "bad");
  return chip(number(episode.reward), episode.correct === true || episode.reward >= 1 ? "good" : episode.reward <= 0 ? "bad" : "");
}

async function episodePage(page, name, kind, step, line) {
  const episode = await api(`/api/runs/${at(name)}/${kind}/${at(step, line)}`);
  const link = (to, text) => (to >= 0 && to < episode.count && !answers ? el("a.button", { href: `#/run/${at(name)}/${kind}/${at(step, to)}` }, text) : null);
  put(page, 
    el("div.head", {}, el("h1", {}, episode.id), rewardChip(episode), el("span.soft", {}, `${NAMES[kind]}, step ${step}`), el("span.grow"), link(episode.line - 1, "previous"), link(episode.line + 1, "next")),
    episode.fork ? el("p.note", {}, `A fork of ${episode.origin}: ${episode.fork}.`) : null,
    el("div.qa", {}, textBox("task", episode.task.prompt), textBox("answer", shown(episode.answer)), textBox("reference", shown(episode.task.answer))),
    metricsLine(episode.metrics),
    episode.error ? el("pre.cause", {}, episode.error) : null,
  );
  const cards = episode.turns.map((turn, i) => turnCard(turn, i, { name, kind, step, line, episode }));
  put(page, ...paintable(episode.turns, cards, lanes(episode.turns, cards)));
  if (episode.counterfactuals.length) put(page, counterfactuals(name, episode));
}

function textBox(title, text) {
  return el("div.box", {}, el("span.soft", {}, title), el("div.text", {}, text));
}

function metricsLine(metrics) {
  const entries = Object.entries(metrics || {});
  return entries.length ? el("p.pairs", {}, entries.map(([name, value]) => el("span.pair", {}, name, el("b", {}, number(value))))) : null;
}

// The picker of colours above some cards.
function paintable(turns, cards, node) {
  if (!turns.length) return [node];
  const picker = scalePicker(turns, (scale) => {
    const most = scale.column ? reach(scale, turns) : 1;
    cards.forEach((card) => card.text.paint(scale, most));
  });
  picker.start();
  return [picker.node, node];
}

// One lane per role. A turn stands below all that had been said when it was asked; turns at the same height did not see each other.
function lanes(turns, cards) {
  const roles = [...new Set(turns.map((turn) => turn.role))];
  const taken = new Set();
  const heights = [];
  const grid = el("div.lanes");
  grid.style.setProperty("--lanes", roles.length);
  roles.forEach((role, i) => {
    const head = el("div.lane", {}, el("i.dot"), role);
    head.firstChild.style.backgroundColor = colour(i);
    grid.append(head);
  });
  turns.forEach((turn, i) => {
    const lane = roles.indexOf(turn.role);
    let height = 1 + Math.max(0, ...(turn.seen || []).map((seen) => heights[seen] ?? 0));
    while (taken.has(`${lane}:${height}`)) height++;
    taken.add(`${lane}:${height}`);
    heights[i] = height;
    const { node } = cards[i];
    node.style.gridColumn = String(lane + 1);
    node.style.gridRow = String(height + 1);
    node.style.setProperty("--mark", colour(lane));
    grid.append(node);
  });
  return grid;
}

function turnCard(turn, index, place) {
  const text = new TokenText(turn);
  const seconds = defined(turn.started) && defined(turn.ended) ? `${number(turn.ended - turn.started, 2)} s` : null;
  const facts = [`${turn.policy} v${turn.version}`, `${turn.response_tokens} tokens`, seconds, turn.stop === "length" ? "truncated" : null].filter(Boolean).join(" · ");
  const node = el("article.turn", { id: `turn-${index}` },
    el("header", {}, el("b", {}, `${turn.role}${turn.round ? ` · turn ${turn.round + 1}` : ""}`), el("span.soft", {}, facts)),
    askedFolds(turn), text.node, creditLine(turn), withoutLine(turn, index, place), compareLine(turn, index, place),
  );
  return { node, text };
}

function askedFolds(turn) {
  const messages = turn.messages || [];
  const rows = messages.map((message) => {
    const body = el("div.text", {}, message.content);
    const folded = message.role === "tool" || message.content.length > LONG;
    return el("div.message", {}, el("span.soft", {}, message.role), folded ? fold(`${message.content.length} characters`, body) : body);
  });
  const last = messages.findLast((message) => message.role !== "tool");
  const peek = last ? last.content.replace(/\s+/g, " ").slice(0, 90) : "";
  const parts = [];
  if (rows.length) parts.push(fold(el("span.peek", {}, el("span.soft", {}, "asked: "), peek), rows));
  if (turn.prompt) parts.push(fold(el("span.soft", {}, `prompt as the model read it, ${turn.prompt_tokens} tokens`), el("div.text.mono", {}, turn.prompt)));
  return el("div.asked", {}, parts);
}

function creditLine(turn) {
  if (!defined(turn.credit)) return null;
  const parts = Object.entries(turn.credit_parts || {}).filter(([, value]) => value);
  const sum = parts.length > 1 ? ["= ", parts.map(([name, value], i) => el("span", {}, i ? ` ${value < 0 ? "−" : "+"} ${number(Math.abs(value))} ` : `${number(value)} `, el("span.soft", {}, name)))].flat(2) : parts.length ? [el("span.soft", {}, `from ${parts[0][0]}`)] : [];
  return el("div.line", {}, el("span.soft", {}, "credit"), el("b", {}, number(turn.credit)), el("span", {}, sum));
}

// What the team got where this role was replaced; at its last turn, which is credited with the difference.
function withoutLine(turn, index, { name, episode }) {
  if (!episode || index !== episode.turns.findLastIndex(({ role }) => role === turn.role)) return null;
  const links = episode.counterfactuals.filter(({ roles }) => roles.includes(turn.role)).map((other) => {
    const reward = other.error_kind ? "failed" : `${number(other.reward)} instead of ${number(episode.reward)}`;
    return el("a", { href: `#/run/${at(name)}/${other.kind}/${at(other.step, other.line)}` }, `${other.fork}: ${reward}`);
  });
  return links.length ? el("div.line.without", {}, links) : null;
}

function compareLine(turn, index, place) {
  const advantage = turn.advantages && turn.advantages.length ? turn.advantages.reduce((sum, value) => sum + value, 0) / turn.advantages.length : null;
  const parts = [];
  if (defined(advantage)) parts.push(el("span.soft", {}, "advantage"), el(`b.${advantage < 0 ? "bad" : advantage > 0 ? "good" : "soft"}`, {}, signed(advantage)));
  if (turn.left_out) parts.push(chip(`left out: ${turn.left_out}`, "warn"), el("span.soft", {}, WHY[turn.left_out] || ""));
  if (turn.group && !place.inGroup) {
    const href = `#/run/${at(place.name)}/${place.kind}/${at(place.step)}/group/${at(turn.group_number)}?from=${place.line}.${index}`;
    parts.push(el("a.group", { href }, `${number(turn.group.own)} against ${turn.group.size} turns, mean ${number(turn.group.mean)} ± ${number(turn.group.spread)}`));
  }
  return parts.length ? el("div.line", {}, parts) : null;
}

function counterfactuals(name, episode) {
  const rows = episode.counterfactuals.map((other) => [
    el("a", { href: `#/run/${at(name)}/${other.kind}/${at(other.step, other.line)}` }, other.fork), rewardChip(other),
    other.error_kind ? "–" : signed(episode.reward - other.reward),
  ]);
  return el("section", {}, el("h2", {}, "What would have happened otherwise"), el("p.soft", {}, "The same episode played again with some turns replaced; the difference is what they were worth."), table(["played again", "reward", "this episode gained"], rows));
}

async function groupPage(page, name, kind, step, group, query) {
  const found = await api(`/api/runs/${at(name)}/${kind}/${at(step)}/group/${at(group)}`);
  const [line, index] = (query.get("from") || "").split(".").map(Number);
  const members = [...found.members].sort((a, b) => (b.shown.group?.own ?? 0) - (a.shown.group?.own ?? 0));
  const turns = members.map((member) => member.shown);
  const cards = members.map((member) => memberCard(member, member.line === line && member.turn === index, { name, kind, step, line: member.line, inGroup: true }));
  put(page, 
    el("div.head", {}, el("h1", {}, "Compared with each other"), chip(`${found.count} turns`), el("span.soft", {}, `mean ${number(found.mean)} ± ${number(found.spread)}`)),
    el("p.pairs", {}, Object.entries(found.key).map(([part, value]) => el("span.pair", {}, part, el("b", {}, value)))),
    found.prompts > 1 ? el("p.note.warn", {}, `These turns reply to ${found.prompts} different prompts: part of the difference may come from the prompt. The letter on a card says which.`) : null,
    found.spread < 1e-6 ? el("p.note.warn", {}, "All returns are equal: nothing is learned from this group.") : null,
    found.count > members.length ? el("p.soft", {}, `The first ${members.length} are shown.`) : null,
    ...paintable(turns, cards, el("div.members", {}, cards.map((card) => card.node))),
  );
}

function memberCard(member, own, place) {
  const card = turnCard(member.shown, member.turn, place);
  const head = el("div.member", {}, el("a", { href: `#/run/${at(place.name)}/${place.kind}/${at(place.step, member.line)}` }, member.episode), el("b.return", {}, number(member.shown.group?.own)), el("span.soft", {}, `prompt ${String.fromCharCode(65 + (member.prompt % 26))}`), own ? chip("this turn", "good") : null);
  card.node.prepend(head);
  if (own) card.node.classList.add("own");
  return card;
}
