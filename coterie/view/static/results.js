"use strict";
// Pages of what several runs found together: comparisons, games, and a verifier's calibration.

const GOAL = { team: 0.95, versus: 0.05 }; // a share of the optimum to reach; an exploitability to stay below

function resultLinks(results) {
  if (!results.length) return null;
  const links = results.map(({ name, kind }) => el("a.button", { href: `#/results/${at(name)}` }, `${name}: ${kind}`));
  return el("section", {}, el("h2", {}, "Comparisons and games"), el("div.row", {}, links));
}

async function resultPage(page, name, live) {
  const found = await api(`/api/results/${at(name)}`);
  return found.kind === "games" ? gamesPage(page, name, found.results) : comparisonPage(page, found, live);
}

// What a comparison found comes first, then the curves of its runs.
function comparisonPage(page, { title, table: found, commands, runs }, live) {
  if (title) put(page, el("div.head", {}, el("h1", {}, title)));
  if (found) put(page, table(found.columns, found.rows));
  if (commands) put(page, fold("Commands", el("pre", {}, commands)));
  return runs.length ? runPage(page, runs, live) : null;
}

function gamesPage(page, name, results) {
  const games = [...new Set(results.map(({ game }) => game))];
  const algorithms = [...new Set(results.map(({ algorithm }) => algorithm))];
  const of = (game, algorithm) => results.filter((one) => one.game === game && one.algorithm === algorithm);
  const charts = games.filter((game) => !isVersus(of(game, algorithms.find((one) => of(game, one).length)))).map((game) => gameChart(game, algorithms, of)).filter(Boolean);
  const rows = algorithms.map((algorithm) => [algorithm, ...games.map((game) => gameCell(of(game, algorithm)))]);
  put(page,
    el("div.head", {}, el("h1", {}, `${name}: games with a known optimum`), chip(`${results.length} runs`)),
    el("p.soft", {}, "Share of the optimal reward, or in zero-sum games the exploitability: mean ± deviation over seeds, then the worst seed."),
    table(["algorithm", ...games], rows),
    charts.length ? el("section", {}, el("h2", {}, "Reward in training"), el("div.charts", {}, charts.map((chart) => chart.node))) : null,
  );
  charts.forEach((chart) => chart.draw());
}

function isVersus(runs) {
  return runs.some(({ average }) => defined(average));
}

function gameCell(runs) {
  if (!runs.length) return "–";
  const versus = isVersus(runs);
  const reached = runs.map((run) => run.reached);
  const worst = versus ? Math.max(...reached) : Math.min(...reached);
  const good = versus ? worst < GOAL.versus : worst >= GOAL.team;
  const { mean, deviation } = moments(reached);
  const pool = versus ? `, pool ${number(moments(runs.map((run) => run.average)).mean)}` : "";
  const spread = reached.length > 1 ? ` ± ${number(deviation)}` : "";
  const seconds = moments(runs.map((run) => run.seconds)).mean;
  return el("span.num", { title: `${runs.length} seeds, ${number(seconds, 1)} s a run` }, el(`b.${good ? "good" : "bad"}`, {}, number(mean)), `${spread} (${number(worst)}${pool})`);
}

function moments(values) {
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, deviation: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null };
}

// The mean over seeds by step; a band where there are several.
function gameChart(game, algorithms, of) {
  const lines = algorithms.filter((algorithm) => of(game, algorithm).some((run) => (run.rewards || []).length)).map((algorithm, i) => {
    const curves = of(game, algorithm).map((run) => run.rewards);
    const rows = curves[0].map((_, step) => {
      const { mean, deviation } = moments(curves.map((curve) => curve[step]));
      return { step: step + 1, reward: mean, "stderr/reward": defined(deviation) ? deviation / Math.sqrt(curves.length) : null };
    });
    return { label: algorithm, rows, name: "reward", colour: colour(i), dash: DASHES[Math.floor(i / PALETTE) % DASHES.length] };
  });
  return lines.length ? new Chart(game, lines, "95 % bands over seeds") : null;
}

function verifierFacts(run) {
  const held = run.rows.filter((row) => defined(row["eval/auc_within"]));
  const last = held.at(-1) || {};
  return [
    ["step", String(run.rows.at(-1)?.step ?? 0)],
    ["AUC within a question", withError(last, "eval/auc_within")],
    ["since the first evaluation", held.length > 1 ? signed(last["eval/auc_within"] - held[0]["eval/auc_within"]) : "–"],
    ["AUC across questions", number(last["eval/auc"])],
    ["calibration error", number(last["eval/ece"])],
    ["loss", number(run.rows.at(-1)?.loss)],
  ].map(fact);
}

// The share of right answers by score, at the first and the latest evaluation.
function reliabilitySection(run, charts) {
  if (!run.reliability.length) return [];
  const shown = [...new Set([run.reliability[0], run.reliability.at(-1)])];
  const lineOf = (name) => ({ step, bins }, i) => ({ label: `after ${step} steps`, rows: bins, name, colour: colour(i), dash: [], sparse: true });
  const ideal = { label: "calibrated", rows: [0, 1].map((score) => ({ score, right: score })), name: "right", colour: colour(6), dash: DASHES[1] };
  const found = [
    new Chart("share of right answers by score", [...shown.map(lineOf("right")), ideal], "", "score"),
    new Chart("answers by score", shown.map(lineOf("answers")), "", "score"),
  ];
  charts.push(...found);
  return [el("section", {}, el("h2", {}, "Reliability"), el("div.charts", {}, found.map((chart) => chart.node)))];
}
