"use strict";
// Tokens, coloured by a number of each.

const SCALES = {
  advantage: { title: "advantage", column: "advantages", diverging: true, about: "below zero discouraged, above encouraged" },
  movement: { title: "movement", column: "movement", diverging: true, about: "how far the update moved each log-prob" },
  entropy: { title: "entropy", column: "entropy", about: "how undecided the policy was, in nats" },
  logprob: { title: "log-prob", column: "logprobs", flip: true, about: "darker: less likely when it was sampled" },
  values: { title: "value", column: "values", diverging: true, about: "the critic's estimate" },
  none: { title: "nothing", column: null, about: "" },
};

// The scales that some turn has numbers for.
function scalesOf(turns) {
  return Object.keys(SCALES).filter((name) => !SCALES[name].column || turns.some((turn) => (turn[SCALES[name].column] || []).length));
}

// The size of a scale's numbers over some turns, so that all are coloured alike.
function reach(scale, turns) {
  let most = 0;
  for (const turn of turns) for (const value of turn[scale.column] || []) most = Math.max(most, Math.abs(value));
  return most || 1;
}

function tokenSpan(text) {
  const span = document.createElement("span");
  span.className = "t";
  span.append(visible(text));
  return span;
}

class TokenText {
  constructor(turn) {
    this.turn = turn;
    const texts = turn.tokens || [turn.text];
    this.spans = texts.map((text) => tokenSpan(text));
    this.node = el("div.tokens", {}, this.spans);
    if (turn.tokens) this.node.addEventListener("mouseover", ({ target }) => this.explain(target.closest(".t")));
    if (!turn.response_tokens && !turn.text) this.node.append(el("i.absent", {}, "empty"));
  }

  // The numbers of a token, made when it is pointed at: a conversation may have 100,000.
  explain(span) {
    if (!span || span.title) return;
    const [turn, i] = [this.turn, this.spans.indexOf(span)];
    const columns = [["log-prob", "logprobs"], ["advantage", "advantages"], ["entropy", "entropy"], ["moved", "movement"], ["value", "values"], ["return", "returns"]];
    span.title = columns.filter(([, column]) => turn[column] && defined(turn[column][i])).map(([name, column]) => `${name} ${number(turn[column][i], 4)}`).join(" · ");
  }

  paint(scale, most) {
    const column = scale.column && this.turn.tokens ? this.turn[scale.column] : null;
    this.spans.forEach((span, i) => {
      const value = column ? column[i] : null;
      span.style.backgroundColor = defined(value) ? shade(scale, value / most) : "";
    });
  }
}

function shade(scale, share) {
  const depth = Math.min(1, Math.abs(share)) ** 0.7;
  const hue = scale.diverging ? (share < 0 ? css.bad : css.good) : css.plain;
  return `rgba(${hue},${(0.5 * depth).toFixed(3)})`;
}
css.bad = "214,84,56";
css.good = "46,150,104";
css.plain = "98,102,214";

let latestScale = "advantage"; // kept from page to page

// A picker of scales; `paint(scale)` is called at once and at every change.
function scalePicker(turns, paint) {
  const names = scalesOf(turns);
  const about = el("span.soft");
  const buttons = names.map((name) => el("button", { type: "button", onclick: () => choose(name) }, SCALES[name].title));
  function choose(name) {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(names[i] === name)));
    about.textContent = SCALES[name].about;
    latestScale = name;
    paint(SCALES[name]);
  }
  const node = el("div.picker", {}, el("span.soft", {}, "colour tokens by"), el("span.buttons", {}, buttons), about);
  return { node, start: () => choose(names.includes(latestScale) ? latestScale : names[0]) };
}
