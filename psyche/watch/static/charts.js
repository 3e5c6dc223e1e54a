"use strict";
// Charts by uPlot, and the bars of what each member did when.

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const HUES = ["#e4863b", "#3aa17e", "#a261c9", "#c94f6d", "#6d8f2f", "#4a9cc9", "#b58a1c", "#8c6f5a"];
const drawn = new Map(); // by element: the chart and what it was drawn from

// `lines`: {name, x, y, color, width, points}; `band`: [upper, lower], the places of two of them.
function chart(element, title, lines, { band = null, x = "step", digits = loss } = {}) {
  const key = JSON.stringify([title, x, lines.map((one) => one.name), document.documentElement.dataset.theme || "", css("--ink")]);
  const data = uPlot.join(lines.map((one) => [one.x, one.y]));
  const had = drawn.get(element);
  element.setAttribute("aria-label", describeChart(title, lines, digits));
  if (had && had.key === key) { had.plot.setData(data); return; }
  if (had) had.plot.destroy();
  const grid = { stroke: css("--line"), width: 1 }, axis = { stroke: css("--soft"), grid, ticks: grid };
  const plot = new uPlot({
    title, width: element.clientWidth || 400, height: 240,
    cursor: { drag: { x: true, y: false } },
    scales: { x: { time: false } },
    axes: [{ ...axis, values: (_, all) => all.map((v) => (isWhole(v) ? count(v) : v.toFixed(1))) },
           { ...axis, size: 62, values: (_, all) => all.map((v) => (digits === loss ? String(+v.toFixed(4)) : digits(v))) }],
    series: [{ label: x, value: (_, v) => (v === null ? "–" : isWhole(v) ? String(v) : v.toFixed(2)) }, ...lines.map((one) => ({
      label: one.name, stroke: one.color || css("--accent"), width: one.width ?? 2, spanGaps: true,
      points: { show: one.points || one.x.length < 3, size: one.points ? 7 : 5 }, value: (_, v) => (v === null ? "–" : digits(v)),
    }))],
    bands: band ? [{ series: [band[0] + 1, band[1] + 1], fill: css("--band") }] : [],
  }, data, element);
  drawn.set(element, { plot, key });
}
const isWhole = (v) => Number.isInteger(v);

function describeChart(title, lines, digits) {
  const last = (one) => one.y.filter((v) => v !== null).at(-1);
  return `${title}: ${lines.filter((one) => known(last(one))).map((one) => `${one.name} ${digits(last(one))}`).join(", ")}`;
}

function forgetCharts() {
  for (const [element, { plot }] of drawn) if (!element.isConnected) { plot.destroy(); drawn.delete(element); }
}
addEventListener("resize", () => {
  for (const [element, { plot }] of drawn) plot.setSize({ width: element.clientWidth, height: 240 });
});

function lossLines(run, history) {
  const c = history.curve, lines = [];
  const spread = c.greatest.some((v, place) => v !== c.least[place]);
  if (spread) {
    lines.push({ name: "greatest", x: c.step, y: c.greatest, width: 0.5 }, { name: "least", x: c.step, y: c.least, width: 0.5 });
  }
  history.series.forEach((one, place) => lines.push({
    name: one.name, x: one.step, y: one.loss, color: HUES[place % HUES.length], width: one.points ? 0 : 1, points: one.points }));
  lines.push({ name: spread ? "median" : "loss", x: c.step, y: c.loss });
  return [lines, spread ? [0, 1] : null];
}

function spark(values) {
  const least = Math.min(...values), most = Math.max(...values), wide = 120, high = 32;
  const at = values.map((v, n) => `${((n / Math.max(1, values.length - 1)) * wide).toFixed(1)},${(high - 2 - ((v - least) / (most - least || 1)) * (high - 4)).toFixed(1)}`);
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), line = document.createElementNS(svg.namespaceURI, "polyline");
  for (const [name, value] of Object.entries({ viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img", "aria-label": `loss from ${loss(values[0])} to ${loss(values.at(-1))}` })) svg.setAttribute(name, value);
  for (const [name, value] of Object.entries({ points: at.join(" "), fill: "none", stroke: "currentColor", "stroke-width": 1.5 })) line.setAttribute(name, value);
  svg.append(line);
  return svg;
}

// In this order, the later over the earlier.
const USES = [
  ["absent", "not a member", "#e7d9ee"], ["wait", "waits for others", "#cfd4da"], ["send", "sends", "#8e6bbf"],
  ["witness", "witnesses", "#f0c95c"], ["transfer", "waits for payloads", "#4c8fd0"], ["train", "trains", "#4daf62"],
  ["vain", "trains in vain", "#e58a7d"], ["apply", "applies", "#1d5c34"], ["away", "away", "#4a4a4a"], ["cut", "its work is in no set", "#c0392b"],
];

function drawBars(canvas, timeline) {
  const names = timeline.names, row = 18, left = Math.min(150, canvas.clientWidth * 0.3), high = names.length * row + 24;
  const wide = canvas.clientWidth || 600, scale = devicePixelRatio || 1;
  canvas.width = wide * scale; canvas.height = high * scale; canvas.style.height = `${high}px`;
  const pen = canvas.getContext("2d"), per = (wide - left - 8) / (timeline.end || 1);
  pen.scale(scale, scale);
  pen.font = "12px system-ui, sans-serif"; pen.textBaseline = "middle";
  const box = (bars, y, draw) => { for (let n = 0; n < bars.length; n += 2) draw(left + bars[n] * per, y, Math.max(0.7, (bars[n + 1] - bars[n]) * per), row - 4); };
  names.forEach((name, place) => {
    const y = place * row + 2;
    for (const [use, , color] of USES) {
      pen.fillStyle = pen.strokeStyle = color;
      box(timeline.rows[place][use] || [], y, (...at) => (use === "cut" ? pen.strokeRect(...at) : pen.fillRect(...at)));
    }
    pen.fillStyle = css("--ink");
    pen.fillText(name.length > 22 ? `${name.slice(0, 21)}…` : name, 0, y + row / 2 - 2, left - 8);
  });
  pen.fillStyle = css("--soft"); pen.globalAlpha = 0.5;
  for (const start of timeline.starts) pen.fillRect(left + start * per, 0, 0.5, names.length * row);
  pen.globalAlpha = 1;
  for (let n = 0; n <= 4; n++) {
    pen.textAlign = n === 4 ? "right" : n ? "center" : "left";
    pen.fillText(seconds((timeline.end * n) / 4), left + ((timeline.end * n) / 4) * per, names.length * row + 14);
  }
  pen.textAlign = "left";
}
