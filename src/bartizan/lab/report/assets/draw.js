// What all charts share. Text from the data goes through textContent and setAttribute only: it is hostile input.
const data = JSON.parse(document.getElementById("data").textContent);
const charts = [];
const byId = (id) => document.getElementById(id);

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
    else if (name === "style") Object.assign(node.style, value);
    else node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}
const make = (tag, attributes = {}, ...children) => filled(document.createElement(tag), attributes, children);
const shape = (tag, attributes = {}, ...children) =>
  filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const canvas = (width, height, label) =>
  shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
const words = (x, y, text, more = {}) => shape("text", { x, y, text, ...more });
const line = (x1, y1, x2, y2, kind) => shape("line", { x1, y1, x2, y2, class: kind });

/** A figure that is drawn again whenever its width or the theme changes; `draw` gets the width. */
function chart(parent, title, note, draw) {
  const body = make("div", { class: "plot" });
  const head = [title && make("h3", { text: title }), note && make("p", { text: note })];
  const figure = make("figure", {}, title || note ? make("figcaption", {}, head) : null, body);
  parent.append(figure);
  const one = { body, width: 0, redraw: () => body.replaceChildren(...[draw(one.width)].flat()) };
  one.fit = () => {
    const width = Math.floor(body.getBoundingClientRect().width);
    if (width > 0 && width !== one.width) { one.width = width; one.redraw(); }
  };
  charts.push(one);
  one.fit();
  resized.observe(body);
  return one;
}
const resized = new ResizeObserver(() => requestAnimationFrame(() => charts.forEach((one) => one.fit())));

const dark = () => document.documentElement.dataset.theme === "dark";
const RAMPS = {
  light: ["#f0f4f8", "#cfe1f1", "#97c4e4", "#4a98cb", "#1b6aae", "#08306b"],
  dark: ["#1a212b", "#123a5e", "#145a94", "#2a86c7", "#74bdf0", "#e3f3ff"],
};
const channels = (hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16));
/** The one map for amounts, 0 to 1: nothing is nearly the page itself. */
function ramp(t) {
  const stops = RAMPS[dark() ? "dark" : "light"];
  const at = Math.min(1, Math.max(0, t)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(at));
  const [a, b] = [channels(stops[i]), channels(stops[i + 1])];
  return a.map((value, c) => Math.round(value + (b[c] - value) * (at - i)));
}
const rgb = (parts) => `rgb(${parts.join(" ")})`;
function inkOn(parts) {
  const [r, g, b] = parts.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2 ? "#10141a" : "#ffffff";
}
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** The plain mean is grey: it is what others are compared with. */
const placeOf = (rule) => data.rules.filter((one) => one !== "mean").indexOf(rule);
const colour = (rule) => (rule === "mean" ? "var(--c7)" : `var(--c${placeOf(rule) % 7})`);
const MARKS = [null, "M-3 0A3 3 0 1 1 3 0A3 3 0 1 1 -3 0Z", "M-3 -3H3V3H-3Z", "M0 -4L4 3H-4Z"];
/** Rules beyond the number of colours are told apart by marks on their lines; null for the first ones. */
const markOf = (rule) => (rule === "mean" ? null : MARKS[Math.floor(placeOf(rule) / 7) % MARKS.length]);
const marked = (d, x, y, stroke) => shape("path", { class: "mark", d, transform: `translate(${x} ${y})`, style: { stroke } });
const DASHES = ["", "6 4", "2 4", "9 3 2 3"];
/** Projected lines are whole and exact ones dashed; one sketch alone is whole. */
function dash(sketch) {
  if (data.sketches.length < 2) return "";
  const others = data.sketches.filter((one) => one !== "exact");
  if (sketch === "exact") return DASHES[1];
  const i = others.indexOf(sketch);
  return DASHES[i < 1 ? 0 : 2 + ((i - 1) % 2)];
}

const percent = (value) => (value === null ? "-" : `${(100 * value).toFixed(1)}%`);
/** On an axis: no digit more than it has, and none less. */
const percentTick = (value) => `${plain(100 * value)}%`;
function plain(value) {
  if (value === null || value === undefined) return "";
  if (value === 0) return "0";
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}
function seconds(value) {
  if (value === null) return "";
  if (value >= 1) return `${plain(value)} s`;
  return value >= 1e-3 ? `${plain(value * 1e3)} ms` : `${plain(value * 1e6)} µs`;
}
const pen = document.createElement("canvas").getContext("2d");
function wideness(text, size = 12, weight = 400) {
  pen.font = `${weight} ${size}px ${token("--sans")}`;
  return pen.measureText(text).width;
}
const widest = (texts, size, weight) => Math.max(0, ...texts.map((text) => wideness(text, size, weight)));
/** The text, cut until it is no wider than so many pixels. */
function fitted(text, room, size = 12, weight = 400) {
  if (wideness(text, size, weight) <= room) return text;
  let most = Math.min(text.length, 80);
  while (most > 1 && wideness(shortened(text, most), size, weight) > room) most--;
  return shortened(text, most);
}
const shortened = (text, most) => (text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text);
const reads = (value) => (value === null ? "" : value < 10 ? value.toFixed(2) : value < 1000 ? value.toFixed(1) : plain(value));
const several = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

function ticks(low, high, about) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, about);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-9); n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}
/** Where an axis from 0 ends: a tick at or above the most. */
function ceiling(most, about) {
  if (!(most > 0)) return 1;
  const found = ticks(0, most, about), step = found[1] - found[0] || most;
  return found.at(-1) >= most ? found.at(-1) : found.at(-1) + step;
}
/** Whole rounds, the first and the last among them. */
function roundTicks(low, high, width) {
  const room = (high - low) / Math.max(1, Math.floor(width / 70));
  const inner = ticks(low, high, width / 80).filter((t) => Number.isInteger(t) && t - low > room * 0.6 && high - t > room * 0.6);
  return [...new Set([low, ...inner, high])];
}

function bytes(coded) {
  const text = atob(coded);
  return Uint8Array.from(text, (letter) => letter.charCodeAt(0));
}

/** Rows are [text], or [colour or "", text, value]. */
function tip(event, rows) {
  const box = byId("tip");
  box.replaceChildren(...rows.map((row) => row.length === 1
    ? make("b", { text: row[0] })
    : make("div", {}, row[0] ? make("i", { style: { background: row[0] } }) : null,
      make("span", { text: row[1] }), make("span", { text: row[2] }))));
  box.hidden = false;
  const { width, height } = box.getBoundingClientRect();
  const left = event.clientX + 16 + width > innerWidth ? event.clientX - width - 16 : event.clientX + 16;
  box.style.left = `${Math.max(4, left)}px`;
  box.style.top = `${Math.max(4, Math.min(event.clientY + 14, innerHeight - height - 4))}px`;
}
const untip = () => { byId("tip").hidden = true; };

function section(id, title, about) {
  const one = make("section", { id, "aria-labelledby": `${id}-title` }, make("h2", { id: `${id}-title`, text: title }),
    about ? make("p", { class: "about", text: about }) : null);
  byId("main").append(one);
  byId("links").append(make("a", { href: `#${id}`, text: title }));
  return one;
}
