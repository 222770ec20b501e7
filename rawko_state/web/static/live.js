// What happens, as it happens. A turn that runs is built up from text nodes; when it has ended, its HTML replaces that once.
// The browser comes back by itself from the last cursor, so nothing is doubled and nothing is missing.

import { $, $$, base, icon, make, parsed, part, say, shownAs } from "./dom.js";
import { gapOf, isFull, prune } from "./fold.js";

function connected(state, why = "not connected, trying again") {
  const mark = $("#conn");
  if (!mark) return;
  mark.hidden = false;
  mark.classList.toggle("lost", !state);
  $("span", mark).textContent = state ? "live" : why;
  mark.title = state ? "" : why;
}

// A session ends with the server that made its link, or when its token is revoked.
async function isSignedOut() {
  const answer = await fetch(location.href, { method: "HEAD", redirect: "manual" }).catch(() => null);
  return answer?.type === "opaqueredirect";
}

// An EventSource that is closed by an error of the server does not come back by itself.
function follow(address, kinds) {
  let source = null;
  let cursor = "";
  let stopped = false;
  let wait = 2000;
  function begin() {
    const url = new URL(address, location.href);
    if (cursor) url.searchParams.set("after", cursor);
    source = new EventSource(url);
    source.onopen = () => { wait = 2000; connected(true); };
    source.onerror = async () => {
      if (stopped) return;
      connected(false);
      if (source.readyState !== EventSource.CLOSED) return;
      const signedOut = await isSignedOut();
      if (stopped) return;
      if (signedOut) { stopped = true; connected(false, "signed out: reload this page"); return; }
      setTimeout(begin, wait);
      wait = Math.min(2 * wait, 30000);
    };
    for (const [kind, work] of Object.entries(kinds)) {
      source.addEventListener(kind, (event) => {
        if (event.lastEventId) cursor = event.lastEventId;
        work(JSON.parse(event.data));
      });
    }
    source.addEventListener("stop", (event) => { stopped = true; source.close(); connected(false, JSON.parse(event.data).text); });
  }
  begin();
  addEventListener("pagehide", () => { stopped = true; source.close(); });
}

function elapsed(ms) {
  const seconds = Math.round(ms / 1000);
  return seconds < 60 ? `${seconds} s` : `${Math.floor(seconds / 60)}m ${String(seconds % 60).padStart(2, "0")}s`;
}

