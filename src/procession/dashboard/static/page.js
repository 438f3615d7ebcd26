// Keeps the last snapshot and the epochs of the window, and draws both.
import { bytes, clock, compact, day, el, number, percent, rate, seconds, table } from "./format.js";
import { drawPlan } from "./plan.js";
import { PHASES, drawChart } from "./chart.js";

const at = (id) => document.getElementById(id);
const POINTS_MAX = 2000;
const page = { snapshot: {}, plan: {}, points: [], events: [], chosen: -1, chart: null, first_s: null, isLive: true, opened: Date.now() / 1000 };

async function ask(path) {
  const answer = await fetch(path, { headers: { Accept: "application/json" } });
  const found = await answer.json().catch(() => ({ error: `The dashboard answered with ${answer.status}.` }));
  if (found.error) throw new Error(found.error);
  return found;
}

// --- the verdict and the header

const WORDS = { clean: ["✓", "Clean"], violated: ["✗", "Violated"], unknown: ["?", "Unknown"] };
const STATES = { running: "good", paused: "unsure", stopped: "", drained: "" };

function showHead(found) {
  at("name").textContent = found.pipeline; document.title = `${WORDS[found.verdict.outcome][0]} ${found.pipeline} · Procession`;
  at("state").textContent = found.state; at("state").className = `pill ${STATES[found.state] ?? ""}`;
  at("since").textContent = found.started_s ? `since ${day(found.started_s)}, ${seconds(found.taken_s - found.started_s)}` : found.idle_s === null ? "" : `last commit ${seconds(found.idle_s)} ago`;
  at("promise").textContent = [found.guarantee, found.order && `order ${found.order}`].filter(Boolean).join(" · ");
  at("secret-path").textContent = `${found.directory}/secrets/control`;
}

// Returns the result of the comparison of contents, which is made for a pipeline without stages.
function contentsText(contents) {
  if (!contents) return "";
  return contents.outcome === "clean" ? `; the contents of ${number(contents.records)} records, too` : `; contents not compared: ${contents.why || "nothing is committed yet"}`;
}

function showVerdict(found) {
  const verdict = found.verdict, [mark, word] = WORDS[verdict.outcome];
  at("verdict").className = `verdict ${verdict.outcome}`; at("mark").textContent = mark; at("outcome").textContent = word;
  const from = verdict.since_epoch ? `from epoch ${number(verdict.since_epoch)} on, where the history begins` : "from the first epoch on";
  at("why").textContent = verdict.outcome === "clean" ? `every round compared, ${from}${contentsText(found.contents)}` : verdict.why.slice(0, 3).join("; ");
  at("why").title = verdict.why.join("\n");
  const proved = page.points.find((point) => point.epoch === verdict.proved_epoch);
  const counts = [
    ["records in", compact(found.records_in), "", number(found.records_in)], ["committed", compact(found.committed), "", number(found.committed)],
    ["lost", number(verdict.lost), verdict.lost ? "wrong" : "zero"], ["doubled", number(verdict.doubled), verdict.doubled ? "wrong" : "zero"],
    ["out of order", number(verdict.disordered), verdict.disordered ? "wrong" : "zero"],
    [proved ? `proved up to, ${clock(proved.at_s)}` : "proved up to", verdict.proved_epoch === null ? "–" : `epoch ${number(verdict.proved_epoch)}`, ""],
    ["rate", rate(found.records_per_s), ""], ["lag", compact(found.lag), "", found.lag === null ? "The gateway does not answer, or the pipeline does not run." : `${number(found.lag)} records received, not committed`],
  ];
  if (found.latency_ms.p50 !== null) counts.push(["latency p50 / p99", `${seconds(found.latency_ms.p50 / 1000)} / ${seconds(found.latency_ms.p99 / 1000)}`, ""]);
  at("counts").replaceChildren(...counts.map(([name, value, kind, title]) => el("div", { class: kind || null, title: title || null }, el("dt", {}, name), el("dd", {}, value))));
}

function showBottleneck(found) {
  const box = at("bottleneck");
  box.hidden = !found.bottleneck;
  if (!found.bottleneck) { box.dataset.text = ""; box.replaceChildren(); return; }
  const text = `${found.bottleneck.part} ${found.bottleneck.why}`;
  if (box.dataset.text === text) return;
  box.dataset.text = text; box.className = `bottleneck ${found.bottleneck.is_stalled ? "stalled" : ""}`;
  box.replaceChildren(el("strong", {}, `${found.bottleneck.is_stalled ? "Waits for" : "Slowed by"} ${found.bottleneck.part}:`), found.bottleneck.why);
}

