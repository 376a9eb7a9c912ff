// The home page: the list of public boards.

import { h, name } from "./dom.js";
import { count, say } from "./texts.js";
import { board, read } from "./server.js";
import { Countdown } from "./countdown.js";

const PAGE = 24;
const REFRESH_MS = 15_000;

export async function home(main) {
  document.title = "Laurels";
  const list = h("ul", { class: "cards" });
  const more = h("button", { type: "button", class: "more", hidden: true, onclick: () => load() }, say("boards.more"));
  main.replaceChildren(h("h1", {}, say("boards")), list, more);
  let cursor = null;

  async function load() {
    const page = await read("/api/v1/leaderboards", { limit: PAGE, cursor });
    cursor = page.nextCursor;
    more.hidden = cursor === null;
    list.append(...page.leaderboards.map(card));
    if (!list.children.length) list.replaceWith(h("p", { class: "empty" }, say("boards.none")));
  }

  await load();
}

function card(found) {
  const players = h("span", { class: "quiet" }, found.totalUsers === null ? "" : count("players", found.totalUsers));
  const leader = h("span", { class: "leader quiet" });
  const period = found.periods[0];
  const countdown = period?.nextReset ? new Countdown(period.nextReset, say("reset")).element : null;
  const element = h("li", { class: "card" },
    h("a", { href: `/boards/${encodeURIComponent(found.UUID)}` }, found.name),
    h("span", { class: `badge ${found.status}` }, say(`status.${found.status}`)),
    players, leader, countdown);
  async function refresh() {
    const { users: [best], totalUsers } = await read(board(found.UUID, "/top"), { limit: 1 });
    players.textContent = count("players", totalUsers);
    if (best) leader.replaceChildren(h("span", { class: "star", "aria-hidden": "true" }, "★"), " ", name(best));
  }
  refresh().catch(() => undefined);
  setInterval(() => document.visibilityState === "visible" && refresh().catch(() => undefined), REFRESH_MS);
  return element;
}
