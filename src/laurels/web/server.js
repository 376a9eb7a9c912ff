// Calls to the server: reads and live updates.

const SILENCE_MS = 40_000;
const FIRST_PAUSE_MS = 300;
const LONGEST_PAUSE_MS = 5_000;
// WebSocket close codes are 4000 + the HTTP status of the problem. These ones are temporary, so reconnect.
const PASSES = new Set([4408, 4429, 4500, 4503]);

let ahead = 0;

// The server's time, estimated from the Date header of its responses.
export function now() {
  return Date.now() + ahead;
}

export class Problem extends Error {
  constructor(problem) {
    super(problem.detail);
    this.status = problem.status;
    this.code = problem.code;
  }
}

export function board(uuid, rest = "") {
  return `/api/v1/leaderboards/${encodeURIComponent(uuid)}${rest}`;
}

export async function read(path, query = {}) {
  const response = await fetch(`${path}?${parameters(query)}`, { headers: { Accept: "application/json" } });
  const told = Date.parse(response.headers.get("Date") ?? "");
  // The header has a resolution of one second, so smaller differences are ignored.
  if (told && Math.abs(told - now()) > 1500) ahead = told - Date.now();
  // The body is incomplete if the connection was lost meanwhile, and no JSON if a proxy answered.
  const body = await response.json().catch(() => null);
  if (body === null) throw new Problem({ status: response.status, code: "internal", detail: response.statusText });
  if (!response.ok) throw new Problem(body);
  return body;
}

function parameters(query) {
  return new URLSearchParams(Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== ""));
}

// Live updates of a board. Calls `changed(view, frame)` after each frame, `connected(yes)` when the connection is made or
// lost, and `ended(problem)` when it will not reconnect.
export class Live {
  constructor(uuid, query, hear) {
    this.views = {};
    this._uuid = uuid;
    this._query = query;
    this._hear = hear;
    this._pause = FIRST_PAUSE_MS;
    this._over = false;
    this._connect();
  }

  close() {
    this._over = true;
    clearTimeout(this._again);
    clearTimeout(this._silence);
    this._socket?.close();
  }

  _connect() {
    const after = Object.values(this.views).map((view) => view.id).join(",");
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}${board(this._uuid, "/live")}?${parameters({ ...this._query, after })}`);
    this._socket = socket;
    this._wait();
    socket.onmessage = (event) => this._socket === socket && this._take(JSON.parse(event.data));
    socket.onclose = (event) => this._socket === socket && this._closed(event.code);
  }

  _take(frame) {
    this._wait();
    if (frame.type === "problem") {
      // The server closes the connection next. `_closed` decides whether and when to reconnect.
      this._problem = frame.problem;
      return;
    }
    this._pause = FIRST_PAUSE_MS;
    this._hear.connected(true);
    if (frame.type === "heartbeat") return;
    const view = (this.views[frame.view] ??= { users: [], sequence: 0 });
    if (frame.type === "changes") {
      if (frame.sequence !== view.sequence + 1) {
        // A frame is missing, so reconnect and load the whole view.
        this.views = {};
        this._lose();
        return;
      }
      for (const { position, ...entry } of frame.rows) view.users[position] = entry;
      view.users.length = frame.length;
    } else {
      view.users = frame.users;
    }
    view.board = frame.board ?? view.board;
    Object.assign(view, { id: frame.id, sequence: frame.sequence, totalUsers: frame.totalUsers, degraded: frame.degraded ?? false });
    this._hear.changed(frame.view, frame);
  }

  // Heartbeats are more frequent than SILENCE_MS, so a longer silence means that the connection is lost.
  _wait() {
    clearTimeout(this._silence);
    this._silence = setTimeout(() => this._lose(), SILENCE_MS);
  }

  _lose() {
    const socket = this._socket;
    this._socket = null;
    socket?.close();
    this._closed(1006);
  }

  _closed(code) {
    clearTimeout(this._silence);
    if (this._over) return;
    if (code >= 4000 && !PASSES.has(code)) {
      this._over = true;
      this._hear.ended(this._problem);
      return;
    }
    this._hear.connected(false);
    this._again = setTimeout(() => this._connect(), this._pause * (0.5 + Math.random()));
    this._pause = Math.min(LONGEST_PAUSE_MS, this._pause * 2);
  }
}