// --- tables

// Returns "epoch 12, try 13" for an id that ends with ".e12.f1:c_id=13".
function shortened(transaction) {
  const found = /\.e(\d+)\.f\d+:c_id=(\d+)$/.exec(transaction ?? "");
  return found ? `epoch ${number(Number(found[1]))}, try ${number(Number(found[2]))}` : transaction ?? "–";
}
const yes = (value, good, bad) => (value === null || value === undefined ? "–" : el("span", { class: value ? "ok" : "wrong" }, value ? good : bad));

function showTables(found) {
  table(at("sinks"), [
    ["sink", (sink) => sink.name, "w"], ["connection", (sink) => { const cell = el("td", { title: sink.connects ? `connected ${sink.connects} times since the driver started` : null }); cell.append(yes(sink.is_connected, "connected", "not connected")); return cell; }],
    ["vote", (sink) => sink.has_voted === null || sink.has_voted === undefined ? "–" : sink.has_voted ? "voted" : "asked"],
    ["committed", (sink) => bytes(sink.committed_end), "n"], ["holds", (sink) => el("span", { class: sink.held_end === null ? null : sink.held_end === sink.committed_end ? "ok" : "unsure" }, bytes(sink.held_end)), "n"],
    ["prepared", (sink) => sink.prepared === null ? "–" : number(sink.prepared.length), "n"], ["aborts", (sink) => number(sink.aborted), "n"],
    ["transaction", (sink) => el("td", { class: "w", title: sink.transaction }, shortened(sink.transaction))],
  ], found.sinks, "No sink is known yet.");
  table(at("gateways"), [
    ["gateway", (gateway) => gateway.name, "w"],
    ["producers", (gateway) => el("span", { class: gateway.is_paused || gateway.is_over || gateway.is_disk_short ? "unsure" : "ok" }, gateway.is_paused ? "paused" : gateway.is_disk_short ? "disk is full" : gateway.is_over ? "not read" : "read")],
    ["sessions", (gateway) => number(gateway.sessions), "n"], ["streams", (gateway) => number(gateway.streams), "n"], ["received", (gateway) => compact(gateway.records_in), "n"],
    ["duplicates", (gateway) => number(gateway.duplicates), "n"], ["lag", (gateway) => `${number(gateway.buffered)}, ${bytes(gateway.lag_bytes)}`, "n"],
    ["credits owed", (gateway) => number(gateway.credits_owed), "n"], ["waiting", (gateway) => (gateway.waiting_records ? number(gateway.waiting_records) : "–"), "n"],
  ], found.gateways, found.pid ? "No gateway answers." : "The pipeline does not run.");
  table(at("states"), [
    ["stage", (state) => state.stage, "w"], ["kind", (state) => state.kind.replaceAll("_", " ")], ["entries", (state) => number(state.entries), "n"], ["files", (state) => number(state.files), "n"], ["size", (state) => bytes(state.bytes), "n"],
    ["", (state) => { const button = el("button", { type: "button" }, "largest keys"); button.addEventListener("click", () => showLargest(state.stage)); return button; }, "n"],
  ], found.states, "No stage of this pipeline keeps state.");
  const counters = Object.entries(found.counters ?? {});
  at("counters-box").hidden = !counters.length;
  table(at("counters"), [["counter", ([name]) => name, "w"], ["committed value", ([, count]) => number(count), "n"]], counters, "The app has no counters.");
  const jvm = found.jvm ?? {}, opened = found.driver?.open;
  const rows = found.driver ? [
    ["driver", `process ${found.driver.pid}, number ${found.driver.fence}`, `since ${clock(found.driver.started_s)}`],
    ["open epoch", opened ? `${number(opened.epoch)}: ${opened.phase}` : "none: waits for records", opened ? seconds(opened.seconds) : ""],
    ["JVM heap", jvm.heap_used_bytes ? `${bytes(jvm.heap_used_bytes)} of ${bytes(jvm.heap_max_bytes)}` : "–", jvm.heap_used_bytes ? percent(jvm.heap_used_bytes / jvm.heap_max_bytes) : ""],
    ["garbage collection", `${number(jvm.gc_runs)} runs`, seconds(jvm.gc_seconds)], ["JVM threads", number(jvm.threads), ""],
    ...found.stages.map((stage) => [`tasks of ${stage.name}`, `busy ${percent(stage.busy_share)} · ${stage.tasks} tasks`, `read ${seconds(stage.read_s)}, run ${seconds(stage.run_s)} in 10 s`]),
  ] : [];
  rows.push(...Object.entries(found.restarts).map(([part, count]) => [part, `restarted ${number(count)} ${count === 1 ? "time" : "times"}`, "in this run"]));
  table(at("processes"), [["what", (row) => row[0], "w"], ["", (row) => row[1]], ["", (row) => row[2], "n"]], rows, found.pid ? "The driver is starting." : "The pipeline does not run.");
  const shares = Object.entries(found.phases);
  table(at("phases"), [
    ["phase", ([name]) => name, "w"], ["p50", ([, phase]) => seconds(phase.p50_s), "n"], ["p95", ([, phase]) => seconds(phase.p95_s), "n"], ["p99", ([, phase]) => seconds(phase.p99_s), "n"],
    ["share of the work", ([name, phase]) => (name === "wait" ? "–" : percent(phase.share)), "n"],
  ], shares, "No epoch is known yet.");
  at("letters-count").textContent = found.dead_letters ? `${number(found.dead_letters)} set aside` : "none";
}

