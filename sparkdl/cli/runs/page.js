"use strict";
// Draws the runs that are chosen. All texts go in as text: nothing in a run's files becomes HTML.
const runs = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 480, HEIGHT = 260, LEFT = 58, RIGHT = 24, TOP = 34, BOTTOM = 30;

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

function chart(parent, title, lines) {
  const points = lines.flatMap((line) => line.points);
  const xs = points.map((point) => point[0]), ys = points.map((point) => point[1]);
  let [low, high] = [Math.min(...ys), Math.max(...ys)];
  if (low === high) [low, high] = [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const [first, last] = [Math.min(...xs), Math.max(...xs, Math.min(...xs) + 1)];
  const x = (value) => LEFT + ((value - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
  const y = (value) => TOP + ((high - value) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const ends = lines.map((line) => `${line.name}: ${short(line.points.at(-1)[1])}`).join(", ");
  const svg = add(parent, "svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}; ${ends}` });
  add(svg, "text", { x: 10, y: 18, class: "title" }, title);
  for (const value of ticks(low, high, 6)) {
    add(svg, "line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) });
    add(svg, "text", { x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, short(value));
  }
  for (const value of ticks(first, last, 5)) {
    add(svg, "text", { x: x(value), y: HEIGHT - 10, "text-anchor": "middle" }, short(value));
  }
  for (const line of lines) {
    const drawn = line.points.map((point) => `${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join(" ");
    const shape = add(svg, "polyline", { points: drawn, class: line.side });
    const dot = line.points.at(-1);
    const end = add(svg, "circle", { cx: x(dot[0]), cy: y(dot[1]), r: 3, class: line.side });
    for (const target of [shape, end]) add(target, "title", {}, `${line.name}: ${short(dot[1])} at iteration ${dot[0]}`);
  }
}

function table(parent, names, a, b) {
  const head = add(add(add(parent, "table"), "thead"), "tr");
  for (const title of b ? ["", "A", "B"] : ["", "A"]) add(head, "th", {}, title);
  const body = add(head.parentNode.parentNode, "tbody");
  for (const name of names) {
    const cells = (b ? [a, b] : [a]).map((values) => values[name] ?? "-");
    const row = add(body, "tr", b && cells[0] !== cells[1] ? { class: "differs" } : {});
    for (const cell of [name, ...cells]) add(row, "td", {}, cell);
  }
}

function union(a, b) {
  return [...new Set([...Object.keys(a), ...Object.keys(b || {})])];
}

const [first, second] = ["first", "second"].map((id) => document.getElementById(id));
runs.forEach((run, index) => {
  const name = `${run.facts.name} · ${run.facts.started} · ${run.facts.path}`;
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
      .map((line) => ({ side: line.side, name: line.run.facts.name, points: line.run.series[name] }));
    chart(curves, name, lines);
  }
  if (!curves.firstChild) add(curves, "p", {}, "These runs have no curves: only checkpoints are left of them.");
  table(facts, union(a.facts, b && b.facts), a.facts, b && b.facts);
  const names = union(a.settings, b && b.settings).sort();
  if (names.length) table(settings, names, a.settings, b && b.settings);
  else add(settings, "p", {}, "The files hold no settings: JsonLines of earlier releases did not write them.");
}

for (const select of [first, second]) select.addEventListener("change", show);
document.getElementById("compare").hidden = false;
show();
