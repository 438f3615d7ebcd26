// Formats numbers and times, and creates elements. Text from the server is only inserted as text nodes.
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export const number = (value) => (value === null || value === undefined ? "–" : whole.format(value));
export const compact = (value) => (value === null || value === undefined ? "–" : Math.abs(value) < 100000 ? whole.format(value) : short.format(value));
export const rate = (value) => (value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(1) : compact(value)}/s`);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit += 1; }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.9995) return `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 59.95) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  value = Math.round(value);
  if (value < 3600) return `${Math.floor(value / 60)} min ${value % 60} s`;
  if (value < 86400) return `${Math.floor(value / 3600)} h ${Math.floor((value % 3600) / 60)} min`;
  return `${Math.floor(value / 86400)} d ${Math.floor((value % 86400) / 3600)} h`;
}

export const percent = (share) => (share === null || share === undefined ? "–" : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`);
export const clock = (at_s) => (at_s ? new Date(at_s * 1000).toLocaleTimeString() : "–");
export const day = (at_s) => (at_s ? new Date(at_s * 1000).toLocaleString() : "–");

export function el(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Fills a table. Columns are [title, function that returns the cell of a row, class]. Numbers have the class n.
export function table(target, columns, rows, empty) {
  if (!rows.length) { target.replaceChildren(el("caption", { class: "empty" }, empty)); return; }
  const head = el("tr", {}, ...columns.map(([title, , kind]) => el("th", { scope: "col", class: kind ?? null }, title)));
  const body = rows.map((row) => el("tr", {}, ...columns.map(([, cell, kind]) => {
    const value = cell(row);
    return value instanceof Node && value.nodeName === "TD" ? value : el("td", { class: kind ?? null }, value instanceof Node ? value : String(value));
  })));
  target.replaceChildren(el("thead", {}, head), el("tbody", {}, ...body));
}