async function showLargest(stage) {
  const box = at("largest");
  try {
    const found = await ask(`/api/states?stage=${encodeURIComponent(stage)}`);
    const made = el("table", {});
    table(made, [["key", (row) => row.key, "w"], ["size", (row) => bytes(row.size), "n"], ["state", (row) => row.state, "c"]], found.states, found.why ?? "It has no state.");
    box.replaceChildren(el("div", { class: "scroll tall", tabindex: 0 }, made));
  } catch (error) { box.replaceChildren(el("p", { class: "empty" }, error.message)); }
}

async function showStreams() {
  if (!page.snapshot.pid) { table(at("streams"), [], [], "The pipeline does not run."); return; }
  try {
    const found = await ask("/api/streams");
    at("streams-note").textContent = found.streams_total > found.streams.length ? `the ${found.streams.length} with the largest lag of ${number(found.streams_total)}` : "";
    table(at("streams"), [
      ["stream", (stream) => el("td", { title: `id ${stream.id}` }, stream.name || String(stream.id))], ["state", (stream) => el("span", { class: stream.state === "open" ? "ok" : null }, stream.state)], ["gateway", (stream) => stream.owner, "w"],
      ["rate", (stream) => rate(stream.rate), "n"], ["lag", (stream) => number(stream.lag), "n"], ["late", (stream) => (stream.late === null ? "–" : number(stream.late)), "n"], ["committed id", (stream) => stream.committed ?? "–", "n"],
    ], found.streams, "No producer has opened a stream yet.");
  } catch (error) { table(at("streams"), [], [], error.message); }
}

// --- the history

function bounds() {
  const span = Number(at("window").value), now = page.snapshot.pid || !page.points.length ? page.snapshot.taken_s ?? Date.now() / 1000 : page.points.at(-1).at_s;
  const first = page.first_s ?? now - 60, share = Number(at("until").value) / 1000;
  const to = share >= 1 ? now : first + (now - first) * share;
  return span ? [Math.max(to - span, Math.min(first - 1, to - 20)), to] : [first, to];
}

function showChart() {
  const [from, to] = bounds();
  const points = page.points.filter((point) => point.at_s >= from - 1 && point.at_s <= to + 1);
  page.shown = points;
  page.chart = drawChart(at("chart"), points, page.events.filter((event) => event.at_s >= from && event.at_s <= to), from, to, page.chosen);
  at("until-text").textContent = page.isLive ? "now" : day(to);
  const recent = page.events.slice(-40).reverse();
  at("happened").replaceChildren(...(recent.length ? recent.map((event) => el("li", {}, el("time", {}, day(event.at_s)), el("span", { class: event.event === "part.restarted" ? "wrong" : null }, `${event.part}: ${event.sentence}`))) : [el("li", { class: "empty" }, "Nothing was restarted.")]));
}

