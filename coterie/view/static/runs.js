"use strict";
// The list of runs, and the curves of one or several.

const STATES = { running: "good", finished: "", stopped: "warn", failed: "bad", died: "bad", unknown: "" };
const MOST_LIVE = 4; // runs whose events are followed at once
const MOST_DIFFERENCES = 5; // of the config that a row of the list shows

async function runsPage(page) {
  const [runs, results] = await Promise.all([api("/api/runs"), api("/api/results")]);
  const chosen = new Set();
  const open = el("a.button.primary", { hidden: true }, "");
  const rows = runs.map((run) => runRow(run, (checked) => {
    checked ? chosen.add(run.name) : chosen.delete(run.name);
    open.hidden = chosen.size < 2;
    open.textContent = `Curves of ${chosen.size} runs`;
    open.href = `#/run/${at([...chosen].join(","))}`;
  }));
  put(page, 
    el("div.head", {}, el("h1", {}, "Runs"), el("span.soft", {}, `${runs.length} found`), el("span.grow"), open),
    runs.length ? table(["", "run", "state", "step", "reward", "held-out reward", "team", "differs in", "updated"], rows) : el("p.soft", {}, "No run in these folders yet. The page looks again when it is reloaded."),
    resultLinks(results),
  );
}

function runRow(run, choose) {
  const differs = Object.entries(run.differs || {}).filter(([, value]) => defined(value));
  const chips = differs.slice(0, MOST_DIFFERENCES).map(([key, value]) => el("span.pair", {}, key, el("b", {}, shown(value))));
  if (differs.length > MOST_DIFFERENCES) chips.push(el("span.soft", { title: differs.map(([key, value]) => `${key}: ${shown(value)}`).join("\n") }, `and ${differs.length - MOST_DIFFERENCES} more`));
  return el("tr", {},
    el("td", {}, el("input", { type: "checkbox", ariaLabel: `choose ${run.name}`, onchange: (event) => choose(event.target.checked) })),
    el("td", {}, el("a.strong", { href: `#/run/${at(run.name)}`, title: run.folder }, run.name)),
    el("td", {}, stateChip(run)),
    el("td.num", {}, progress(run)),
    el("td.num", {}, sparkline(run.rewards || []), " ", el("b.num", {}, number((run.rewards || []).at(-1)))),
    el("td.num", {}, run.evaluations ? evaluations(run.evaluations) : el("i.absent", {}, "none"), run.verifier ? el("span.soft", {}, " AUC") : null),
    el("td", {}, el("div", {}, shown(run.workflow)), el("div.soft", {}, shown(run.algorithm))),
    el("td.chips", {}, chips.length ? chips : el("span.soft", {}, "–")),
    el("td.soft.num", {}, ago(run.time)),
  );
}

function evaluations([first, last]) {
  const change = last - first;
  return [number(first), " → ", el("b", {}, number(last)), " ", el(`span.${change < 0 ? "bad" : "good"}`, {}, signed(change))];
}

function stateChip(run) {
  return el("span", { title: run.cause || "" }, chip(run.state, STATES[run.state]));
}

function progress(run) {
  const bar = el("span.progress", {}, el("i"));
  bar.firstChild.style.width = `${Math.min(100, (100 * run.step) / (run.steps || run.step || 1))}%`;
  return [`${run.step} / ${run.steps ?? "?"} `, bar];
}

async function runPage(page, names, live) {
  const runs = await Promise.all(names.map(async (name) => ({ name, ...(await api(`/api/runs/${at(name)}`)), rows: await api(`/api/runs/${at(name)}/metrics`) })));
  const [run] = runs;
  const state = el("span", {}, stateChip(run));
  const title = el("div.head", {}, el("h1", {}, names.join(" · ")), runs.length === 1 ? state : null, el("span.grow"), ...(runs.length === 1 ? runLinks(run) : []));
  put(page, title);
  if (runs.length === 1 && run.cause && run.state !== "finished") put(page, el("pre.cause", {}, run.cause));
  if (answers) put(page, el("p.note", {}, answers.about));
  const facts = el("div.facts");
  const charts = [];
  put(page, facts, ...(runs.length === 1 ? reliabilitySection(run, charts) : []), ...sections(runs, charts));
  put(page, runs.length === 1 ? configSection(run) : differencesSection(runs));
  if (runs.length > 1) put(page, pairedSection(runs));
  if (runs.length === 1 && run.replays) put(page, replaySection(run));
  charts.forEach((chart) => chart.draw());
  if (runs.length === 1) tellFacts(facts, run);
  // A browser opens six connections to a host, and the page needs some for itself.
  if (!answers) for (const one of runs.filter(({ state }) => state === "running").slice(0, MOST_LIVE)) follow(one, charts, live, () => runs.length === 1 && tellFacts(facts, run), (status) => runs.length === 1 && state.replaceChildren(stateChip(status)));
}

