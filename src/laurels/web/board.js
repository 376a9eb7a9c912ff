// The page of a board: podium, live list, own row, windows and segments, past rounds, score distribution.

import { Countdown } from "./countdown.js";
import { h, name } from "./dom.js";
import { plot } from "./plot.js";
import { Podium } from "./podium.js";
import { MOST_ROWS, Rows } from "./rows.js";
import { Live, board, read } from "./server.js";
import { tabs } from "./tabs.js";
import { count, date, has, number, percent, say } from "./texts.js";

const wide = matchMedia("(min-width: 70rem)");
const LIVE_ROWS = 100;
const DEEP_MS = 2000;
const PLOT_MS = 10_000;
const FINISHING_MS = 3000;
const BUCKETS = 24;
const NEIGHBOURS = 3;
const NOTED_MS = 8000;

export async function boardPage(main, uuid) {
  const found = await read(board(uuid));
  new BoardPage(main, found).open();
}

class BoardPage {
  constructor(main, found) {
    this.found = found;
    this.uuid = found.UUID;
    const asked = new URLSearchParams(location.search);
    const names = found.windows.map((each) => (typeof each === "string" ? each : each.window));
    this.names = names;
    this.window = names.includes(asked.get("window")) ? asked.get("window") : names[0];
    this.segment = asked.get("segment") ?? "global";
    this.period = asked.get("period");
    this.me = asked.get("me");
    this.wall = asked.has("wall");

    this.title = h("h1", {}, found.name);
    this.state = h("span", { class: "state", role: "status" }, say("loading"));
    this.badge = h("span", { class: "badge" });
    this.players = h("span", { class: "quiet players" });
    this.clock = h("span", { class: "clock" });
    this.notice = h("p", { class: "notice", role: "status", "aria-live": "polite" });
    this.windowTabs = h("div");
    this.segmentTabs = h("div");
    this.podium = new Podium({ pick: (entry) => this.follow(entry) });
    this.rows = new Rows({
      first: 3,
      label: say("ranking"),
      pick: (entry) => this.follow(entry),
      load: async (offset, limit) => (await read(board(this.uuid, "/top"), { ...this.selection, offset, limit })).users,
    });
    // Hidden until there are rows to show.
    this.rows.element.hidden = true;
    this.nobody = h("p", { class: "empty", hidden: true }, say("empty"));
    this.limited = h("p", { class: "quiet", hidden: true }, say("limited", { n: number(MOST_ROWS) }));
    this.around = new Rows({ label: say("me"), pick: (entry) => this.follow(entry) });
    this.own = h("section", { class: "panel own", "aria-labelledby": "own-title" });
    // Shown on a phone while the panel is not visible.
    this.ownLine = h("button", { type: "button", class: "own-line", hidden: true, onclick: () => this.own.scrollIntoView({ block: "start" }) });
    new IntersectionObserver(([seen]) => {
      this.ownSeen = seen.isIntersecting;
      this._showOwnLine();
    }).observe(this.own);
    // Collapsed on a phone, where the list comes first.
    this.picture = h("div");
    this.spread = h("details", { class: "panel spread", open: wide.matches }, h("summary", {}, h("h2", {}, say("distribution"))), this.picture);
    this.past = h("div");
    this.seasons = h("details", { class: "panel seasons", open: wide.matches }, h("summary", {}, h("h2", { id: "seasons-title" }, say("seasons"))), this.past);
    this.results = h("div", { class: "results" });
    this.field = h("input", { id: "search", type: "search", maxlength: 256, autocomplete: "off", spellcheck: "false", placeholder: say("search") });

    document.body.classList.toggle("wall", this.wall);
    main.replaceChildren(
      h("p", { class: "crumb" }, h("a", { href: "/" }, `← ${say("back")}`)),
      h("div", { class: "title" }, this.title, this.badge, this.state, h("span", { class: "grow" }), this.players, this.clock),
      h("div", { class: "choices" }, this.windowTabs, this.segmentTabs),
      this.notice,
      h("div", { class: "columns" },
        h("div", { id: "ranking", role: "tabpanel", "aria-label": say("ranking"), class: "ranking" }, this.podium.element, this.nobody, this.rows.element, this.limited),
        h("aside", { class: "side", "aria-label": say("me") }, this._search(), this.own, this.spread, this.seasons)),
      this.ownLine);
    addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.ctrlKey || event.metaKey || /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)) return;
      event.preventDefault();
      this.field.focus();
    });
  }

  get selection() {
    return { window: this.window, period: this.period, segment: this.segment };
  }

  open() {
    this._showChoices();
    this._showOwn();
    this._subscribe();
    this._loadSeasons();
    setInterval(() => document.visibilityState === "visible" && this.rows.refresh(), DEEP_MS);
    setInterval(() => document.visibilityState === "visible" && this._plotOld && this._plot(), PLOT_MS);
  }

  // Changing the view.

  look(change) {
    Object.assign(this, change);
    const address = new URL(location.href);
    for (const each of ["window", "segment", "period", "me"]) {
      const usual = { window: this.names[0], segment: "global" }[each] ?? null;
      if (this[each] === usual) address.searchParams.delete(each);
      else address.searchParams.set(each, this[each]);
    }
    history.replaceState(null, "", address);
    clearTimeout(this._noted);
    this.notice.replaceChildren();
    this.notice.classList.remove("bad");
    if (!("me" in change)) {
      this.rows.clear();
      this.podium.show([]);
    }
    this._showChoices();
    this._showOwn();
    this._subscribe();
    if ("window" in change) this._loadSeasons();
  }

  follow(entry) {
    this._follow(entry.userId === this.me ? null : entry.userId);
  }

  _follow(me) {
    this.results.replaceChildren();
    this.look({ me });
  }

  _subscribe() {
    this.live?.close();
    const query = { ...this.selection, limit: LIVE_ROWS };
    if (this.me !== null) Object.assign(query, { userId: this.me, above: NEIGHBOURS, below: NEIGHBOURS });
    this._drawn = undefined;
    this._shownPeriod = undefined;
    this._plotOld = true;
    this.live = new Live(this.uuid, query, {
      changed: (view, frame) => (view === "top" ? this._showTop(frame) : this._showAround()),
      connected: (yes) => this._connected(yes),
      ended: (problem) => this._ended(problem),
    });
  }

  _connected(yes) {
    this.isConnected = yes;
    this._showState();
  }

  _ended(problem) {
    this.state.textContent = "";
    this.state.className = "state";
    clearTimeout(this._noted);
    const again = h("button", { type: "button", onclick: () => this.look({ window: this.names[0], period: null, segment: "global" }) }, say("seasons.current"));
    this.notice.replaceChildren(problem ? say("problem", { detail: problem.detail }) : say("gone"), " ", again);
    this.notice.classList.add("bad");
  }

  _note(text) {
    this.notice.textContent = text;
    clearTimeout(this._noted);
    this._noted = setTimeout(() => this.notice.replaceChildren(), NOTED_MS);
  }

  _showState() {
    const view = this.live.views.top;
    const final = this.period !== null;
    const running = view?.board?.status === "ACTIVE";
    const [text, kind] = !this.isConnected ? [say("reconnecting"), "lost"]
      : view?.degraded ? [say("degraded"), "lost"]
        : final ? [`${say("final")} · ${view?.board?.period ?? ""}`, "final"]
          : running ? [say("live"), "on"] : ["", ""];
    if (this.state.textContent !== text) this.state.textContent = text;
    this.state.className = `state ${kind}`;
  }

  _showTop(frame) {
    const { users, totalUsers, board: told } = this.live.views.top;
    // Compared even without a reset frame, which can be missed while there is no connection.
    const isNew = this._shownPeriod !== undefined && this._shownPeriod !== told.period;
    this._shownPeriod = told.period;
    if (frame.type === "reset" || isNew) {
      this.rows.clear();
      this._note(say("newPeriod"));
      this._loadSeasons();
      this._drawn = undefined;
    }
    if (this.rows.mine !== this.me) this.rows.mine = this.podium.mine = this.me;
    this.rows.show(users, totalUsers);
    this.podium.show(users);
    this.nobody.hidden = totalUsers > 0;
    this.rows.element.hidden = totalUsers <= 3;
    this.limited.hidden = totalUsers <= MOST_ROWS;
    this.players.textContent = count("players", totalUsers);
    if (this.title.textContent !== told.name) this.title.textContent = told.name;
    document.title = `${told.name} · Laurels`;
    this.badge.textContent = say(`status.${told.status}`);
    this.badge.className = `badge ${told.status}`;
    this.badge.hidden = this.period !== null;
    this.nobody.textContent = say(this.segment === "global" ? "empty" : "empty.segment", { segment: this.segment });
    this._showClock(told);
    this._showState();
    this._plotOld = true;
    if (this._drawn === undefined) this._plot();
  }

  _showClock(told) {
    const [end, label] = this.period !== null ? [null]
      : told.status === "SCHEDULED" ? [told.startTime, "starts"]
        : told.status === "ACTIVE" ? [told.endTime, told.window === "all" ? "ends" : "reset"] : [null];
    if (`${end} ${label}` === this._end) return;
    this._end = `${end} ${label}`;
    this._countdown?.close();
    this._countdown = end === null ? null : new Countdown(end, say(label));
    this.clock.replaceChildren(...(this._countdown ? [this._countdown.element] : []));
  }

  // The user's own row.

  _showOwn() {
    this.rank = null;
    this.around.mine = this.me;
    this.around.clear();
    this.place = h("p", { class: "quiet place" });
    this.ownTitle = h("h2", { id: "own-title" }, say("me"));
    const title = this.ownTitle;
    this.own.classList.toggle("hint", this.me === null);
    if (this.me === null) {
      this.own.replaceChildren(title, h("p", { class: "quiet" }, say("me.hint")));
      return;
    }
    const stop = h("button", { type: "button", class: "quiet", onclick: () => this.look({ me: null }) }, say("me.stop"));
    this.own.replaceChildren(h("div", { class: "panel-head" }, title, stop), this.place, this.around.element);
  }

  _showAround() {
    const { users, totalUsers } = this.live.views.around;
    const mine = users.find((entry) => entry.userId === this.me);
    this.around.show(users, users.length);
    this.around.element.hidden = !mine;
    if (!mine) {
      this.place.textContent = say("me.none", { name: this.me });
      this.rank = null;
      this._showOwnLine();
      return;
    }
    this.ownTitle.textContent = name(mine);
    this.place.textContent = totalUsers > 1 ? say("me.place", { percent: percent(mine.rank / totalUsers) }) : "";
    if (this.rank !== null && this.rank !== mine.rank) this._note(say("me.now", { name: name(mine), rank: number(mine.rank) }));
    this.rank = mine.rank;
    this.score = mine.score;
    this.ownLine.replaceChildren(h("strong", {}, number(mine.rank)), ` ${name(mine)} `, h("span", {}, number(mine.score)));
    this._showOwnLine();
    this._plotOld = true;
    if (this._drawn !== undefined && this._drawn !== this.me) this._plot();
  }

  _showOwnLine() {
    this.ownLine.hidden = this.ownSeen || this.rank === null || this.me === null;
  }

  // Windows and segments.

  _showChoices() {
    const windows = this.names.map((each) => ({ value: each, text: has(`window.${each}`) ? say(`window.${each}`) : each }));
    const focused = document.activeElement?.closest("[role=tablist]")?.parentElement;
    this.windowTabs.replaceChildren(...(windows.length > 1 ? [tabs(say("windows"), "ranking", windows, this.window, (window) => this.look({ window, period: null }))] : []));
    const kinds = this.found.segments;
    const [kind, id] = this.segment.split(/:(.*)/s);
    const segments = kinds.map((each) => ({ value: each, text: each === kind && id ? `${say(`segment.${each}`)}: ${id}` : say(`segment.${each}`) }));
    this.segmentTabs.replaceChildren(...(kinds.length > 1 ? [tabs(say("segments"), "ranking", segments, kind, (each) => this._chooseSegment(each))] : []));
    focused?.querySelector("[aria-selected=true]")?.focus();
  }

  async _chooseSegment(kind) {
    if (kind === "global") {
      this.look({ segment: "global" });
      return;
    }
    // The API lists regions; there can be too many circles to list.
    const { regions } = kind === "region" ? await read(board(this.uuid, "/regions"), { window: this.window }).catch(() => ({ regions: [] })) : { regions: [] };
    const field = regions.length
      ? h("select", { name: "id", onchange: () => this.look({ segment: `${kind}:${field.value}` }) },
        h("option", { value: "" }, "…"),
        ...regions.map((each) => h("option", { value: each.segment.slice(kind.length + 1) }, `${each.segment.slice(kind.length + 1)} · ${count("players", each.totalUsers)}`)))
      : h("input", { name: "id", maxlength: 64, required: true, pattern: "[A-Za-z0-9][A-Za-z0-9._\\-]*", autocomplete: "off" });
    const form = h("form", {
      class: "segment-form",
      onsubmit: (event) => {
        event.preventDefault();
        this.look({ segment: `${kind}:${field.value}` });
      },
    }, h("label", {}, say("segment.name", { kind: say(`segment.${kind}`) }), " ", field), regions.length ? null : h("button", {}, say("segment.choose")));
    this._showChoices();
    form.addEventListener("keydown", (event) => event.key === "Escape" && this._showChoices());
    this.segmentTabs.append(form);
    field.focus();
  }

  // Search, past rounds and score distribution.

  _search() {
    return h("search", { class: "panel" },
      h("form", { class: "search", onsubmit: (event) => this._find(event) },
        h("label", { for: "search" }, say("search")),
        h("div", { class: "search-line" }, this.field, h("button", {}, say("search.go")))),
      this.results);
  }

  async _find(event) {
    event.preventDefault();
    const asked = this.field.value.trim();
    if (!asked) return;
    let found = [];
    try {
      ({ users: found } = await read(board(this.uuid, "/search"), { ...this.selection, q: asked }));
      if (asked !== this.field.value.trim()) return;
    } catch (error) {
      this.results.replaceChildren(h("p", { role: "status" }, say("problem", { detail: error.message })));
      return;
    }
    const told = found.length ? count("search.found", found.length) : say("search.none", { name: asked });
    this.results.replaceChildren(h("p", { role: "status", class: "quiet" }, told),
      h("ul", { class: "plain" }, ...found.map((entry) => h("li", {},
        h("button", { type: "button", class: "result", "aria-label": say("follow", { name: name(entry) }), onclick: () => this._follow(entry.userId) },
          h("span", { class: "rank" }, number(entry.rank)), h("span", { class: "name" }, name(entry)), h("span", { class: "score" }, number(entry.score)))))));
  }

  async _loadSeasons() {
    this.seasons.hidden = this.window === "all";
    if (this.seasons.hidden) return;
    const asked = this.window;
    const { periods } = await read(board(this.uuid, "/periods"), { window: asked, limit: 200 }).catch(() => ({ periods: null }));
    // Ignore the response if the window has changed.
    if (asked !== this.window) return;
    // Ask again if the call failed, or if a period is closing: it becomes final soon.
    clearTimeout(this._finishing);
    if (periods === null || periods.some((period) => period.status === "CLOSING")) {
      this._finishing = setTimeout(() => this._loadSeasons(), FINISHING_MS * (1 + Math.random()));
    }
    // Don't replace the list while the user is choosing from it.
    if (periods === null || document.activeElement?.id === "season") return;
    const past = periods.filter((period) => period.status === "FINAL");
    if (!past.length) {
      this.past.replaceChildren(h("p", { class: "quiet" }, say("seasons.none")));
      return;
    }
    const select = h("select", { id: "season", "aria-labelledby": "seasons-title", onchange: () => this.look({ period: select.value || null }) },
      h("option", { value: "" }, say("seasons.current")),
      ...past.map((period) => h("option", { value: period.period, selected: period.period === this.period }, `${period.period} · ${period.endTime ? date(period.endTime) : ""} · ${count("players", period.totalUsers ?? 0)}`)));
    this.past.replaceChildren(select);
  }

  async _plot() {
    this._plotOld = false;
    this._drawn = this.me;
    const drawn = this.selection;
    const spread = await read(board(this.uuid, "/distribution"), { ...drawn, buckets: BUCKETS }).catch(() => null);
    if (spread === null || JSON.stringify(drawn) !== JSON.stringify(this.selection)) return;
    const open = this.picture.querySelector("details")?.open ?? false;
    this.spread.hidden = spread.buckets.length === 0;
    if (this.spread.hidden) return;
    const picture = plot(spread, this.rank === null ? null : this.score);
    if (open) picture.querySelector?.("details")?.setAttribute("open", "");
    this.picture.replaceChildren(picture);
  }
}