function showPoint(index) {
  page.chosen = Math.max(0, Math.min(page.shown.length - 1, index));
  const point = page.shown[page.chosen];
  if (!point) return;
  const parts = Object.entries(point.phases).filter(([name]) => name !== "wait").map(([name, value]) => `${name} ${seconds(value)}`);
  at("point").textContent = `Epoch ${number(point.epoch)}, ${day(point.at_s)}, ${number(point.records)} records, driver ${point.fence}: ${parts.join(" · ") || "times unknown, its driver was killed"}${point.aborts ? ` · ${point.aborts} aborted` : ""}`;
  showChart();
}

async function loadHistory() {
  const [from, to] = bounds(), span = Number(at("window").value);
  try {
    const all = await ask(span ? `/api/history?from=${page.isLive ? from : Math.min(from, to)}&to=${page.isLive ? 1e12 : to}` : "/api/history");
    page.points = all.points; page.events = all.events;
    if (!page.hasFirst) { page.hasFirst = true; const whole = await ask("/api/history"); page.first_s = whole.points[0]?.at_s ?? page.first_s; page.events = whole.events; if (!page.snapshot.pid) page.points = whole.points; }
    page.chosen = -1; showChart();
  } catch (error) { at("point").textContent = error.message; }
}

// --- parts that are read when they are opened

async function showLetters() {
  try {
    const found = await ask("/api/letters");
    table(at("letters"), [
      ["number", (letter) => number(letter.number), "n"], ["stage", (letter) => letter.stage, "w"], ["error", (letter) => letter.error], ["payload", (letter) => el("td", { class: "c" }, letter.payload)],
      ["stream", (letter) => el("td", { class: "c" }, letter.stream_id)], ["message id", (letter) => letter.message_id, "n"],
    ], found.letters, found.why ?? "There are no dead letters.");
  } catch (error) { table(at("letters"), [], [], error.message); }
}

let logLines = [];
async function readLogs() {
  const chosen = at("log-part").value || "driver";
  try {
    const found = await ask(`/api/logs?part=${encodeURIComponent(chosen)}`);
    at("log-part").replaceChildren(...found.parts.map((part) => { const option = el("option", { value: part }, part); option.selected = part === chosen; return option; }));
    logLines = found.lines; showLogs();
  } catch (error) { table(at("logs"), [], [], error.message); }
}

function showLogs() {
  const wanted = at("log-filter").value.toLowerCase();
  const lines = logLines.filter((line) => !wanted || line.event.includes(wanted) || line.text.toLowerCase().includes(wanted));
  table(at("logs"), [
    ["time", (line) => (line.at ? new Date(line.at).toLocaleTimeString() : ""), "w"], ["level", (line) => el("span", { class: { error: "wrong", warning: "unsure" }[line.level] }, line.level)],
    ["event", (line) => line.event, "w"], ["fields", (line) => el("td", { class: "c" }, line.text)],
  ], lines, wanted ? "No line matches." : "The log is empty.");
}

async function showSettings() {
  try {
    const found = await ask("/api/settings");
    const rows = Object.entries(found.settings);
    table(at("settings"), [["setting", (row) => el("td", { class: "c" }, row[0])], ["value", (row) => el("td", { class: "c" }, typeof row[1] === "object" ? JSON.stringify(row[1]) : String(row[1]))]], rows, "Settings are shown only for a pipeline that `procession run` started.");
  } catch (error) { table(at("settings"), [], [], error.message); }
}

// --- the operator's buttons

async function act(action) {
  const result = at("result");
  result.textContent = `${action}: …`;
  try {
    const answer = await fetch(`/api/actions/${action}`, { method: "POST", headers: { "X-Operator-Secret": at("secret").value.trim() } });
    const found = await answer.json();
    if (!answer.ok) { result.textContent = found.error; return; }
    at("secret").value = "";
    let done = found;
    while (done.state === "running") { await new Promise((resume) => { setTimeout(resume, 500); }); done = await ask("/api/action"); }
    result.textContent = done.state === "done" ? `${action}: done` : done.sentence;
  } catch { result.textContent = `${action}: the pipeline has stopped, and the dashboard with it.`; }
}

// --- the feed

