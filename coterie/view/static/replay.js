"use strict";
// The form that replays a run under another algorithm or credit.

// What another algorithm or credit would have said of the same turns.
function replaySection(run) {
  const input = el("input", { type: "text", name: "changes", value: "algorithm=rloo", ariaLabel: "changes" });
  const result = el("div");
  const form = el("form.filter", {}, input, el("button", { type: "submit" }, "Replay"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    result.replaceChildren(el("p.soft", {}, "replaying …"));
    const body = JSON.stringify({ changes: input.value.trim().split(/\s+(?=algorithm|credit)/) });
    const reply = await fetch(`/api/runs/${at(run.name)}/replay`, { method: "POST", headers: { "Content-Type": "application/json" }, body });
    const found = await reply.json();
    result.replaceChildren(reply.ok ? replayed(run, found) : el("pre.cause", {}, found.error.message || found.error));
  });
  return el("section", {}, el("h2", {}, "What another algorithm would have said"), form, result);
}

function replayed(run, found) {
  const rows = found.rows.map((row) => [row.step, el("a", { href: `#/run/${at(run.name)}/episodes/${at(row.step, row.line)}` }, row.episode), row.role, signed(row.advantage), signed(row["advantage now"])]);
  const told = `${found.changed} of ${found.turns} turns would have another advantage; ${found.flipped} change sign.`;
  return el("div", {}, el("p", {}, told), rows.length ? table(["step", "episode", "role", "advantage", "replayed"], rows) : null);
}
