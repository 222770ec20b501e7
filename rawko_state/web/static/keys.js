// Keys. None does anything that could not be clicked, none works while a field has the focus, and nothing that deletes, allows or
// refuses has one. They can be turned off (on the page of keys).

import { $, $$, base, isTyping, tell } from "./dom.js";

const stops = () => $$(".list tbody tr:not(.day), .hits > li, .line .turn").filter((each) => !each.closest(".away"));
let at = null;
let pending = "";

const TOP = 100; // what is above is under the bars
const isSeen = (element) => { const { top, bottom } = element.getBoundingClientRect(); return bottom > TOP && top < innerHeight; };

// Where one is: at what was chosen, else at what the address names, else at the first that can be seen.
function current(all) {
  const anchor = location.hash.length > 1 ? document.getElementById(location.hash.slice(1)) : null;
  const here = [at, anchor].find((each) => each && all.includes(each) && isSeen(each));
  if (here) return all.indexOf(here);
  return scrollY < 10 ? -1 : all.findIndex(isSeen);
}
function go(element) {
  if (!element) return;
  at?.classList.remove("here", "cur");
  at = element;
  at.classList.add(at.matches(".turn") ? "here" : "cur");
  at.scrollIntoView({ block: "nearest" });
  if (at.matches(".turn")) at.tabIndex = -1;
  (at.matches(".turn") ? at : $("a", at))?.focus({ preventScroll: true });
}
function step(by) {
  const all = stops();
  if (all.length) go(all[Math.max(0, Math.min(all.length - 1, current(all) + by))]);
}
const tests = {
  prompt: (turn) => turn.matches(".user"),
  edit: (turn) => turn.matches(".has-edit"),
  error: (turn) => turn.matches(".has-error") || turn.querySelector(".cutoff, .note.bad"),
};
// In what is on the page. Where turns were left out, the server looks for it.
function jump(kind, by) {
  const all = $$(".line .turn, .line > .gap[data-from]");
  for (let n = current(all) + by; n >= 0 && n < all.length; n += by) {
    if (all[n].matches(".gap")) {
      const next = new URL($$(`.jump[data-kind=${kind}] a`)[by > 0 ? 1 : 0].href);
      next.searchParams.set("from", by > 0 ? all[n].dataset.from - 1 : Number(all[n].dataset.to) + 1);
      location.href = next.href;
      return;
    }
    if (tests[kind](all[n])) { go(all[n]); return; }
  }
  tell(`There is no ${by > 0 ? "later" : "earlier"} ${kind}.`);
}
const flip = (all) => { const open = all.some((each) => !each.open); all.forEach((each) => { each.open = open; }); };
const press = (selector) => $(selector)?.click();
// In the list that one came from; else in order of last activity, which the server knows.
const neighbour = (by) => {
  const { task } = document.body.dataset;
  if (!task) return;
  const known = JSON.parse(sessionStorage.getItem("rawko:list") || "[]");
  const id = known[known.indexOf(task) + by];
  if (!known.includes(task)) location.href = `${base}/t/${task}/beside${by < 0 ? "?back=1" : ""}`;
  else if (id) location.href = `${base}/t/${id}`;
  else tell(`This is the ${by < 0 ? "first" : "last"} task of the list.`);
};

const keys = {
  j: () => step(1),
  k: () => step(-1),
  J: () => jump("prompt", 1),
  K: () => jump("prompt", -1),
  n: () => jump("edit", 1),
  p: () => jump("edit", -1),
  x: () => jump("error", 1),
  X: () => jump("error", -1),
  "[": () => neighbour(-1),
  "]": () => neighbour(1),
  o: () => at && (at.matches(".turn") ? flip($$(".tool", at)) : $("td.t a, a.t", at)?.click()),
  e: () => at && flip($$(".tool", at)),
  t: () => flip($$(".think")),
  d: () => press(".seg[aria-label=Diffs] a:not([aria-current])"),
  a: () => { const ask = $(".ask form"); if (ask) { ask.scrollIntoView({ block: "center" }); $("input:not([type=hidden]), button", ask)?.focus(); } },
  c: () => press("[data-copy]"),
  y: () => { const link = $("a.link", at || $(".turn:target") || document.createElement("i")); if (link) navigator.clipboard?.writeText(link.href).then(() => flash(link, "Copied")); },
  ".": () => press("#pin-it"),
  "/": () => { const field = $("#q, .find input"); field?.focus(); field?.select(); },
  "?": () => { location.href = `${base}/keys`; },
};
// Enter on a link is the browser's; on a turn it folds as "o" does.
keys.Enter = () => keys.o();
const places = { t: "/", f: "/files", i: "/figures", u: "/trash" };

