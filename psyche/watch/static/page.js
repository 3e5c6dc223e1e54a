"use strict";
// The views: all runs, one run, a member, two runs compared. Data come from the server, or lie in the page (`SAVED`).

const SAVED = JSON.parse(document.getElementById("data").textContent || "null");
const main = document.getElementById("main"), link = document.getElementById("link");
const KEPT_LINES = 500, MOST_POINTS = 4000;
let skew = 0; // seconds that the server's clock is ahead of this one
let leave = () => {}; // ends what the last view began
const now = () => (SAVED ? SAVED.taken : Date.now() / 1000 + skew);
const ago = (unix) => `${seconds(Math.max(0, now() - unix))} ago`;

async function get(path) {
  const answer = await fetch(path);
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}
const getRuns = async () => (SAVED ? SAVED.runs : get("/api/runs"));
const getHistory = async (id, after = 0) => (SAVED ? SAVED.runs[id].history : get(`/api/runs/${id}/rounds?after=${after}`));
const getTimeline = async (id) => (SAVED ? SAVED.runs[id].timeline : get(`/api/runs/${id}/timeline`));
const getMember = async (id, key) => (SAVED ? SAVED.runs[id].member[key] : get(`/api/runs/${id}/members/${encodeURIComponent(key)}`));

function say(state, text) { link.className = state; link.textContent = text; }
const sayLive = () => (SAVED ? say("", `as of ${moment(SAVED.taken)}`) : say("live", "live"));
const sayLost = (error) => say("lost", `no answer: ${error.message || "the watcher is gone"}; trying again`);

function show(title, path, ...content) {
  document.title = title;
  morph(document.getElementById("path"), h("nav", { id: "path", "aria-label": "where you are" }, path.flatMap(([name, to], n) =>
    [n ? " / " : "", to === undefined ? h("span", { "aria-current": "page" }, name) : h("a", { href: to }, name)])));
  morphAll(main, spread(content));
  forgetCharts();
}

// Call `step` now and then, the next time only when it is done; what it throws is shown and tried again.
function repeat(step, every_s) {
  let timer = 0, over = false;
  (async function go() {
    try { await step(); sayLive(); } catch (error) { sayLost(error); }
    if (!over && !SAVED) timer = setTimeout(go, every_s * 1000);
  })();
  return () => { over = true; clearTimeout(timer); };
}

// --- parts -----------------------------------------------------------------------------------------------

function describePlace(run) {
  const of = run.epoch_rounds ? ` (${run.height + 1} of ${run.epoch_rounds})` : "";
  return `${run.is_round ? `round ${run.height}${of}, ` : ""}epoch ${run.epoch}`;
}

function leftOf(until) {
  const left = until - now();
  return left >= 0 ? `${seconds(Math.ceil(left))} left` : `${seconds(-left)} over it`;
}

function troubles(run) {
  const all = run.troubles.map((one) => h("div", { class: "trouble", role: "alert" },
    h("b", {}, `${one.who || "the run"} ${one.words}`), ` for ${seconds(Math.max(0, now() - one.since))}: ${one.text}`));
  return all;
}

function waits(run) {
  if (run.is_at_rest) return h("p", { class: "soft" }, "Nothing is waited for: the run is at rest.");
  if (!run.waits.length) {
    const busy = (run.people || []).filter((one) => one.trains).map((one) => one.name);
    return h("p", { class: "soft" }, busy.length ? `Nobody is waited for: ${nameSome(busy)} train${busy.length === 1 ? "s" : ""}.` : "Nobody is known to be waited for.");
  }
  return run.waits.map((one) => h("div", { class: "wait" },
    h("b", {}, "Waiting for "), one.what, h("span", { class: "soft" }, ` (${nameSome(one.who)} wait${one.who.length === 1 ? "s" : ""})`),
    known(one.until) ? [" until ", clock(one.until), " ", h("span", { class: "count num" }, `(${leftOf(one.until)})`)] : "",
    one.then ? `, then ${one.then}` : ""));
}
const nameSome = (names) => (names.length > 4 ? `${names.slice(0, 3).join(", ")} and ${names.length - 3} more` : names.join(", "));

