// What the other modules share. HTML that is put into the page comes from our own server, which has escaped it; what agents say
// while they say it is put in as text nodes only.

export const $ = (selector, within = document) => within.querySelector(selector);
export const $$ = (selector, within = document) => [...within.querySelectorAll(selector)];
export const base = document.body.dataset.base;
export const isTyping = (target) => Boolean(target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]"));

export function parsed(html) {
  return [...new DOMParser().parseFromString(html, "text/html").body.children].map((each) => document.adoptNode(each));
}

// How diffs and tools are shown here, for addresses of the same task.
export function shownAs(address) {
  const url = new URL(address, location.href);
  const here = new URLSearchParams(location.search);
  for (const name of ["diff", "tools"]) if (here.get(name)) url.searchParams.set(name, here.get(name));
  return url.href;
}

export async function part(address, signal) {
  const url = new URL(address, location.href);
  url.hash = "";
  url.searchParams.set("part", "1");
  const response = await fetch(url, { signal, credentials: "same-origin" });
  if (!response.ok) throw new Error(`${response.status}`);
  return parsed(await response.text());
}

export function make(name, css, text) {
  const made = document.createElement(name);
  if (css) made.className = css;
  if (text !== undefined) made.textContent = text;
  return made;
}

export function icon(name, css = "") {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("class", `i ${css}`);
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#${name}`);
  svg.append(use);
  return svg;
}

// For those who listen: turns, questions and ends, not every word.
export function say(text) {
  const place = $("#say");
  if (place) place.textContent = text;
}

// For everybody, for a moment.
export function tell(text) {
  $("#told")?.remove();
  const told = make("div", "toast", text);
  told.id = "told";
  document.body.append(told);
  say(text);
  setTimeout(() => told.remove(), 2500);
}

// A text with the words marked in it, as text nodes.
export function mark(element, text, words) {
  const low = text.toLowerCase();
  const hits = words.map((word) => [low.indexOf(word), word.length]).filter(([place]) => place >= 0).sort((a, b) => a[0] - b[0]);
  element.replaceChildren();
  let from = 0;
  for (const [place, length] of hits) {
    if (place < from) continue;
    element.append(text.slice(from, place), make("mark", "", text.slice(place, place + length)));
    from = place + length;
  }
  element.append(text.slice(from));
}
