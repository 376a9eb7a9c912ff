// Starts the page: sets the language and the theme, and shows the page for the URL.

import { home } from "./home.js";
import { boardPage } from "./board.js";
import { h } from "./dom.js";
import { say, start } from "./texts.js";

const THEMES = ["auto", "light", "dark"];

function themes(button) {
  let theme = "auto";
  try {
    theme = localStorage.getItem("laurels.theme") ?? "auto";
  } catch {
    // The browser may block storage.
  }
  function use(next) {
    theme = THEMES.includes(next) ? next : "auto";
    document.documentElement.dataset.theme = theme;
    button.textContent = { auto: "◐", light: "☀", dark: "☾" }[theme];
    button.setAttribute("aria-label", say(`theme.${theme}`));
    button.title = say(`theme.${theme}`);
    try {
      localStorage.setItem("laurels.theme", theme);
    } catch {
      // Without storage, the theme lasts until the page is reloaded.
    }
  }
  button.addEventListener("click", () => use(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]));
  use(theme);
}

async function run() {
  const main = document.getElementById("main");
  const [, uuid] = location.pathname.match(/^\/boards\/([^/]+)$/) ?? [];
  try {
    await start(document.getElementById("language"));
    themes(document.getElementById("theme"));
    await (uuid === undefined ? home(main) : boardPage(main, decodeURIComponent(uuid)));
  } catch (error) {
    const gone = error.status === 401 || error.status === 404;
    main.replaceChildren(h("h1", { class: "hidden" }, "Laurels"), h("p", { class: "empty", role: "alert" }, gone ? say("gone") : say("problem", { detail: error.message })),
      h("p", { class: "empty" }, h("a", { href: "/" }, say("back"))));
  }
}

run();
