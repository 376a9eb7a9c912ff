// The top three. Changes of position are animated.

import { face, h, name } from "./dom.js";
import { number, say } from "./texts.js";

const MOVE = { duration: 700, easing: "cubic-bezier(.2, .8, .2, 1)" };
const still = matchMedia("(prefers-reduced-motion: reduce)");

export class Podium {
  constructor({ pick }) {
    this._pick = pick;
    this._steps = new Map();
    this.mine = null;
    this.element = h("ol", { class: "podium", "aria-label": say("podium") });
  }

  show(entries) {
    const before = new Map([...this._steps].map(([user, step]) => [user, step.element.getBoundingClientRect()]));
    const best = entries.slice(0, 3);
    for (const user of [...this._steps.keys()]) {
      if (!best.some((entry) => entry.userId === user)) this._steps.delete(user);
    }
    const elements = best.map((entry, index) => {
      const step = this._steps.get(entry.userId) ?? this._make(entry);
      this._steps.set(entry.userId, step);
      step.entry = entry;
      step.element.className = `step step-${index + 1} medal-${entry.rank}${entry.userId === this.mine ? " mine" : ""}`;
      step.rank.textContent = number(entry.rank);
      if (step.name.textContent !== name(entry)) this._rename(step, entry);
      step.score.textContent = number(entry.score);
      step.score.title = String(entry.score);
      return step.element;
    });
    if (elements.some((element, index) => this.element.children[index] !== element) || this.element.children.length !== elements.length) {
      this.element.replaceChildren(...elements);
    }
    if (still.matches) return;
    for (const [user, step] of this._steps) {
      const from = before.get(user);
      const to = step.element.getBoundingClientRect();
      if (!from) step.element.animate([{ opacity: 0, transform: "translateY(1rem)" }, { opacity: 1, transform: "none" }], MOVE);
      else if (from.left !== to.left || Math.abs(from.top - to.top) > 1) {
        step.element.animate([{ transform: `translate(${from.left - to.left}px, ${from.top - to.top}px)` }, { transform: "none" }], MOVE);
      }
    }
  }

  _make(entry) {
    const step = { entry };
    step.rank = h("span", { class: "rank" });
    step.name = h("span", { class: "name" });
    step.score = h("span", { class: "score" });
    step.face = face(entry);
    step.button = h("button", { type: "button", class: "pick", onclick: () => this._pick(step.entry) }, step.face, step.name);
    step.element = h("li", { "data-user": entry.userId }, step.button, step.score, h("span", { class: "block" }, step.rank));
    return step;
  }

  // The avatar and the tooltip depend on the name.
  _rename(step, entry) {
    step.name.textContent = name(entry);
    step.button.title = say("follow", { name: name(entry) });
    const fresh = face(entry);
    step.face.replaceWith(fresh);
    step.face = fresh;
  }
}
