// rawko: what the page does beyond HTML. Everything here only adds: without it all links, forms and folds work.

import { $$ } from "./dom.js";
import { start as find } from "./find.js";
import { start as fold } from "./fold.js";
import { flash, start as keys } from "./keys.js";
import { start as live } from "./live.js";
import { open as palette } from "./palette.js";

const showCopying = () => $$("[data-copy]").forEach((each) => { each.hidden = !navigator.clipboard; });
showCopying();
addEventListener("rawko:buttons", showCopying);

addEventListener("click", async (event) => {
  $$("details.menu[open]").forEach((each) => { if (!each.contains(event.target)) each.open = false; });
  const copy = event.target.closest?.("[data-copy]");
  if (copy) {
    await navigator.clipboard.writeText(copy.dataset.copy);
    flash(copy, "Copied");
  }
  const link = event.target.closest?.("a.link");
  if (link && navigator.clipboard && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    await navigator.clipboard.writeText(link.href);
    flash(link, "Copied");
  }
});

// A form is sent once, however often one clicks. (The server does it once, too.)
addEventListener("submit", (event) => {
  if (event.target.dataset.sent) event.preventDefault();
  event.target.dataset.sent = "1";
  setTimeout(() => delete event.target.dataset.sent, 5000);
});

find();
fold();
keys(palette);
live();
document.documentElement.dataset.ready = "1";