function runLinks(run) {
  const links = [];
  const kinds = { episodes: "Episodes", eval: "Held-out episodes", counterfactuals: "Counterfactuals" };
  for (const [kind, text] of Object.entries(kinds)) if (run.stored[kind].length) links.push(el("a.button", { href: `#/run/${at(run.name)}/${kind}` }, text));
  const held = run.stored.eval;
  if (held.length > 1) links.push(el("a.button", { href: `#/paired/${at(run.name, held[0], run.name, held.at(-1))}` }, "Before and after"));
  return links;
}

function tellFacts(node, run) {
  const training = run.rows.filter((row) => defined(row.reward));
  const last = training.at(-1) || {};
  const held = run.rows.filter((row) => defined(row["eval/reward"]));
  if (run.verifier) return put(clear(node), verifierFacts(run));
  const seconds = Object.entries(last).filter(([name]) => name.startsWith("seconds/")).reduce((sum, [, value]) => sum + value, 0);
  const facts = [
    ["step", `${training.length ? last.step : 0} / ${run.steps ?? "?"}`],
    ["reward", withError(last, "reward")],
    ["held-out reward", held.length ? withError(held.at(-1), "eval/reward") : "–"],
    ["since the start", held.length > 1 ? signed(held.at(-1)["eval/reward"] - held[0]["eval/reward"]) : "–"],
    ["a step takes", training.length ? `${number(seconds, 1)} s` : "–"],
    ["tokens per second", number(last.tokens_per_second, 0)],
  ];
  put(clear(node), facts.map(fact));
}

function fact([name, value]) {
  return el("div.fact", {}, el("b", {}, value), el("span.soft", {}, name));
}

function withError(row, name) {
  const [low, high] = interval(row, name);
  return number(row[name]) + (defined(low) ? ` ± ${number((high - low) / 2)}` : "");
}

// New rows arrive as server-sent events; charts take them in at most once per frame.
function follow(run, charts, live, tell, changed) {
  const events = new EventSource(`/api/runs/${at(run.name)}/events?after=${run.rows.length}`);
  let due = false;
  events.onmessage = (event) => {
    run.rows.push(JSON.parse(event.data));
    if (due) return;
    due = true;
    requestAnimationFrame(() => {
      due = false;
      charts.forEach((chart) => chart.update());
      tell();
    });
  };
  events.addEventListener("state", (event) => changed(JSON.parse(event.data)));
  events.addEventListener("reset", () => show());
  live(() => events.close(), run.state === "running");
}

const BY_POLICY = {
  entropy: "entropy", kl_step: "KL of the step", kl: "KL to the reference", clip_fraction: "clipped share", ratio_max: "highest ratio", grad_norm: "gradient norm",
  loss: "loss", lr: "learning rate", logprob_gap: "log-prob gap, sampler to learner", advantage_std: "deviation of advantages", response_length: "response length",
};

// The sections of the page: title, then charts as [title, names of metrics, label of a name].
function sections(runs, charts) {
  const known = [...new Set(runs.flatMap((run) => run.rows.flatMap((row) => Object.keys(row))))];
  const used = new Set(["step", "time"]);
  const roles = [...new Set(runs.flatMap((run) => run.roles))];
  const policies = [...new Set(runs.flatMap((run) => run.policies))];
  const last = (name) => name.slice(name.lastIndexOf("/") + 1);
  const by = (prefix, names) => names.map((name) => `${prefix}/${name}`);
  const held = (name) => (name.startsWith("eval/") ? "held out" : "training");
  const plan = [
    ["Reward", [["team reward", ["reward", "eval/reward"], held], ["accuracy", ["accuracy", "eval/accuracy"], held], ["reward by role", by("reward", roles), last], ["held-out reward by role", by("eval/reward", roles), last], ["credit by role", by("credit", roles), last]]],
    ["Verifier, on held-out questions", [["AUC", ["eval/auc", "eval/auc_within"], (name) => (name === "eval/auc" ? "across questions" : "within a question")], ["pairs ranked rightly", ["eval/accuracy_within"], () => "within a question"], ["calibration error", ["eval/ece"], last]]],
    ["Training of the verifier", [["loss", ["loss"], last], ["gradient norm", ["grad_norm"], last], ["learning rate", ["lr"], last], ["answers in a step", ["answers"], last]]],
    ["Policies", Object.entries(BY_POLICY).map(([metric, title]) => [title, policies.map((policy) => `${policy}/${metric}`), (name) => name.slice(0, -metric.length - 1)])],
    ["Groups", [["groups", ["groups", "groups/constant", "groups/singleton", "groups/mixed_prompts"], (name) => (name === "groups" ? "all" : last(name))], ["turns left out", ["dropped/constant", "dropped/truncated", "stale"], last]]],
    ["Replies", [["tokens by role", by("tokens", roles), last], ["truncated share by role", by("truncated", roles), last], ["failed episodes", ["failed", "eval/failed"], held]]],
    ["Time", [["seconds of each phase", known.filter((name) => name.startsWith("seconds/")), last], ["tokens per second", ["tokens_per_second"], last]]],
  ];
  const nodes = plan.map(([title, rows]) => sectionOf(title, rows, runs, charts, known, used));
  Object.values(INTERVALS).flat().forEach((bound) => used.add(bound));
  const rest = known.filter((name) => !used.has(name) && !name.includes("stderr/")).sort();
  if (rest.length) nodes.push(restOf(rest, runs, charts));
  return nodes.filter(Boolean);
}