// What can be done on this page, for the palette: by name, with its key.
export function commands() {
  const found = [];
  const can = (there, name, key, sign) => there && found.push({ name, key, sign, run: keys[key] });
  const turn = at?.matches(".turn") ? at : $(".turn:target");
  can($(".ask form"), "Answer what waits", "a", "wait");
  can($("[data-copy]:not([hidden])"), "Copy the resume command of this task", "c", "copy");
  can(turn && $("a.link", turn), `Copy the link to turn ${turn?.dataset.n}, with its seal`, "y", "link");
  can($("#pin-it"), `${$("#pin-it")?.textContent.trim()} this task`, ".", "pin");
  can($(".seg[aria-label=Diffs]"), `Show diffs ${$(".seg[aria-label=Diffs] a:not([aria-current])")?.textContent.toLowerCase()}`, "d", "file");
  can($(".think"), "Fold or unfold all thinking", "t", "chev");
  can(turn && $(".tool", turn), "Fold or unfold the tools of this turn", "e", "chev");
  for (const [name, kind, next, previous] of [["prompt", "prompt", "J", "K"], ["edit", "edit", "n", "p"], ["error", "error", "x", "X"]]) {
    can($(`.jump[data-kind=${kind}]`), `Next ${name}`, next, "down");
    can($(`.jump[data-kind=${kind}]`), `Previous ${name}`, previous, "up");
  }
  for (const link of $$(".task-h a[download]")) found.push({ name: `Export: ${link.textContent}`, run: () => link.click() });
  for (const link of $$(".side a[href*='/changes'], .task-h a[href$='/check']")) if (!link.closest("li")) found.push({ name: link.textContent.trim(), address: link.href });
  const fork = turn && $(".acts a[href*='/fork/']", turn);
  if (fork) found.push({ name: `Fork after turn ${turn.dataset.n}`, sign: "fork", address: fork.href });
  for (const [key, name] of [["t", "Tasks"], ["f", "Files"], ["i", "Figures"], ["u", "Upkeep: trash and health"]]) found.push({ name: `Go to ${name}`, key: `g ${key}`, address: base + places[key] });
  for (const [word, name] of [["waiting", "Tasks that wait"], ["running", "Tasks that run"], ["failed", "Failed tasks"]]) found.push({ name, address: `${base}/?status=${word}` });
  if ($("a.where")) found.push({ name: "Switch project", address: $("a.where").href });
  const colours = $("button[name=theme]");
  if (colours) found.push({ name: `Change colours to ${colours.value}`, sign: "theme", run: () => colours.click() });
  found.push({ name: "Keys and help", key: "?", sign: "help", address: `${base}/keys` });
  return found;
}

const flashing = new WeakSet();
export function flash(element, text) {
  if (flashing.has(element)) return;
  const was = [...element.childNodes];
  flashing.add(element);
  element.replaceChildren(text);
  setTimeout(() => { element.replaceChildren(...was); flashing.delete(element); }, 1200);
}

export function start(palette) {
  const ids = $$(".list tr[data-id]").map((row) => row.dataset.id);
  if (ids.length) sessionStorage.setItem("rawko:list", JSON.stringify(ids));
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      $$("details.menu[open]").forEach((each) => { each.open = false; });
      if (isTyping(event.target)) event.target.blur();
      return;
    }
    if ((event.ctrlKey || event.metaKey) && event.key === "k") { event.preventDefault(); palette(); return; }
    if ($("dialog[open]")) return;
    if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || document.body.dataset.keys === "off") return;
    if (pending === "g") {
      pending = "";
      if (places[event.key]) { event.preventDefault(); location.href = base + places[event.key]; }
      return;
    }
    if (event.key === "g") { pending = "g"; setTimeout(() => { pending = ""; }, 1500); return; }
    const choice = event.target.closest?.(".ask form") && /^[1-9]$/.test(event.key) ? $$("input[type=radio]", event.target.closest("form"))[event.key - 1] : null;
    if (choice) { choice.checked = true; choice.focus(); return; }
    if (event.key === "Enter" && event.target !== at) return;
    const work = keys[event.key];
    if (work) { event.preventDefault(); work(); }
  });
  // Jumps of the toolbar go from where one is.
  addEventListener("click", (event) => {
    const link = event.target.closest?.(".jump[data-kind] a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    jump(link.parentElement.dataset.kind, link === link.parentElement.querySelector("a") ? -1 : 1);
  });
}
