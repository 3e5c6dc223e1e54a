"use strict";
// Elements, and numbers in words. Texts of strangers only ever become text nodes.

function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...spread(children));
  return element;
}
const spread = (children) => children.flat(Infinity).filter((one) => one !== null && one !== undefined && one !== false && one !== "");

// What need not be built if it is there in this version already.
const later = (version, build) => ({ version, build });
const make = (one) => (one.build ? Object.assign(one.build(), { version: one.version }) : one);

// Make `old` look like `fresh` and keep what is the same, so that focus, selection and places of scrolling stay.
function morph(old, fresh) {
  if (fresh.build) {
    if (old.version === fresh.version) return;
    fresh = make(fresh);
  }
  if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) { old.replaceWith(fresh); return; }
  if (old.nodeType === Node.TEXT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
  if (fresh.hasAttribute("data-keep")) return;
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    const value = fresh.getAttribute(name);
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  old.version = fresh.version;
  if (old.onclick !== fresh.onclick) old.onclick = fresh.onclick;
  if (old.onchange !== fresh.onchange) old.onchange = fresh.onchange;
  morphAll(old, [...fresh.childNodes]);
}
function morphAll(old, children) {
  let was = old.firstChild;
  for (const one of children) {
    const next = was && was.nextSibling;
    if (was) morph(was, one);
    else old.append(make(one));
    was = next;
  }
  while (was) { const next = was.nextSibling; was.remove(); was = next; }
}

const scaled = (value, units) => {
  let place = 0;
  while (Math.abs(value) >= 999.5 && place < units.length - 1) { value /= 1000; place += 1; }
  return (place && Math.abs(value) < 99.95 ? value.toFixed(1) : value > 1e6 ? value.toExponential(1) : value.toFixed(0)) + units[place];
};
const known = (value) => value !== null && value !== undefined;
const count = (value) => (known(value) ? scaled(value, ["", "k", "M", "G", "T"]) : "–");
const bytes = (value) => (known(value) ? scaled(value, [" B", " kB", " MB", " GB", " TB"]) : "–");
const loss = (value) => (known(value) ? (value < 1e4 ? value.toFixed(3) : value.toExponential(2)) : "–");
function seconds(value) {
  if (!known(value)) return "–";
  if (value < 10) return `${Math.max(0, value).toFixed(1)} s`;
  const whole = Math.round(value), two = (n) => String(n).padStart(2, "0");
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 172800) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} days ${Math.floor((whole % 86400) / 3600)} h`;
}
const clock = (unix) => new Date(unix * 1000).toLocaleTimeString([], { hour12: false });
const moment = (unix) => new Date(unix * 1000).toLocaleString([], { hour12: false });
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

const stat = (name, value) => h("div", {}, h("dt", {}, name), h("dd", {}, value));
const table = (head, rows, name) =>
  h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": name },
    h("table", {}, h("thead", {}, h("tr", {}, head.map((one) => h("th", { scope: "col" }, one)))), h("tbody", {}, rows)));
const cells = (...values) => h("tr", {}, values.map((one) =>
  one instanceof Array ? h("td", { class: one[1] }, one[0]) : h("td", {}, one)));
