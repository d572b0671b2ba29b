"use strict";
// Curves with 95 % bands, on uPlot.

const HALF = 1.96; // standard errors on each side of a 95 % interval
const DASHES = [[], [6, 4], [2, 3], [8, 3, 2, 3], [1, 4]];
const HEIGHT = 190;

// The metric that has the standard error of another.
function errorName(name) {
  const held = name.startsWith("eval/") ? "eval/" : "";
  return `${held}stderr/${name.slice(held.length)}`;
}

// Metrics that have an interval of their own instead of a standard error.
const INTERVALS = { "eval/auc_within": ["eval/within_low", "eval/within_high"] };

function interval(row, name) {
  if (name in INTERVALS) return INTERVALS[name].map((bound) => row[bound]);
  const error = row[errorName(name)];
  return defined(error) ? [row[name] - HALF * error, row[name] + HALF * error] : [null, null];
}

// One chart: `lines` are {label, rows, name, colour, dash}; `axis` is the column of a row that is drawn from left to right.
class Chart {
  constructor(title, lines, note = "", axis = "step") {
    this.lines = lines;
    this.axis = axis;
    this.values = lines.map(() => el("b", {}, "–"));
    this.box = el("div.plot");
    const legend = lines.map((line, i) => {
      const key = el("i.key");
      key.style.borderTopColor = line.colour;
      key.style.borderTopStyle = line.dash.length ? "dashed" : "solid";
      return el("span.entry", {}, key, line.label + " ", this.values[i]);
    });
    this.node = el("figure.chart", {}, el("figcaption", {}, title, note ? el("small", {}, note) : null), this.box, el("div.legend", {}, legend));
  }

  data() {
    const steps = [...new Set(this.lines.flatMap((line) => line.rows.filter((row) => defined(row[line.name])).map((row) => row[this.axis])))].sort((a, b) => a - b);
    const place = new Map(steps.map((step, i) => [step, i]));
    const columns = this.lines.flatMap((line) => {
      const [middle, low, high] = [0, 0, 0].map(() => new Array(steps.length).fill(null));
      for (const row of line.rows) {
        const value = row[line.name];
        if (!defined(value)) continue;
        const i = place.get(row[this.axis]);
        middle[i] = value;
        [low[i], high[i]] = interval(row, line.name).map((bound) => bound ?? null);
      }
      return [middle, low, high];
    });
    return [steps, ...columns];
  }

  draw() {
    if (this.plot) this.plot.destroy();
    const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const few = this.data()[0].length < 3; // a line needs two points
    const series = this.lines.flatMap((line) => [
      { label: line.label, stroke: line.colour, width: 1.6, dash: line.dash, spanGaps: true, points: { show: few || line.sparse, size: 5, fill: line.colour } },
      { show: true, width: 0, stroke: "transparent", points: { show: false }, spanGaps: true },
      { show: true, width: 0, stroke: "transparent", points: { show: false }, spanGaps: true },
    ]);
    const bands = this.lines.map((line, i) => ({ series: [3 * i + 3, 3 * i + 2], fill: fade(line.colour) }));
    const options = {
      width: Math.max(240, this.box.clientWidth || 380), height: HEIGHT, legend: { show: false }, bands,
      cursor: { sync: { key: this.axis }, drag: { x: true, y: false }, points: { size: 6 } },
      scales: { x: { time: false } }, series: [{}, ...series],
      axes: [{ ...axis, size: 28, values: (_, ticks) => ticks.map((tick) => (this.axis !== "step" ? number(tick) : Number.isInteger(tick) ? tick : "")) }, { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => number(tick)) }],
      hooks: { setCursor: [(plot) => this.tell(plot.cursor.idx)] },
    };
    this.plot = new uPlot(options, this.data(), this.box);
    this.tell(null);
  }

  update() {
    if (this.plot) this.plot.setData(this.data());
    this.tell(null);
  }

  // The values under the cursor, else the latest ones.
  tell(index) {
    const columns = this.plot ? this.plot.data : this.data();
    this.values.forEach((node, i) => {
      const column = columns[3 * i + 1];
      let k = index ?? column.length - 1;
      while (index === null && k > 0 && column[k] === null) k--;
      node.textContent = number(column[k]);
    });
  }
}

function defined(value) {
  return value !== null && value !== undefined;
}

function fade(colour) {
  const [r, g, b] = [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  return `rgba(${r},${g},${b},0.14)`;
}

// A line for every run and name: with one run colours tell names apart, with several they tell runs apart.
function linesOf(runs, names, label) {
  const several = runs.length > 1;
  const lines = runs.flatMap((run, r) => names.filter((name) => run.rows.some((row) => defined(row[name]))).map((name) => {
    const n = names.indexOf(name);
    const text = several ? (names.length > 1 ? `${run.name} · ${label(name)}` : run.name) : label(name);
    return { label: text, rows: run.rows, name, colour: colour(several ? r : n), dash: several ? DASHES[n % DASHES.length] : [], sparse: name.startsWith("eval/") };
  }));
  return lines;
}

function sparkline(values) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "spark");
  svg.setAttribute("viewBox", "0 0 100 24");
  svg.setAttribute("preserveAspectRatio", "none");
  const known = values.filter(defined);
  if (known.length > 1) {
    const [low, high] = [Math.min(...known), Math.max(...known)];
    const points = known.map((value, i) => `${(100 * i) / (known.length - 1)},${22 - (20 * (value - low)) / (high - low || 1)}`);
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("points", points.join(" "));
    svg.append(line);
  }
  return svg;
}