function sectionOf(title, rows, runs, charts, known, used) {
  const found = [];
  for (const [name, metrics, label] of rows) {
    const present = metrics.filter((metric) => known.includes(metric));
    present.forEach((metric) => used.add(metric));
    if (!present.length) continue;
    const banded = present.some((metric) => metric in INTERVALS || known.includes(errorName(metric)));
    found.push(new Chart(name, linesOf(runs, present, label), banded ? "with 95 % bands" : ""));
  }
  charts.push(...found);
  return found.length ? el("section", {}, el("h2", {}, title), el("div.charts", {}, found.map((chart) => chart.node))) : null;
}

// Drawn when they are opened: there may be a hundred.
function restOf(names, runs, charts) {
  const grid = el("div.charts");
  const node = fold(`${names.length} more metrics`, grid);
  node.classList.add("more");
  node.addEventListener("toggle", () => {
    if (!node.open || grid.childElementCount) return;
    const found = names.map((name) => new Chart(name, linesOf(runs, [name], (text) => text)));
    grid.append(...found.map((chart) => chart.node));
    found.forEach((chart) => chart.draw());
    charts.push(...found);
  });
  return node;
}

function configSection(run) {
  const rows = Object.entries(run.config).map(([key, value]) => [el("code", {}, key), el("code", {}, shown(value))]);
  const node = fold(`Config, ${rows.length} keys`, table(["key", "value"], rows));
  node.classList.add("more");
  return node;
}

function differencesSection(runs) {
  const keys = [...new Set(runs.flatMap((run) => Object.keys(run.config)))].filter((key) => new Set(runs.map((run) => shown(run.config[key]))).size > 1);
  return el("section", {}, el("h2", {}, "Config differences"), table(["key", ...runs.map((run) => run.name)], keys.map((key) => [el("code", {}, key), ...runs.map((run) => shown(run.config[key]))])));
}

function pairedSection(runs) {
  const held = runs.filter((run) => run.stored.eval.length);
  const pairs = held.slice(1).map((run) => el("a.button", { href: `#/paired/${at(held[0].name, held[0].stored.eval.at(-1), run.name, run.stored.eval.at(-1))}` }, `${held[0].name} → ${run.name}`));
  return el("section", {}, el("h2", {}, "Paired by task"), pairs.length ? el("div.row", {}, pairs) : el("p.soft", {}, "Fewer than two of these runs have stored held-out episodes."));
}

async function pairedPage(page, first, step, second, other) {
  const found = await api(`/api/paired/${at(first, step, second, other)}`);
  const same = first === second;
  const name = (run, at) => (same ? `after ${at} steps` : `${run}, after ${at} steps`);
  put(page, el("div.head", {}, el("h1", {}, same ? `${first}: before and after` : `${first} → ${second}`)), verdict(found));
  const cell = (run, step, line, value) => el("a", { href: `#/run/${at(run)}/eval/${at(step, line)}` }, number(value));
  const sorted = [...found.tasks].sort((a, b) => Math.abs(b.after - b.before) - Math.abs(a.after - a.before));
  const rows = sorted.map((row) => {
    const change = row.after - row.before;
    return [el("code", {}, row.task), cell(first, step, row.before_line, row.before), cell(second, other, row.after_line, row.after), el(`span.${change < 0 ? "bad" : change > 0 ? "good" : "soft"}`, {}, signed(change))];
  });
  put(page, table(["task", name(first, step), name(second, other), "change"], rows));
}

function verdict({ result, tasks, only_one }) {
  if (!result) return el("p.soft", {}, `${tasks.length} tasks in common; at least two are needed to compare.`);
  const clear = result.low > 0 || result.high < 0;
  const text = `On ${result.tasks} tasks the reward changes by ${signed(result.difference)}, 95 % interval ${number(result.low)} to ${number(result.high)}; ${number(100 * result.discordant, 0)} % of the tasks differ, sign-flip test p = ${number(result.p)}.`;
  return el("p.note", {}, chip(clear ? "clear" : "not clear", clear ? "good" : "warn"), " ", text, only_one ? ` ${only_one} tasks are in one of the two only.` : "");
}
