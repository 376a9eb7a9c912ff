// Tabs that work with keyboard and screen reader: Tab reaches the selected one, the arrow keys reach the others.

import { h } from "./dom.js";

export function tabs(label, panel, choices, chosen, choose) {
  const made = choices.map(({ value, text }) =>
    h("button", {
      type: "button", role: "tab", class: "tab", "aria-selected": String(value === chosen), "aria-controls": panel,
      tabindex: value === chosen ? 0 : -1, "data-value": value, onclick: () => choose(value),
    }, text));
  const list = h("div", { role: "tablist", "aria-label": label, class: "tabs" }, ...made);
  list.addEventListener("keydown", (event) => {
    const at = made.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: made.length - 1 }[event.key];
    if (to === undefined || at < 0) return;
    event.preventDefault();
    const next = made[(to + made.length) % made.length];
    next.focus();
    choose(next.dataset.value);
  });
  return list;
}
