// A list of any length, of which only the visible rows are in the page. Rows are keyed by user id, so that a row moves
// smoothly when its position changes.

import { face, h, name } from "./dom.js";
import { number, say } from "./texts.js";

const OVERSCAN = 8;
const PAGE = 100;
const MARKED_MS = 6000;
// Browsers limit the height of an element to about 33 million pixels.
export const MOST_ROWS = 300_000;

export class Rows {
  // `first`: index of the first row. `load(offset, limit)` returns the entries from `offset` on. `pick(entry)` is called
  // when a name is selected.
  constructor({ first = 0, load = null, pick, label }) {
    this._first = first;
    this._load = load;
    this._pick = pick;
    this._live = [];
    this._pages = new Map();
    this._total = 0;
    this._shown = new Map();
    this._marks = new Map();
    this.mine = null;
    this.body = h("div", { class: "rows", role: "rowgroup" });
    this._measure = h("div", { class: "measure", "aria-hidden": "true" });
    this.element = h("div", { class: "table", role: "table", "aria-label": label },
      h("div", { role: "rowgroup", class: "rows-head" },
        h("div", { role: "row", class: "row head" },
          ...["rank", "change", "player", "score"].map((each) => h("span", { role: "columnheader", class: each }, say(each))))),
      this._measure, this.body);
    this._scrolled = () => this._plan();
    addEventListener("scroll", this._scrolled, { passive: true });
    addEventListener("resize", this._scrolled, { passive: true });
  }

  close() {
    removeEventListener("scroll", this._scrolled);
    removeEventListener("resize", this._scrolled);
  }

  // Shows the top entries, in order, of a list with `total` entries.
  show(entries, total) {
    const before = new Map(this._live.map((entry) => [entry.userId, entry.rank]));
    const until = Date.now() + MARKED_MS;
    for (const [user, mark] of this._marks) if (mark.until <= Date.now()) this._marks.delete(user);
    for (const entry of entries) {
      const was = before.get(entry.userId);
      if (was !== undefined && was !== entry.rank) this._marks.set(entry.userId, { by: was - entry.rank, until });
    }
    this._live = entries.slice();
    this._total = Math.min(total, MOST_ROWS);
    this._plan();
  }

  // Discards everything, because another ranking is shown next.
  clear() {
    this._live = [];
    this._pages.clear();
    this._marks.clear();
    this._total = 0;
    this._plan();
  }

  mark(entry) {
    const mark = this._marks.get(entry.userId);
    if (mark && mark.until > Date.now()) return mark.by;
    this._marks.delete(entry.userId);
    return 0;
  }

  // Reloads the visible rows that live updates do not cover.
  refresh() {
    const [from, to] = this._range();
    if (to <= this._live.length && !this._pages.size) return;
    for (const [page, held] of this._pages) {
      if (page * PAGE < to && (page + 1) * PAGE > from && page * PAGE + PAGE > this._live.length) held.old = true;
      else this._pages.delete(page);
    }
    this._plan();
  }

  // Row height depends on the font size, so an invisible row is measured.
  get rowHeight() {
    return this._measure.getBoundingClientRect().height || 48;
  }

  _plan() {
    this._planned ??= requestAnimationFrame(() => {
      this._planned = undefined;
      this._render();
    });
  }

  _range() {
    // A list without `load` is short, so all its rows are in the page.
    if (!this._load) return [this._first, Math.max(this._first, this._live.length)];
    const height = this.rowHeight;
    const top = this.body.getBoundingClientRect().top;
    const from = Math.floor(-top / height) - OVERSCAN;
    const to = Math.ceil((innerHeight - top) / height) + OVERSCAN;
    const end = Math.max(this._first, this._total);
    return [Math.min(end, Math.max(0, from) + this._first), Math.min(end, Math.max(0, to) + this._first)];
  }

  _entry(index) {
    if (index < this._live.length) return this._live[index];
    return this._pages.get(Math.floor(index / PAGE))?.entries[index % PAGE];
  }

  _render() {
    const height = this.rowHeight;
    const end = Math.max(this._first, this._load ? this._total : this._live.length);
    this.body.style.height = `${(end - this._first) * height}px`;
    this.element.setAttribute("aria-rowcount", this._total + 1);
    const [from, to] = this._range();
    const seen = new Set();
    for (let index = from; index < to; index += 1) {
      const entry = this._entry(index);
      const page = Math.floor(index / PAGE);
      // An entry that is missing from a loaded page is requested again at the next refresh, not before.
      if (index >= this._live.length && (!this._pages.has(page) || this._pages.get(page).old)) this._fetch(page);
      if (!entry) continue;
      if (seen.has(entry.userId)) continue;
      seen.add(entry.userId);
      this._place(entry, index, (index - this._first) * height);
    }
    for (const [user, row] of this._shown) {
      if (!seen.has(user)) {
        row.element.remove();
        this._shown.delete(user);
      }
    }
  }

  _place(entry, index, y) {
    let row = this._shown.get(entry.userId);
    if (!row) {
      row = this._make(entry);
      this._shown.set(entry.userId, row);
    }
    row.entry = entry;
    row.element.style.transform = `translateY(${y}px)`;
    row.element.setAttribute("aria-rowindex", index + 2);
    row.element.classList.toggle("mine", entry.userId === this.mine);
    row.rank.textContent = number(entry.rank);
    if (row.name.textContent !== name(entry)) this._rename(row, entry);
    row.score.textContent = number(entry.score);
    row.score.title = String(entry.score);
    const by = this.mark(entry);
    row.change.className = by > 0 ? "change up" : by < 0 ? "change down" : "change";
    row.change.replaceChildren(...(by ? [
      h("span", { "aria-hidden": "true" }, `${by > 0 ? "▲" : "▼"}${number(Math.abs(by))}`),
      h("span", { class: "hidden" }, say(by > 0 ? "up" : "down", { n: number(Math.abs(by)) })),
    ] : []));
    row.element.classList.toggle("rising", by > 0);
    if (!row.element.isConnected) this.body.append(row.element);
    if (by) this._fading ??= setTimeout(() => {
      this._fading = undefined;
      this._plan();
    }, MARKED_MS);
  }

  _make(entry) {
    const row = {
      entry,
      rank: h("span", { class: "rank", role: "cell" }),
      change: h("span", { class: "change", role: "cell" }),
      name: h("span", { class: "name" }),
      score: h("span", { class: "score", role: "cell" }),
    };
    row.face = face(entry);
    row.button = h("button", { type: "button", class: "pick", onclick: () => this._pick(row.entry) }, row.face, row.name);
    row.element = h("div", { class: "row", role: "row", "data-user": entry.userId },
      row.rank, row.change, h("span", { class: "player", role: "cell" }, row.button), row.score);
    return row;
  }

  // The avatar and the tooltip depend on the name.
  _rename(row, entry) {
    row.name.textContent = name(entry);
    row.button.title = say("follow", { name: name(entry) });
    const fresh = face(entry);
    row.face.replaceWith(fresh);
    row.face = fresh;
  }

  async _fetch(page) {
    const held = this._pages.get(page);
    if (!this._load || held?.loading) return;
    if (held) Object.assign(held, { loading: true, old: false });
    else this._pages.set(page, { entries: [], loading: true, old: false });
    const kept = this._pages.get(page);
    try {
      kept.entries = await this._load(page * PAGE, PAGE);
      if (this._pages.get(page) === kept) this._plan();
    } catch {
      // Retried at the next refresh.
    } finally {
      kept.loading = false;
    }
  }
}
