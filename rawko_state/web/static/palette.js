// Ctrl-K: go to a task or a file, or do what can be done here. The server finds tasks; the paths of files are fetched once. What
// changes something says so in its row, and nothing that deletes, allows or refuses is in it.

import { $, $$, base, icon, make, mark, part, say } from "./dom.js";
import { commands } from "./keys.js";

const KINDS = ["Tasks", "Files", "Do"];
const FEW = 5;
let dialog = null;
let field = null;
let list = null;
let asked = null;
let files = null;
let tasks = [];
let only = "";
let at = null;
let moved = false; // whether somebody chose with the arrow keys

function build() {
  dialog = make("dialog", "pal");
  dialog.setAttribute("aria-label", "Go to, search or do");
  const form = make("form", "q");
  form.setAttribute("role", "search");
  form.setAttribute("aria-label", "Everything");
  field = make("input");
  const about = { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "pal-l", "aria-autocomplete": "list", "aria-label": "Go to a task or file, search, or do", placeholder: "Go to a task or file, search, or do", autocomplete: "off", spellcheck: "false" };
  for (const [name, value] of Object.entries(about)) field.setAttribute(name, value);
  form.append(icon("search"), field, make("kbd", "", "Esc"));
  list = make("div");
  list.id = "pal-l";
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Results");
  const foot = make("footer");
  for (const [keys, what] of [[["↑", "↓"], "choose"], [["Enter"], "open"], [["Tab"], "only this kind"], [[">"], "commands only"]]) {
    const each = make("span");
    for (const key of keys) each.append(make("kbd", "", key), " ");
    each.append(what);
    foot.append(each, " ");
  }
  dialog.append(form, list, foot);
  document.body.append(dialog);

  form.addEventListener("submit", (event) => event.preventDefault());
  field.addEventListener("input", () => {
    asked?.abort();
    moved = false;
    show();
    look();
  });
  dialog.addEventListener("keydown", pressed);
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close(); // beside it
    const option = event.target.closest("[role=option]");
    if (!option || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    choose(option);
  });
  dialog.addEventListener("close", () => { asked?.abort(); });
}

const query = () => field.value.trim();
const isCommand = () => query().startsWith(">");
const words = () => query().replace(/^>/, "").toLowerCase().split(/\s+/).filter(Boolean);
const fits = (text) => words().every((word) => text.toLowerCase().includes(word));

async function look() {
  if (isCommand()) return;
  asked = new AbortController();
  const { signal } = asked;
  try {
    const found = await part(`${base}/palette?q=${encodeURIComponent(query())}`, signal);
    if (signal.aborted) return;
    tasks = found;
    show();
    dialog.dataset.found = query();
    say(`${$$("[role=option]", list).length} results`);
  } catch (error) {
    if (error.name !== "AbortError") list.replaceChildren(make("p", "none", "The server can't be reached now."));
  }
}

async function paths() {
  if (files) return;
  files = [];
  try { files = await part(`${base}/palette?kind=files`); show(); } catch { files = null; }
}

function command({ name, key, sign, run, address }) {
  const option = make(address ? "a" : "div");
  option.setAttribute("role", "option");
  option.setAttribute("aria-selected", "false");
  option.tabIndex = -1;
  if (address) option.href = address; else option.work = run;
  const right = make("span", "r");
  for (const each of (key || "").split(" ").filter(Boolean)) right.append(make("kbd", "", each), " ");
  option.append(icon(sign || "go"), " ", make("span", "t", name), " ", right);
  return option;
}

function doing() {
  const all = commands().filter((each) => fits(each.name)).map(command);
  if (query() && !isCommand()) all.unshift(command({ name: `All results for “${query()}”`, key: "Ctrl Enter", sign: "search", address: `${base}/search?q=${encodeURIComponent(query())}` }));
  return all;
}

function show() {
  const chosen = isCommand() ? "Do" : only;
  const most = chosen ? 50 : FEW;
  const found = {
    Tasks: tasks,
    Files: query() && files ? files.filter((each) => fits(each.dataset.path)) : [],
    Do: doing(),
  };
  const groups = [];
  for (const kind of KINDS) {
    const options = chosen && kind !== chosen ? [] : found[kind].slice(0, kind === "Tasks" || (kind === "Do" && !query()) ? 50 : most);
    if (!options.length) continue;
    const group = make("div", "grp");
    group.setAttribute("role", "group");
    group.setAttribute("aria-label", kind);
    group.dataset.kind = kind;
    const head = make("div", "gh", kind);
    head.setAttribute("aria-hidden", "true");
    group.append(head, ...options);
    groups.push(group);
    if (kind === "Files") options.forEach((each) => mark($(".t", each), each.dataset.path, words()));
  }
  list.replaceChildren(...groups);
  if (!groups.length) list.append(make("p", "none", "Nothing found."));
  const all = $$("[role=option]", list);
  all.forEach((each, number) => { each.id = `pal-${number}`; });
  select(moved && all.includes(at) ? at : all[0]); // what comes later does not move what somebody chose
}

function select(option) {
  at?.setAttribute("aria-selected", "false");
  at = option || null;
  if (!at) { field.removeAttribute("aria-activedescendant"); return; }
  at.setAttribute("aria-selected", "true");
  at.scrollIntoView({ block: "nearest" });
  field.setAttribute("aria-activedescendant", at.id);
}

function choose(option) {
  dialog.close();
  if (option.href) location.href = option.href; else option.work();
}

function pressed(event) {
  const all = $$("[role=option]", list);
  const here = all.indexOf(at);
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  if (event.isComposing) return;
  if (event.key in moves && all.length) { moved = true; select(all[(here + moves[event.key] + all.length) % all.length]); }
  else if (event.key === "Tab") { only = only ? "" : at?.closest(".grp").dataset.kind || ""; show(); }
  else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { if (query()) location.href = `${base}/search?q=${encodeURIComponent(query())}`; }
  else if (event.key === "Enter" && at) choose(at);
  else return;
  event.preventDefault();
  event.stopPropagation();
}

export function open() {
  if (!dialog) build();
  if (dialog.open) { dialog.close(); return; }
  field.value = only = "";
  moved = false;
  delete dialog.dataset.found;
  dialog.showModal();
  show();
  look();
  paths();
}
