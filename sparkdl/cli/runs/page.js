"use strict";
// Draws the runs that are chosen. All texts go in as text: nothing in a run's files becomes HTML.
const runs = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 480, HEIGHT = 260, LEFT = 58, RIGHT = 24, TOP = 34, BOTTOM = 30;
const NOISY = 20; // points of a loss from which on it is smoothed

function add(parent, name, attributes, text) {
  const svg = parent.namespaceURI === SVG || name === "svg";
  const element = svg ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent.append(element);
  return element;
}

function short(value) {
  return Number(value.toPrecision(4)).toString();
}

// Round places on an axis, about so many.
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n += 1) found.push(n * step);
  return found;
}

// Means of a window around each point without its largest and smallest values. The window is narrow at the
// beginning, where losses fall fast, and one-sided at the end.
function smoothed(points) {
  const most = Math.max(2, Math.round(points.length / 30));
  return points.map(([x], at) => {
    const back = Math.min(most, at), ahead = Math.min(most, at, points.length - 1 - at);
    const near = points.slice(at - back, at + ahead + 1).map((point) => point[1]).sort((a, b) => a - b);
    const cut = near.length < 5 ? 0 : Math.ceil(near.length / 10);
    const kept = near.slice(cut, near.length - cut);
    return [x, kept.reduce((sum, value) => sum + value, 0) / kept.length];
  });
}

// The values without the few that are far from all others, which would make the rest a flat line.
function usual(values) {
  if (values.length < NOISY) return values;
  const sorted = [...values].sort((a, b) => a - b), cut = Math.floor(sorted.length / 50);
  return sorted.slice(cut, sorted.length - cut);
}

function chart(parent, title, lines) {
  const rough = title === "loss" && lines.some((line) => line.points.length >= NOISY);
  for (const line of lines) line.drawn = rough ? smoothed(line.points) : line.points;
  const xs = lines.flatMap((line) => line.points.map((point) => point[0]));
  const ys = lines.flatMap((line) => {
    const [own, raw] = [line.drawn, line.points].map((points) => points.map((point) => point[1]));
    return rough ? [...own, ...usual(raw)] : own;
  });
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const [first, last] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)];
  const x = (value) => LEFT + ((value - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const clipped = (value) => Math.min(high, Math.max(low, value));
  const y = (value) => TOP + ((high - clipped(value)) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const ends = lines.map((line) => `${line.name}: ${short(line.points.at(-1)[1])}`).join(", ");
  const svg = add(parent, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}; ${ends}` });
  add(svg, "text", { x: 10, y: 18, class: "title" }, rough ? `${title}, smoothed` : title);
  for (const value of ticks(low, high, 6)) {
    add(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) });
    add(svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value));
  }
  for (const value of ticks(first, last, 5)) {
    add(svg, "text", { x: x(value), y: HEIGHT - 10, "text-anchor": "middle" }, short(value));
  }
  const path = (points) => points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
  if (rough) for (const line of lines) add(svg, "polyline", { points: path(line.points), class: `${line.side} raw` });
  for (const line of lines) {
    const shape = add(svg, "polyline", { points: path(line.drawn), class: line.side });
    const last = line.points.at(-1), dot = line.drawn.at(-1);
    const end = add(svg, "circle", { cx: x(dot[0]), cy: y(dot[1]), r: 3, class: line.side });
    for (const target of [shape, end]) add(target, "title", {}, `${line.name}: ${short(last[1])} at iteration ${last[0]}`);
  }
}

function table(parent, names, a, b) {
  const head = add(add(add(parent, "table"), "thead"), "tr");
  for (const title of b ? ["", "A", "B"] : ["", "A"]) add(head, "th", {}, title);
  const body = add(head.parentNode.parentNode, "tbody");
  for (const name of names) {
    const row = add(body, "tr");
    for (const cell of [name, ...(b ? [a, b] : [a]).map((values) => values[name] ?? "-")]) add(row, "td", {}, cell);
  }
}

// What differs comes first; what does not is folded away.
function compared(parent, names, a, b, what) {
  if (!b) return table(parent, names, a, b);
  const differs = (name) => (a[name] ?? "-") !== (b[name] ?? "-");
  const [others, same] = [names.filter(differs), names.filter((name) => !differs(name))];
  if (others.length) table(parent, others, a, b);
  else add(parent, "p", {}, `All ${what} are the same.`);
  if (!same.length) return;
  const folded = add(parent, "details");
  add(folded, "summary", {}, `the same in both: ${same.length} ${what}`);
  table(folded, same, a, null);
}

function union(a, b) {
  return [...new Set([...Object.keys(a), ...Object.keys(b || {})])];
}

const [first, second] = ["first", "second"].map((id) => document.getElementById(id));
runs.forEach((run, index) => {
  const name = `${run.run} · ${run.facts.started}`;
  for (const select of [first, second]) add(select, "option", { value: index }, name);
});
first.value = String(runs.length - 1);
second.value = runs.length > 1 ? String(runs.length - 2) : "";

function show() {
  const a = runs[first.value], b = second.value === "" ? null : runs[second.value];
  const [curves, facts, settings] = ["curves", "facts", "settings"].map((id) => document.getElementById(id));
  for (const part of [curves, facts, settings]) part.replaceChildren();
  for (const name of union(a.series, b && b.series)) {
    const lines = [{ side: "a", run: a }, { side: "b", run: b }]
      .filter((line) => line.run && line.run.series[name])
      .map((line) => ({ side: line.side, name: line.run.run, points: line.run.series[name] }));
    chart(curves, name, lines);
  }
  if (!curves.firstChild) add(curves, "p", {}, "These runs have no curves: only checkpoints are left of them.");
  compared(facts, union(a.facts, b && b.facts), a.facts, b && b.facts, "results");
  const names = union(a.settings, b && b.settings).sort();
  if (names.length) compared(settings, names, a.settings, b && b.settings, "settings");
  else add(settings, "p", {}, "The files hold no settings: JsonLines of earlier releases did not write them.");
}

for (const select of [first, second]) select.addEventListener("change", show);
document.getElementById("compare").hidden = false;
show();