function show(found) {
  if (found.error) { at("connection").textContent = found.error; return; }
  const isFirst = !page.snapshot.pipeline, wasRunning = page.snapshot.pid;
  page.snapshot = found;
  showHead(found); showVerdict(found); showBottleneck(found); showTables(found);
  drawPlan(at("plan"), page.plan, found, (text) => { at("edge").textContent = text; });
  at("connection").textContent = `live, ${clock(found.taken_s)}`;
  const happened = JSON.stringify([found.pid, found.driver?.fence, found.restarts]);
  if (happened !== page.happened) { page.happened = happened; loadHistory(); }
  if (isFirst || wasRunning !== found.pid) showStreams();
  else if (page.isLive) showChart();
  if (!page.plan.stages) loadPlan();
}

async function loadPlan() { try { page.plan = await ask("/api/plan"); } catch { page.plan = {}; } if (page.snapshot.pipeline) drawPlan(at("plan"), page.plan, page.snapshot, (text) => { at("edge").textContent = text; }); }

function listen() {
  const source = new EventSource("/events");
  source.addEventListener("snapshot", (event) => show(JSON.parse(event.data)));
  source.addEventListener("epochs", (event) => {
    if (!page.isLive) return;
    const known = new Set(page.points.slice(-600).map((point) => point.epoch)), last = page.points.at(-1)?.at_s ?? 0;
    for (const point of JSON.parse(event.data)) if (!known.has(point.epoch) && point.at_s >= last) page.points.push(point);
    page.first_s ??= page.points[0]?.at_s ?? null;
    if (page.points.length > POINTS_MAX) page.points.splice(0, page.points.length - POINTS_MAX);
  });
  source.addEventListener("error", () => {
    at("connection").textContent = "not connected: the dashboard has stopped, or is being restarted; trying again";
    at("state").textContent = "not connected"; at("state").className = "pill bad";
  });
}

const THEMES = ["system", "light", "dark"], wish = matchMedia("(prefers-color-scheme: dark)");
function theme(chosen) {
  const isDark = chosen === "dark" || (chosen === "system" && wish.matches);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  at("theme").textContent = `Theme: ${chosen}`; at("theme").dataset.chosen = chosen;
  try { localStorage.setItem("procession-theme", chosen); } catch { /* private windows have no storage */ }
}

let kept = "system";
try { kept = THEMES.includes(localStorage.getItem("procession-theme")) ? localStorage.getItem("procession-theme") : "system"; } catch { /* see above */ }
theme(kept);
wish.addEventListener("change", () => theme(at("theme").dataset.chosen));
at("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(at("theme").dataset.chosen) + 1) % THEMES.length]));
at("operate").addEventListener("click", () => { at("result").textContent = ""; at("dialog").showModal(); });
at("dialog").addEventListener("close", () => { at("secret").value = ""; });
for (const button of document.querySelectorAll("[data-action]")) button.addEventListener("click", () => act(button.dataset.action));
at("window").addEventListener("change", loadHistory);
at("until").addEventListener("input", () => { page.isLive = Number(at("until").value) >= 1000; at("until-text").textContent = page.isLive ? "now" : day(bounds()[1]); });
at("until").addEventListener("change", loadHistory);
at("chart").addEventListener("mousemove", (event) => { const found = page.chart?.nearest(event.clientX - at("chart").getBoundingClientRect().left) ?? -1; if (found >= 0 && found !== page.chosen) showPoint(found); });
at("chart").addEventListener("keydown", (event) => { const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key]; if (step) { event.preventDefault(); showPoint((page.chosen < 0 ? page.shown.length : page.chosen) + step); } });
at("letters-box").addEventListener("toggle", () => at("letters-box").open && showLetters());
at("logs-box").addEventListener("toggle", () => at("logs-box").open && readLogs());
at("settings-box").addEventListener("toggle", () => at("settings-box").open && showSettings());
at("log-part").addEventListener("change", readLogs); at("log-again").addEventListener("click", readLogs); at("log-filter").addEventListener("input", showLogs);
const legend = (name, colour) => { const mark = el("i", {}); mark.style.background = `var(--${colour})`; return el("span", {}, mark, name); };
at("phase-legend").replaceChildren(...PHASES.map(([colour, name]) => legend(name, colour)));
at("plan-legend").replaceChildren(legend("tasks busy < 50 %", "cool"), legend("50–80 %", "warm"), legend("> 80 %", "hot"));
addEventListener("resize", () => { if (page.snapshot.pipeline) { showChart(); drawPlan(at("plan"), page.plan, page.snapshot, (text) => { at("edge").textContent = text; }); } });
setInterval(showStreams, 3000);
loadPlan(); listen();
