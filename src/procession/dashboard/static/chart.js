// Draws the history of epochs: a bar for each epoch, stacked by phase.
import { seconds, svg } from "./format.js";

export const PHASES = [["run", "run"], ["phase1", "phase 1, slowest sink"], ["record", "round record"], ["decision", "decision"], ["phase2", "phase 2, slowest sink"]];

export function stacked(point) {
  const found = { run: point.phases.run ?? 0, record: point.phases.record ?? 0, decision: point.phases.decision ?? 0, phase1: 0, phase2: 0 };
  for (const [name, value] of Object.entries(point.phases)) {
    if (name.startsWith("phase 1")) found.phase1 = Math.max(found.phase1, value);
    if (name.startsWith("phase 2")) found.phase2 = Math.max(found.phase2, value);
  }
  return found;
}

export function drawChart(target, points, events, from, to, chosen) {
  const width = target.clientWidth || 800, height = 170, left = 52, bottom = 20, top = 8, usable = width - left - 6;
  target.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const totals = points.map((point) => Object.values(stacked(point)).reduce((sum, value) => sum + value, 0));
  const sorted = [...totals].sort((one, two) => one - two);
  const scale = nice(Math.max(0.01, (sorted[Math.floor(sorted.length * 0.95)] ?? 0.01) * 1.2));
  const x = (at) => left + ((at - from) / Math.max(0.001, to - from)) * usable;
  const y = (value) => top + (height - top - bottom) * (1 - Math.min(value, scale) / scale);
  const parts = [];
  for (const share of [0, 0.5, 1]) {
    parts.push(svg("line", { x1: left, x2: width - 6, y1: y(scale * share), y2: y(scale * share), class: "axis" }));
    const label = svg("text", { x: left - 8, y: y(scale * share) + 4, "text-anchor": "end", class: "small" });
    label.textContent = share ? seconds(scale * share) : "0"; parts.push(label);
  }
  const barWidth = Math.max(1.5, Math.min(9, (usable / Math.max(1, points.length)) * 0.78));
  points.forEach((point, index) => {
    const at = x(point.at_s);
    if (at < left || at > width) return;
    if (index === chosen) parts.push(svg("rect", { x: at - barWidth / 2 - 2, y: top, width: barWidth + 4, height: height - top - bottom, class: "chosen" }));
    let sum = 0;
    const found = stacked(point);
    for (const [name] of PHASES) {
      const y1 = y(sum), y2 = y(sum + found[name]);
      sum += found[name];
      if (y1 - y2 > 0.1) { const bar = svg("rect", { x: at - barWidth / 2, y: y2, width: barWidth, height: y1 - y2 }); bar.style.fill = `var(--${name})`; parts.push(bar); }
    }
    if (sum > scale) { const mark = svg("path", { d: `M${at - 4} ${top + 5}L${at} ${top - 1}L${at + 4} ${top + 5}z` }); mark.style.fill = "var(--text)"; parts.push(mark); }
    if (point.aborts) { const mark = svg("circle", { cx: at, cy: top + 2, r: 3 }); mark.style.fill = "var(--bad)"; parts.push(mark); }
  });
  for (const event of events) {
    const at = x(event.at_s);
    if (at < left || at > width) continue;
    const title = svg("title"); title.textContent = `${event.part}: ${event.sentence}`;
    parts.push(svg("line", { x1: at, x2: at, y1: top, y2: height - bottom, class: event.event === "part.restarted" ? "tick" : "axis" }, title));
  }
  for (const share of [0, 0.5, 1]) {
    const label = svg("text", { x: left + usable * share, y: height - 5, class: "small", "text-anchor": share === 0 ? "start" : share === 1 ? "end" : "middle" });
    label.textContent = new Date((from + (to - from) * share) * 1000)[to - from > 86000 ? "toLocaleString" : "toLocaleTimeString"](); parts.push(label);
  }
  target.replaceChildren(...parts);
  return { nearest: (pixel) => nearest(points, from + ((pixel - left) / usable) * (to - from)) };
}

function nearest(points, at) {
  let best = -1;
  points.forEach((point, index) => { if (best < 0 || Math.abs(point.at_s - at) < Math.abs(points[best].at_s - at)) best = index; });
  return best;
}

function nice(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value) ?? value;
}
