// What is fetched when it is opened: long outputs, and the turns that a page left out.

import { $, make, part } from "./dom.js";

async function open(details) {
  const address = details.dataset.more;
  if (!details.open || !address) return;
  delete details.dataset.more;
  const inside = $(".in", details);
  const rest = $(".rest", inside);
  try {
    const found = await part(address);
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

export async function fill(gap) {
  const { from, to } = gap.dataset;
  const task = document.body.dataset.task;
  const before = document.documentElement.scrollHeight;
  const above = gap.getBoundingClientRect().top < 0;
  const found = await part(`${document.body.dataset.base}/t/${task}/turns?from=${from}&to=${to}`);
  const focused = gap.contains(document.activeElement);
  gap.replaceWith(...found);
  if (above) scrollBy(0, document.documentElement.scrollHeight - before);
  if (focused) found.find((each) => each.matches(".turn"))?.querySelector("a")?.focus();
}

export function start() {
  addEventListener("toggle", (event) => event.target.matches?.("details.tool") && open(event.target), true);
  addEventListener("click", (event) => {
    const link = event.target.closest?.(".gap[data-from] a, a.further");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const gap = link.closest(".gap");
    (gap ? fill(gap) : further(link)).catch(() => { location.href = link.href; });
  });
}
