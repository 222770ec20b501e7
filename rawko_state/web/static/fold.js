// What is fetched when it is opened: long outputs, and the turns that a page left out.

import { $, $$, make, part, shownAs } from "./dom.js";

async function open(details) {
  const address = details.dataset.more;
  if (!details.open || !address) return;
  delete details.dataset.more;
  const inside = $(".in", details);
  const rest = $(".rest", inside);
  try {
    const found = await part(shownAs(address));
    rest?.remove();
    inside.append(...found);
  } catch {
    details.dataset.more = address;
    rest?.append(make("span", "bad", "Can't be fetched now."));
  }
}

async function further(link) {
  const rest = link.closest(".rest");
  const found = await part(link.href);
  rest.replaceWith(...found);
}

const MOST = 600;

export function gapOf(from, to) {
  const { base, task } = document.body.dataset;
  const gap = make("div", "gap");
  gap.dataset.from = from;
  gap.dataset.to = to;
  const count = to - from + 1;
  const said = make("span", "", `${count.toLocaleString("en")} turn${count === 1 ? "" : "s"}: ${from}${from === to ? "" : ` to ${to}`} `);
  const link = make("a", "", "Open");
  link.href = shownAs(`${base}/t/${task}/${from}#t${from}`);
  said.append(link);
  gap.append(said);
  return gap;
}

export const isFull = () => $$("#line > .turn[data-n]").length >= MOST;

// A page with all turns of a long task takes a gigabyte. So what is farthest from here becomes a gap again.
export function prune(here) {
  const turns = $$(".turn[data-n]", $("#line"));
  const over = turns.length - MOST;
  if (over <= 0) return;
  const place = turns.indexOf(here);
  const fromTop = place > turns.length / 2;
  const top = here.getBoundingClientRect().top;
  const all = [...$("#line").children].filter((each) => each.id !== "live");
  const last = fromTop ? turns[over - 1] : turns[turns.length - over];
  const cut = fromTop ? all.slice(0, all.indexOf(last) + 1) : all.slice(all.indexOf(last));
  const numbers = cut.flatMap((each) => each.dataset.from ? [Number(each.dataset.from), Number(each.dataset.to)] : each.dataset.n ? [Number(each.dataset.n)] : []);
  const gap = gapOf(Math.min(...numbers), Math.max(...numbers));
  cut[0].before(gap);
  cut.forEach((each) => each.remove());
  scrollBy(0, here.getBoundingClientRect().top - top);
}

export async function fill(gap) {
  const { from, to } = gap.dataset;
  const task = document.body.dataset.task;
  const before = document.documentElement.scrollHeight;
  const above = gap.getBoundingClientRect().top < 0;
  const found = await part(shownAs(`${document.body.dataset.base}/t/${task}/turns?from=${from}&to=${to}`));
  const focused = gap.contains(document.activeElement);
  gap.replaceWith(...found);
  if (above) scrollBy(0, document.documentElement.scrollHeight - before);
  const first = found.find((each) => each.matches(".turn[data-n]"));
  if (first) prune(first);
  if (focused) found.find((each) => each.matches(".turn"))?.querySelector("a")?.focus();
}

export function start() {
  // What the server sent open is fetched when it comes into view.
  const near = new IntersectionObserver((seen) => seen.forEach((each) => each.isIntersecting && open(each.target)));
  $$("details.tool[open][data-more]").forEach((each) => near.observe(each));
  addEventListener("toggle", (event) => event.target.matches?.("details.tool") && open(event.target), true);
  addEventListener("click", (event) => {
    const link = event.target.closest?.(".gap[data-from] a, a.further, details[data-more] .rest a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const gap = link.closest(".gap");
    const tool = link.closest("details[data-more]");
    if (tool) { open(tool); return; }
    (gap ? fill(gap) : further(link)).catch(() => { location.href = link.href; });
  });
}
