// A countdown to a point in time, by the server's clock.

import { h } from "./dom.js";
import { now } from "./server.js";
import { say } from "./texts.js";

export class Countdown {
  constructor(end, label) {
    this._end = Date.parse(end);
    this._time = h("time", { datetime: end });
    this.element = h("span", { class: "countdown" }, h("span", { class: "quiet" }, label), " ", this._time);
    this._tick();
  }

  close() {
    clearTimeout(this._next);
  }

  _tick() {
    const left = Math.max(0, Math.ceil((this._end - now()) / 1000));
    const days = Math.floor(left / 86400);
    const clock = [Math.floor(left / 3600) % 24, Math.floor(left / 60) % 60, left % 60].map((part) => String(part).padStart(2, "0")).join(":");
    this._time.textContent = days ? `${say("days", { n: days })} ${clock}` : clock;
    // Stop when the element is no longer in the page.
    this._next = setTimeout(() => this.element.isConnected && this._tick(), 1000 - ((now() - this._end) % 1000 + 1000) % 1000);
  }
}
