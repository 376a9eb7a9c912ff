// The texts of the page in the user's language. Each language is one file in languages/.

let texts = {};
let code = "en";
let plurals = new Intl.PluralRules(code);
let numbers = new Intl.NumberFormat(code);
let percents = numbers;
let large = numbers;
let small = numbers;

export async function start(choose) {
  const languages = await (await fetch("/web/languages.json")).json();
  const asked = new URLSearchParams(location.search).get("lang");
  const liked = [asked, remembered(), ...navigator.languages].filter(Boolean);
  await use(liked.map((each) => each.split("-")[0]).find((each) => Object.hasOwn(languages, each)) ?? "en");
  if (asked === code) remember(code);
  choose.replaceChildren(...Object.entries(languages).map(([each, name]) => new Option(name, each, false, each === code)));
  choose.addEventListener("change", () => {
    remember(choose.value);
    const address = new URL(location.href);
    address.searchParams.delete("lang");
    location.replace(address);
  });
}

async function use(language) {
  const [chosen, english] = await Promise.all([language, "en"].map(async (each) => (await fetch(`/web/languages/${each}.json`)).json()));
  // English fills in for texts that a language lacks.
  texts = { ...english.texts, ...chosen.texts };
  code = language;
  plurals = new Intl.PluralRules(code);
  numbers = new Intl.NumberFormat(code, { maximumFractionDigits: 3 });
  large = new Intl.NumberFormat(code, { notation: "scientific", maximumSignificantDigits: 7 });
  small = new Intl.NumberFormat(code, { maximumSignificantDigits: 3 });
  percents = new Intl.NumberFormat(code, { style: "percent", maximumFractionDigits: 1 });
  document.documentElement.lang = code;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = say(element.dataset.text);
}

export function say(name, values = {}) {
  const text = texts[name] ?? name;
  return text.replace(/\{(\w+)\}/g, (whole, key) => (key in values ? values[key] : whole));
}

export function has(name) {
  return name in texts;
}

// "1 player", "2 players": in the plural form of the language.
export function count(name, n, values = {}) {
  const form = `${name}_${plurals.select(n)}`;
  return say(form in texts ? form : `${name}_other`, { n: number(n), ...values });
}

// Shows all digits of a number, as long as it fits into a row.
export function number(value) {
  const size = Math.abs(value);
  if (size >= 1e13) return large.format(value);
  return (size > 0 && size < 0.001 ? small : numbers).format(value);
}

export function percent(value) {
  return percents.format(value);
}

export function date(text) {
  return new Intl.DateTimeFormat(code, { dateStyle: "medium", timeStyle: "short" }).format(new Date(text));
}

function remembered() {
  try {
    return localStorage.getItem("laurels.language");
  } catch {
    return null;
  }
}

function remember(language) {
  try {
    localStorage.setItem("laurels.language", language);
  } catch {
    // The browser may block storage. Then the language is not remembered.
  }
}