// Makes an element say what another one says, and keeps what need not change: somebody may be about to click on it.
function renewed(old, made) {
  if (old.outerHTML === made.outerHTML) return;
  const holdsText = (each) => [...each.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
  if (old.tagName !== made.tagName || !old.childElementCount || !made.childElementCount || holdsText(old) || holdsText(made)) {
    old.replaceWith(made.cloneNode(true));
    return;
  }
  old.setAttribute("class", made.getAttribute("class") || "");
  const fresh = [...made.children];
  [...old.children].forEach((each, number) => { if (fresh[number]) renewed(each, fresh[number]); else each.remove(); });
  fresh.slice(old.childElementCount).forEach((each) => old.append(" ", each.cloneNode(true)));
}

// The list

function list() {
  const news = make("p", "news");
  news.id = "news";
  news.hidden = true;
  const show = make("button", "btn");
  show.type = "button";
  show.addEventListener("click", () => refresh());
  news.append(show);
  $("#rows").before(news);
  let state = document.body.dataset.state; // what the page shows: it may have changed before the first message
  let asked = 0; // an answer that comes after the one to a later question says what was, not what is
  const busy = () => $("#rows:hover, #rows:focus-within");
  async function refresh() {
    const mine = ++asked;
    const found = await part(location.href);
    if (mine !== asked || $("#hits")) return;
    $("#rows")?.replaceWith(...found);
    putKept();
    news.hidden = true;
  }
  let kept = null; // what runs and waits now, if it can't be shown yet
  function putKept() {
    const place = $("#now-list");
    if (!kept || place.matches(":hover, :focus-within")) return;
    place.replaceChildren(...kept.childNodes);
    kept = null;
  }
  // What was counted comes in when nobody points at the list any more.
  const left = () => setTimeout(() => {
    if (!news.hidden && !busy()) refresh().catch(() => {});
    if (!busy()) putKept();
  }, 300);
  addEventListener("mouseout", left);
  addEventListener("focusout", left);
  // While somebody points at the list, nothing moves under the pointer: what is new is counted.
  async function count() {
    const mine = ++asked;
    const found = await part(location.href);
    if (mine !== asked) return;
    const shown = new Set($$("tr[data-id]").map((row) => row.dataset.id));
    const above = new Set($$("#now-list a.t").map((link) => link.href));
    const fresh = found.flatMap((each) => $$("tr[data-id]", each)).filter((row) => !shown.has(row.dataset.id)).length
      + (kept ? $$("a.t", kept).filter((link) => !above.has(link.href)).length : 0);
    show.textContent = fresh ? `${fresh} new` : "Show what has changed";
    news.hidden = false;
  }
  // While somebody points at what runs and waits, no row of it moves; nor the list below it.
  function renew(place, made) {
    const names = (lists) => lists.flatMap((each) => $$("a.t", each).map((link) => link.href)).join();
    const old = [...place.children];
    const box = make("div");
    box.append(...made);
    kept = null;
    if (names(old) !== names([...box.children])) {
      if (busy() || place.matches(":hover, :focus-within")) kept = box;
      else place.replaceChildren(...box.childNodes);
      return;
    }
    const fresh = $$("li", box);
    $$("li", place).forEach((row, number) => renewed(row, fresh[number]));
  }
  follow(`${base}/live`, {
    now: (data) => {
      const place = $("#now-list");
      if (place && document.body.dataset.now === "1") renew(place, parsed(data.html));
      if (state !== data.state && document.body.dataset.first === "1" && !$("#hits")) {
        if (!$("#rows").childElementCount) location.reload(); // the first task
        else if (busy()) count().catch(() => {});
        else refresh().catch(() => {});
      }
      state = data.state;
    },
  });
}

// A task

function task() {
  const line = $("#line");
  const bar = $("#livebar");
  const seen = { first: true, since: 0, timer: 0, stays: false };

  const atEnd = () => innerHeight + scrollY >= document.documentElement.scrollHeight - 60;
  function keepingEnd(work) {
    seen.stays = atEnd() && $("#follow").checked;
    work();
    if (!seen.stays) return;
    const newest = $$(".turn[data-n]", line).at(-1);
    if (newest) prune(newest);
    scrollTo(0, document.documentElement.scrollHeight);
  }

  function show(agent, what, at) {
    bar.hidden = false;
    $(".what", bar).replaceChildren(icon("run", "spin"), make("b", "", agent || ""), ` ${what}`);
    if (!seen.since) seen.since = Date.parse(at) || Date.now();
    if (!seen.timer) seen.timer = setInterval(() => { $(".elapsed", bar).textContent = elapsed(Math.max(0, Date.now() - seen.since)); }, 1000);
  }
  function quiet() {
    bar.hidden = true;
    clearInterval(seen.timer);
    seen.timer = seen.since = 0;
  }

  // The turn that runs
  function live(data) {
    let turn = $("#live");
    if (turn && !turn.dataset.made) { turn.remove(); turn = null; }
    if (turn) return turn;
    turn = make("article", "turn agent live");
    turn.id = "live";
    turn.dataset.made = "1";
    const gutter = make("div", "g");
    gutter.append(make("span", "", "now"));
    const body = make("div", "b");
    const head = make("div", "turn-h");
    const right = make("span", "r");
    right.append(make("span", "", "writing"));
    head.append(make("span", `ag ${data.hue || ""}`, data.agent || ""), " ", right);
    body.append(head);
    turn.append(gutter, body);
    line.append(turn);
    return turn;
  }
  function text(turn, kind) {
    const body = $(".b", turn);
    const last = body.lastElementChild;
    if (last?.dataset.kind === kind) return kind === "thinking" ? $(".said", last) : $("p", last);
    if (kind === "thinking") {
      const box = make("details", "think");
      box.dataset.kind = kind;
      const head = make("summary");
      head.append(icon("chev", "chev"), " ", make("span", "", "Thinking"));
      const said = make("div", "md pre said");
      box.append(head, said);
      body.append(box);
      return said;
    }
    const box = make("div", "md");
    box.dataset.kind = kind;
    box.append(make("p", "pre"));
    body.append(box);
    return box.firstChild;
  }
  function caret(turn) {
    $(".caret", turn)?.remove();
    const place = $$(".b > [data-kind=text] p", turn).at(-1);
    place?.append(make("span", "caret"));
  }

  function put(elements) {
    for (const each of elements) {
      const old = each.id && document.getElementById(each.id);
      if (old) { old.replaceWith(each); continue; }
      const number = Number(each.dataset.n || 0);
      const end = $("#line > .gap:last-child") || ($("#live")?.previousElementSibling?.matches(".gap") ? $("#live").previousElementSibling : null);
      if (number && end) {
        // The end of the task is not on this page: the gap grows.
        end.replaceWith(gapOf(Number(end.dataset.from), Math.max(number, Number(end.dataset.to))));
        continue;
      }
      const running = $("#live");
      // Whoever reads further up keeps what is there; what comes meanwhile is a gap once the page is full.
      const made = number && !seen.stays && isFull() ? gapOf(number, number) : each;
      if (running) running.before(made); else line.append(made);
    }
  }
  function head(data) {
    if (data.head) { const made = parsed(data.head)[0]; if (made) $("#facts")?.replaceWith(made); }
    if (data.buttons && !$(".task-h details[open], .task-h .btns :focus")) { const made = parsed(data.buttons)[0]; if (made) { $(".task-h .btns")?.replaceWith(made); dispatchEvent(new Event("rawko:buttons")); } }
    if (data.status) document.body.dataset.status = data.status;
  }

  follow(shownAs(`${base}/t/${document.body.dataset.task}/live?after=${encodeURIComponent(document.body.dataset.cursor)}`), {
    hello: () => { if (seen.first) $("#live:not([data-made])")?.remove(); seen.first = false; },
    said: (data) => keepingEnd(() => {
      const turn = live(data);
      const place = text(turn, data.kind);
      $(".caret", turn)?.remove();
      const last = place.lastChild;
      if (last?.nodeType === Node.TEXT_NODE) last.appendData(data.text); else place.append(data.text);
      if (data.kind === "text") caret(turn);
      show(data.agent, data.kind === "thinking" ? "thinks" : "writes", data.at);
    }),
    tool: (data) => keepingEnd(() => {
      const turn = live(data);
      const known = data.key ? $$(".tool.flat", turn).find((each) => each.dataset.key === data.key) : null;
      if (known && !data.verb) {
        known.classList.remove("going");
        $(".x", known).textContent = data.result || "done";
        return;
      }
      const made = make("div", `tool flat${data.going ? " going" : ""}`);
      made.dataset.key = data.key || "";
      made.append(make("span"), " ", make("span", "v", data.verb || ""), " ", make("span", "o", data.what || ""), " ", make("span", "x", data.going ? "running" : data.result || ""), " ", make("span", "d"));
      $(".b", turn).append(made);
      show(data.agent, `${data.verb || ""} ${data.what || ""}`.slice(0, 120), data.at);
    }),
    step: (data) => keepingEnd(() => {
      const turn = live(data);
      if (data.text) $(".b", turn).append(make("p", data.kind === "error" ? "why bad" : "why dim", data.text));
      show(data.agent, data.text.slice(0, 120), data.at);
    }),
    turn: (data) => keepingEnd(() => {
      const made = parsed(data.html);
      const running = $("#live");
      if (running && (data.replaces || made.some((each) => !each.matches(".user")))) running.remove();
      put(made);
      for (const html of data.also || []) for (const each of parsed(html)) if (document.getElementById(each.id)) put([each]);
      head(data);
      const asks = made.some((each) => each.querySelector(".ask form"));
      say(asks ? "It waits for your answer." : `Turn ${data.number}`);
      if (asks || data.over) quiet();
    }),
    change: (data) => keepingEnd(() => {
      head(data);
      if (data.html) put(parsed(data.html));
      if (data.status !== "running") quiet();
      if (data.kind === "final" || data.kind === "status") say(data.status);
    }),
    gap: () => location.reload(),
  });
}

export function start() {
  const page = document.body.dataset.page;
  if (page === "list") list();
  if (page === "task") task();
}