function progress(run) {
  if (!run.total_steps) return "";
  const share = (100 * run.share_done).toFixed(1);
  return h("div", { class: "bar", role: "progressbar", "aria-valuenow": share, "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "done" },
    h("i", { style: `width:${share}%` }));
}

const steps = (run) => `${run.step}${run.total_steps ? ` of ${run.total_steps}` : ""}`;
const timeLeft = (run) => (run.is_at_rest || !known(run.left_s) ? "–" : seconds(run.left_s));

function hero(run) {
  const kind = run.is_at_rest ? "rests" : run.waits.length ? "waits" : "";
  return h("section", { class: `now ${kind}`, "aria-label": "now" },
    h("div", { class: "head" }, h("h1", {}, run.name), h("span", { class: "soft small" }, run.updated ? `newest news ${ago(run.updated)}` : "")),
    h("p", {}, h("span", { class: "phase" }, run.phase || "nothing is known yet"), run.phase ? ` · ${describePlace(run)}` : "",
      run.phase_since ? h("span", { class: "soft" }, ` · for ${seconds(Math.max(0, now() - run.phase_since))}`) : "",
      known(run.limit) ? h("span", {}, ` · ends at ${clock(run.limit)} at the latest `, h("b", { class: "num" }, `(${leftOf(run.limit)})`)) : ""),
    waits(run), progress(run),
    h("dl", { class: "stats" }, stat("steps", steps(run)), run.total_steps ? stat("done", `${(100 * run.share_done).toFixed(0)} %`) : "",
      stat("time left", timeLeft(run)), stat(run.is_claimed ? "loss, as witnesses claim" : "loss", loss(run.loss)),
      stat("tokens a second", count(run.tokens_per_s)), stat("tokens so far", run.tokens ? count(run.tokens) : "–"),
      stat("a step takes", seconds(run.step_s)), stat("members", run.members),
      run.learning_rate ? stat("learning rate", run.learning_rate.toExponential(2)) : "",
      run.bytes_sent ? [stat("sent", bytes(run.bytes_sent)), stat("received", bytes(run.bytes_received))] : ""));
}

function tile(run, one) {
  const state = run.troubles.some((bad) => bad.who === one.name) ? "fails" : one.state.includes("away") || one.phase === "ended" ? "away" : one.trains ? "trains" : one.wait ? "waits" : "";
  const doing = [one.state === "healthy" ? "" : one.state, one.phase].filter(Boolean).join(", ");
  return h("a", { class: `tile ${state}`, href: `#/run/${run.id}/member/${encodeURIComponent(one.key)}` },
    h("div", { class: "name" }, h("span", {}, one.name), h("span", { class: "soft num" }, known(one.index) ? `#${one.index}` : "")),
    h("div", { class: "small" }, doing || "nothing is known", one.wait && !one.trains ? h("span", { class: "soft" }, `: waits for ${one.wait.what}`) : ""),
    h("div", { class: "small soft num" }, `step ${one.step} · loss ${loss(one.loss)}`, one.tokens_per_s >= 1 ? ` · ${count(one.tokens_per_s)} tok/s` : ""),
    known(one.rounds_done) ? h("div", { class: "small soft num" }, `counted ${one.rounds_done} of ${one.rounds_done + (one.rounds_missed || 0)}`,
      one.waited ? ` · waited for in ${plural(one.waited, "round")}` : "") : "",
    known(one.bytes_sent) ? h("div", { class: "small soft num" }, `sent ${bytes(one.bytes_sent)}, received ${bytes(one.bytes_received)}`) : "",
    one.error ? h("div", { class: `small ${state === "fails" ? "bad" : "soft"}` }, one.error) : "");
}

function learned(run) {
  const rows = run.scores.map((one) => cells(one.task, one.value.toFixed(4) + (known(one.standard_error) ? ` ± ${one.standard_error.toFixed(4)}` : ""), one.final ? "all" : `${one.percent} %`, one.documents, one.step, one.metric));
  return rows.length || run.text ? h("section", {}, h("h2", {}, "What the model has learned"),
    rows.length ? table(["task", "right", "done", "documents", "at step", "metric"], rows, "scores") : "",
    run.text ? [h("p", { class: "small soft" }, `At step ${run.text.step} it goes on with “${run.text.prompt}”:`), h("pre", { class: "written" }, run.text.text)] : "") : "";
}

const HEAD = ["round", "step", "took", "counted", "what came of it", "waited for last"];
const place = (one) => `${one.epoch}.${one.height}`;
function roundRow(one, ...more) {
  return cells(place(one), one.step, seconds(one.seconds), `${one.counted} of ${one.members || one.trained}`, [one.verdict, "text"], ...more, [one.why, "text"]);
}

const LEVELS = { 30: "warning", 40: "error", 50: "error" };
function logSection(lines, lost) {
  const rows = lines.slice(-KEPT_LINES).reverse().map((one) => cells(clock(one.t), one.node, [one.text, `text ${LEVELS[one.level] || ""}`]));
  if (lost) rows.push(cells("", "", [`${plural(lost, "older line")} came too fast for this reader and ${lost === 1 ? "is" : "are"} not shown`, "text soft"]));
  return rows.length ? h("section", { class: "log" }, h("h2", {}, "Log"), table(["time", "node", "what happened"], rows, "log")) : "";
}

const chartBox = (id) => h("div", { class: "chart", id, role: "img", "data-keep": true });
const $ = (id) => document.getElementById(id);

// --- views -----------------------------------------------------------------------------------------------

const chosen = new Set();

function viewRuns() {
  return repeat(async () => {
    const runs = await getRuns();
    if (runs.length) skewTo(runs[0]);
    if (location.hash.length < 3 && runs.length === 1) { location.replace("#/run/0"); return; }
    const draw = () => show("Psyche: runs", [["Runs"]],
      h("div", { class: "head" }, h("h1", {}, plural(runs.length, "run")),
        h("button", { type: "button", disabled: chosen.size !== 2, onclick: () => { location.hash = `#/compare/${[...chosen].join("/")}`; } }, "compare the two chosen")),
      h("div", { class: "grid" }, runs.map((run) => h("div", { class: "card" },
        h("div", { class: "head" }, h("a", { href: `#/run/${run.id}` }, h("b", {}, run.name)),
          h("label", { class: "small soft" }, h("input", { type: "checkbox", checked: chosen.has(run.id), onchange: (event) => { event.target.checked ? chosen.add(run.id) : chosen.delete(run.id); draw(); } }), " choose")),
        h("p", {}, h("span", { class: "phase" }, run.phase || "nothing is known yet"), run.phase ? ` · ${describePlace(run)}` : ""),
        troubles(run), waits(run), progress(run),
        run.spark.length > 1 ? spark(run.spark) : "",
        h("dl", { class: "stats" }, stat("steps", steps(run)), stat("time left", timeLeft(run)), stat("loss", loss(run.loss)),
          stat("tokens a second", count(run.tokens_per_s)), stat("members", run.members))))));
    draw();
  }, 2);
}

function skewTo(run) { if (!SAVED) skew = run.now - Date.now() / 1000; }

let views = 0;
function viewRun(id) {
  const view = views += 1;
  let run = null, history = null, timeline = null, lines = [], lost = 0, at = "", is_busy = false, is_over = false, taken = 0;
  const draw = () => {
    if (!run || is_over) return;
    show(`${run.name}: ${run.phase}`, [["Runs", "#/runs"], [run.name]],
      h("div", { class: "troubles" }, troubles(run)), hero(run),
      run.people.length ? later(`${view} members ${taken}`, () => h("section", {}, h("h2", {}, "Members"), h("div", { class: "tiles" }, run.people.map((one) => tile(run, one))))) : "",
      h("section", {}, h("div", { class: "charts" }, ["loss", "rate", "took", "tokens"].map((one) => chartBox(`chart-${one}`))),
        h("p", { class: "small soft" }, "Drag over a chart to look closer; a double click shows all again.")),
      learned(run),
      timeline && timeline.names.length && timeline.starts.length ? h("section", {}, h("h2", {}, SAVED ? "Who did what when" : `Who did what in the last ${plural(timeline.starts.length, "round")}`),
        h("canvas", { class: "bars", id: "bars", role: "img", "aria-label": "bars of what each member did", "data-keep": true }),
        h("div", { class: "legend" }, USES.map(([, name, color]) => h("span", {}, h("i", { style: `background:${color}` }), name)))) : "",
      history && history.rounds.length ? later(`${view} rounds ${at}`, () => h("section", {}, h("h2", {}, "Rounds"), table(HEAD, history.rounds.slice().reverse().map((one) => roundRow(one)), "rounds"))) : "",
      run.checkpoints.length ? h("section", {}, h("h2", {}, `Weights of step ${run.checkpoint_step}`), h("ul", { class: "plain" }, run.checkpoints.map((one) => h("li", {}, one)))) : "",
      lines.length || lost ? later(`${view} log ${lines.length ? lines.at(-1).number : ""} ${lost}`, () => logSection(lines, lost)) : "", passed(run));
    const box = $("chart-loss"), bars = $("bars"); // they may be new ones
    if (history && box.shown !== history) { box.shown = history; drawCharts(run, history); }
    if (timeline && bars && (bars.shown !== timeline || bars.wide !== bars.clientWidth)) {
      [bars.shown, bars.wide] = [timeline, bars.clientWidth];
      drawBars(bars, timeline);
    }
  };
  const more = async () => {
    const was = `${run.epoch} ${run.height} ${run.phase}`;
    if (was === at || is_busy) return;
    is_busy = true;
    try {
      history = merge(history, await getHistory(id, history && run.step >= (history.curve.step.at(-1) || 0) ? history.curve.step.at(-1) || 0 : (history = null, 0)));
      timeline = await getTimeline(id);
      at = was;
    } finally { is_busy = false; }
    draw();
  };
  if (SAVED) {
    run = SAVED.runs[id]; lines = run ? run.log : [];
    if (!run) return viewNothing("There is no such run here.");
    draw(); more(); sayLive();
    return () => { is_over = true; };
  }
  const source = new EventSource(`/api/runs/${id}/events`);
  source.onopen = sayLive;
  source.onerror = () => sayLost({});
  source.addEventListener("run", (event) => { run = JSON.parse(event.data); taken += 1; skewTo(run); draw(); more().catch(sayLost); });
  let is_due = false;
  source.addEventListener("line", (event) => {
    lines.push(JSON.parse(event.data));
    if (lines.length > KEPT_LINES * 2) lines = lines.slice(-KEPT_LINES);
    if (!is_due) { is_due = true; requestAnimationFrame(() => { is_due = false; draw(); }); }
  });
  source.addEventListener("lost", (event) => { lost += JSON.parse(event.data).lines; });
  const timer = setInterval(draw, 1000);
  return () => { is_over = true; clearInterval(timer); source.close(); };
}

function passed(run) {
  const told = [[run.passed.torn, "torn line"], [run.passed.unknown, "event of another version", "events of other versions"], [run.passed.missing, "missing file"]]
    .filter(([n]) => n).map(([n, one, many]) => (many && n > 1 ? `${n} ${many}` : plural(n, one)));
  return told.length ? h("p", { class: "small soft" }, `Passed over: ${told.join(", ")}.`) : "";
}

function merge(old, fresh) {
  if (!old || old === fresh || old.curve.step.length > MOST_POINTS) return fresh;
  for (const name of Object.keys(old.curve)) old.curve[name].push(...fresh.curve[name]);
  for (const one of fresh.series) {
    const had = old.series.find((other) => other.name === one.name);
    const from = had ? one.step.findIndex((step) => step > (had.step.at(-1) ?? -1)) : 0;
    if (!had) old.series.push(one);
    else if (from >= 0) { had.step.push(...one.step.slice(from)); had.loss.push(...one.loss.slice(from)); }
  }
  return { ...fresh, curve: old.curve, series: old.series };
}

function drawCharts(run, history) {
  const c = history.curve, put = (id, has, ...rest) => { const box = $(`chart-${id}`); box.hidden = !has; if (has) chart(box, ...rest); };
  const [lines, band] = lossLines(run, history);
  put("loss", lines.some((one) => one.x.length), run.is_claimed ? "loss (nats per token), as witnesses claim" : "loss (nats per token)", lines, { band });
  put("rate", c.tokens_per_s.some(Boolean), "tokens a second", [{ name: "tokens a second", x: c.step, y: c.tokens_per_s }], { digits: count });
  put("took", c.seconds.some(Boolean), "seconds a round", [{ name: "seconds", x: c.step, y: c.seconds }], { digits: seconds });
  put("tokens", c.tokens.some(Boolean), "tokens so far", [{ name: "tokens", x: c.step, y: c.tokens }], { digits: count });
}

function viewMember(id, key) {
  return repeat(async () => {
    const one = await getMember(id, key);
    if (!one) throw new Error("there is no such member");
    const due = (one.rounds_done || 0) + (one.rounds_missed || 0);
    show(`${one.name}: ${one.phase}`, [["Runs", "#/runs"], ["run", `#/run/${id}`], [one.name]],
      h("section", { class: `now ${one.wait && !one.trains ? "waits" : ""}` }, h("h1", {}, one.name),
        h("p", {}, h("span", { class: "phase" }, one.phase || one.state || "nothing is known"), one.state ? ` · ${one.state}` : "", known(one.heard) ? h("span", { class: "soft" }, ` · heard ${ago(one.heard)}`) : ""),
        one.error ? h("div", { class: "trouble", role: "alert" }, h("b", {}, "It reports: "), one.error, one.error_since ? ` (${ago(one.error_since)})` : "") : "",
        one.wait ? waits({ waits: one.trains ? [] : [{ ...one.wait, who: [one.name] }], people: [one] }) : "",
        h("dl", { class: "stats" }, stat("step", one.step), stat("loss", loss(one.loss)), stat("tokens a second", count(one.tokens_per_s)),
          stat("sent", bytes(one.bytes_sent)), stat("received", bytes(one.bytes_received)), stat("waited for last", known(one.waited) ? plural(one.waited, "round") : "–"),
          one.digest ? stat("weights", one.digest.slice(0, 12)) : "", one.key !== one.name ? stat("key", one.key) : "")),
      h("section", {}, h("h2", {}, "Credits"),
        h("p", {}, known(one.rounds_done) ? `Its result counted in ${one.rounds_done} of ${plural(due, "round")} in which it was due${due ? ` (${Math.round((100 * one.rounds_done) / due)} %)` : ""}.` : "Nothing is known of its credits."),
        h("p", { class: "small soft" }, "A round gives a member one credit if its result is in the set that the witnesses agreed on. A result that comes after the round has closed is in no set, and in a void round nobody's is."),
        one.rounds.length ? table(["round", "step", "took", "counted", "what came of it", "credit", "waited for last"], one.rounds.slice().reverse().map((row) =>
          roundRow(row, [row.credit, `text ${row.credit.startsWith("yes") ? "good" : row.credit.startsWith("no:") ? "bad" : "soft"}`])), "credits by round") : ""),
      h("section", {}, chartBox("chart-loss")));
    const box = $("chart-loss");
    box.parentElement.hidden = !one.curve.step.length;
    if (one.curve.step.length) chart(box, "loss (nats per token)", [{ name: one.name, x: one.curve.step, y: one.curve.loss }]);
  }, 2);
}

let axis = "step";
function viewCompare(one, other) {
  return repeat(async () => {
    const all = await getRuns(), pair = [one, other].map((id) => all.find((run) => run.id === id));
    if (pair.some((run) => !run)) throw new Error("there is no such run");
    skewTo(pair[0]);
    const histories = await Promise.all([one, other].map((id) => getHistory(id)));
    const rows = [["phase", (r) => r.phase], ["steps", steps], ["time left", timeLeft], ["loss", (r) => loss(r.loss)], ["tokens a second", (r) => count(r.tokens_per_s)],
      ["tokens so far", (r) => count(r.tokens)], ["a step takes", (r) => seconds(r.step_s)], ["members", (r) => r.members], ["sent", (r) => bytes(r.bytes_sent)]];
    const draw = () => {
      show("Psyche: two runs", [["Runs", "#/runs"], ["compared"]],
        h("section", {}, h("h1", {}, pair.map((run) => run.name).join(" and ")),
          table(["", ...pair.map((run) => h("a", { href: `#/run/${run.id}` }, run.name))], rows.map(([name, make]) => cells(name, ...pair.map(make))), "figures of both")),
        h("section", {}, h("label", {}, "over ", h("select", { onchange: (event) => { axis = event.target.value; draw(); } },
          ["step", "tokens", "hours"].map((name) => h("option", { selected: name === axis }, name)))),
          h("div", { class: "charts" }, chartBox("chart-loss"), chartBox("chart-rate"))));
      const lines = (of) => histories.map((history, n) => ({ name: `${pair[n].name}${pair[0].name === pair[1].name ? ` (${n + 1})` : ""}`, x: over(history.curve), y: history.curve[of], color: n ? HUES[0] : css("--accent") }));
      chart($("chart-loss"), "loss (nats per token)", lines("loss"), { x: axis });
      chart($("chart-rate"), "tokens a second", lines("tokens_per_s"), { x: axis, digits: count });
    };
    draw();
  }, 4);
}
function over(curve) {
  if (axis === "step") return curve.step;
  return axis === "tokens" ? curve.tokens : curve.unix.map((unix) => (unix - curve.unix[0]) / 3600);
}

function viewNothing(text) { show("Psyche", [["Runs", "#/runs"]], h("section", {}, h("p", {}, text))); return () => {}; }

// --- where we are ----------------------------------------------------------------------------------------

function route() {
  leave();
  const [view, id, what, key] = location.hash.slice(2).split("/").map(decodeURIComponent);
  say("", "");
  if (view === "run" && what === "member" && key) leave = viewMember(id, key);
  else if (view === "run" && id) leave = viewRun(id);
  else if (view === "compare" && what) leave = viewCompare(id, what);
  else leave = viewRuns();
  scrollTo(0, 0);
}

function turnTheme() {
  const root = document.documentElement, dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  dispatchEvent(new Event("hashchange"));
}
document.getElementById("theme").onclick = turnTheme;
addEventListener("hashchange", route);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key === "t") turnTheme();
  if (event.key === "Escape") location.hash = location.hash.includes("/member/") ? location.hash.split("/member/")[0] : "#/runs";
  if (/^[1-9]$/.test(event.key)) location.hash = `#/run/${event.key - 1}`;
});
route();
