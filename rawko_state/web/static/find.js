// Search as you type. The address says what is shown, so the view can be sent, and Back works.

import { $, part } from "./dom.js";

export function start() {
  const field = $("#q");
  if (!field) return;
  const home = location.href;
  const list = () => $("#rows") ? [$("#now"), $("#news"), $(".facets"), $("#rows")].filter(Boolean) : [];
  let asked = null;

  async function look() {
    const query = field.value.trim();
    asked?.abort();
    if (!query) {
      if (list().length) {
        $("#hits")?.remove();
        list().forEach((each) => each.classList.remove("away"));
        history.replaceState(null, "", home);
      }
      return;
    }
    asked = new AbortController();
    const given = new URLSearchParams(new FormData(field.form));
    given.set("q", query);
    const address = `${field.form.action}?${given}`;
    try {
      const found = await part(address, asked.signal);
      const hits = $("#hits");
      if (hits) hits.replaceWith(...found);
      else field.closest("form").after(...found);
      list().forEach((each) => each.classList.add("away"));
      history.replaceState(null, "", address);
      document.body.dataset.found = query;
    } catch (error) {
      if (error.name !== "AbortError") $("#hits")?.replaceChildren("The server can't be reached now.");
    }
  }

  field.addEventListener("input", look);
}
