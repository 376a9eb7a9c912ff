// Creates elements in one line: h("p", { class: "quiet", onclick }, "text", child).

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  set(element, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  set(element, attributes);
  element.append(...children);
  return element;
}

function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
}

export function name(entry) {
  return entry.displayName ?? entry.userId;
}

// An avatar: the first letter of the name, in a color derived from the user id. Images would mean requests to other
// servers.
export function face(entry) {
  const letters = [...name(entry).normalize()].filter((letter) => /[\p{L}\p{N}]/u.test(letter));
  let hue = 0;
  for (const letter of entry.userId) hue = (hue * 31 + letter.codePointAt(0)) % 360;
  const element = h("span", { class: "face", "aria-hidden": "true" }, (letters[0] ?? [...name(entry)][0] ?? "?").toUpperCase());
  element.style.setProperty("--hue", (hue * 137) % 360);
  return element;
}
