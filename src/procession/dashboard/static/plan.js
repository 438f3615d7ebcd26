// Draws the plan: a column for each step from the sources. The colour of a stage shows how busy its tasks are.
import { percent, rate, svg } from "./format.js";

const WIDTH = 164, HEIGHT = 50, GAP_X = 104, GAP_Y = 22, MARGIN = 10;
const NARROW = 620, STEP_Y = 52, GAP_NARROW = 14;  // on a phone the steps go down, not to the right

export const heat = (share) => (share === null || share === undefined ? "" : share >= 0.8 ? "hot" : share >= 0.5 ? "warm" : "cool");

function columns(plan) {
  const column = new Map(plan.stages.map((stage) => [key(stage.id, stage.kind), 0]));
  for (let turn = 0; turn < plan.stages.length; turn += 1) {
    let moved = false;
    for (const edge of plan.edges) {
      const [before, after] = ends(plan, edge);
      if (column.get(after) <= column.get(before)) { column.set(after, column.get(before) + 1); moved = true; }
    }
    if (!moved) break;
  }
  return column;
}

const key = (id, kind) => `${kind === "sink" ? "sink" : "stage"} ${id}`;
const ends = (plan, edge) => [key(edge.before, ""), key(edge.after, edge.after_kind)];
const cut = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

export function drawPlan(target, plan, snapshot, say) {
  if (!plan.stages || !plan.stages.length) return;
  const column = columns(plan), taken = [], place = new Map(), isNarrow = target.parentElement.clientWidth < NARROW;
  const targets = new Set(plan.edges.map((edge) => ends(plan, edge)[1]));
  for (const stage of plan.stages) {
    const id = key(stage.id, stage.kind);
    if (!targets.has(id) && stage.kind === "sink") column.set(id, Math.max(...column.values()));
    const x = column.get(id);
    taken[x] = (taken[x] ?? 0) + 1;
    const row = taken[x] - 1;
    place.set(id, isNarrow ? { x: MARGIN + row * (WIDTH + GAP_NARROW), y: MARGIN + x * (HEIGHT + STEP_Y), isNarrow } : { x: MARGIN + x * (WIDTH + GAP_X), y: MARGIN + row * (HEIGHT + GAP_Y) });
  }
  const most = Math.max(...taken);
  const width = MARGIN * 2 + (isNarrow ? most * (WIDTH + GAP_NARROW) - GAP_NARROW : taken.length * (WIDTH + GAP_X) - GAP_X);
  const height = MARGIN * 2 + (isNarrow ? taken.length * (HEIGHT + STEP_Y) - STEP_Y : most * (HEIGHT + GAP_Y) - GAP_Y);
  target.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const room = target.parentElement.clientWidth, isScaled = width > room && width < room * 1.3;  // a slightly too wide drawing is scaled down
  target.style.width = isScaled ? "100%" : `${width}px`; target.style.minWidth = isScaled ? "0" : `${width}px`; target.style.height = isScaled ? "auto" : `${height}px`;
  const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 9, markerHeight: 9, orient: "auto", markerUnits: "userSpaceOnUse" }, svg("path", { d: "M0 0L8 4L0 8z", fill: "currentColor" }));
  const parts = [svg("defs", {}, arrow)];
  for (const edge of plan.edges) parts.push(drawEdge(plan, edge, place, say));
  for (const stage of plan.stages) parts.push(drawNode(stage, place.get(key(stage.id, stage.kind)), snapshot, say));
  const focused = [...target.children].indexOf(document.activeElement);
  target.replaceChildren(...parts);
  if (focused >= 0) target.children[focused]?.focus();
}

function drawEdge(plan, edge, place, say) {
  const [from, to] = ends(plan, edge).map((id) => place.get(id));
  const isDown = from.isNarrow;
  const x1 = from.x + (isDown ? WIDTH / 2 : WIDTH), y1 = from.y + (isDown ? HEIGHT : HEIGHT / 2), x2 = isDown ? to.x + WIDTH / 2 : to.x - 2, y2 = isDown ? to.y - 2 : to.y + HEIGHT / 2;
  const middle = (x1 + x2) / 2, level = (y1 + y2) / 2, line = isDown ? `M${x1} ${y1}C${x1} ${level} ${x2} ${level} ${x2} ${y2}` : `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
  const text = `${edge.before} → ${edge.after}: ${edge.strategy}. ${edge.why}${edge.is_exchange ? ` An exchange: ${edge.shuffled} manifests an epoch.` : ""}`;
  const group = svg("g", { class: edge.is_exchange ? "edge exchange" : "edge", tabindex: 0, role: "img", "aria-label": text },
    svg("path", { d: line, "marker-end": "url(#arrow)" }),
    svg("path", { d: line, "stroke-opacity": 0, "stroke-width": 16, class: "reach" }));
  const label = svg("text", { x: middle + (isDown ? 8 : 0), y: level + (isDown ? 4 : -6), "text-anchor": isDown ? "start" : "middle", class: "small" });
  label.textContent = cut(edge.strategy, 16);
  group.append(label, titled(text));
  group.addEventListener("mouseenter", () => say(text)); group.addEventListener("focus", () => say(text));
  return group;
}

function titled(text) { const title = svg("title"); title.textContent = text; return title; }

function drawNode(stage, at, snapshot, say) {
  const chain = (snapshot.stages ?? []).find((found) => stage.kind !== "sink" && stage.chains.includes(found.chain));
  const sink = stage.kind === "sink" ? (snapshot.sinks ?? []).find((found) => found.name === stage.id || found.name.startsWith(`${stage.id}.`)) : null;
  const out = (snapshot.stages ?? []).reduce((sum, found) => sum + (found.out_per_s[stage.id] ?? 0), 0);
  const second = stage.kind === "source" ? `${rate(snapshot.records_per_s)} · lag ${snapshot.lag ?? "–"}` : stage.kind === "sink" ? rate(out) : chain ? `busy ${percent(chain.busy_share)}` : "";
  const isBottleneck = snapshot.bottleneck && snapshot.bottleneck.part === `${stage.kind === "sink" ? "sink" : "stage"} ${stage.id}`;
  const state = sink && sink.is_connected === false ? "hot" : chain && stage.kind !== "source" ? heat(chain.busy_share) : "";
  const text = `${stage.kind} ${stage.id}: ${second}${stage.url ? `, ${stage.url}` : ""}${chain ? `, chain ${chain.chain} in ${chain.tasks} tasks` : ""}${sink && sink.is_connected === false ? ", not connected" : ""}`;
  const box = svg("g", { class: `node ${state} ${isBottleneck ? "bottleneck" : ""}`, transform: `translate(${at.x} ${at.y})` },
    svg("rect", { width: WIDTH, height: HEIGHT, rx: 8 }));
  const name = svg("text", { x: 10, y: 20, class: "name" }), kind = svg("text", { x: WIDTH - 10, y: 20, class: "small", "text-anchor": "end" }), figures = svg("text", { x: 10, y: 38, class: "small" });
  const shown = stage.kind.replaceAll("_", " ");
  name.textContent = cut(stage.id, Math.max(6, 20 - Math.min(shown.length, 10) * 0.75)); kind.textContent = cut(shown, 10); figures.textContent = second;
  box.append(name, kind, figures, titled(text));
  box.addEventListener("mouseenter", () => say(text));
  return box;
}
