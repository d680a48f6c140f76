// Numbers and answers as people read them.

const UNITS = [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];

/** 4358144 -> "4.2 MiB"; whole numbers from 100 on and where nothing is lost. */
export function bytes(count) {
  const [unit, size] = UNITS.find(([, size]) => count >= size) ?? ["bytes", 1];
  const value = count / size;
  const digits = value >= 100 || Number.isInteger(value) ? 0 : 1;
  return `${value.toFixed(digits)} ${unit}`;
}

/** Tokens a second. */
export function rate(value) {
  if (!Number.isFinite(value) || value <= 0) return "–";
  return value.toFixed(value >= 100 ? 0 : 1);
}

/** "<think>a</think>b" -> {reasoning: "a", answer: "b"}, also while it grows. */
export function parted(text) {
  const start = text.trimStart();
  if (!start.startsWith("<think>")) return {reasoning: "", answer: text};
  const [reasoning, ...rest] = start.slice("<think>".length).split("</think>");
  return {reasoning: reasoning.trim(), answer: rest.join("</think>").trimStart()};
}

/** Elements for an answer: paragraphs, and code between fences. */
export function blocks(text) {
  return text.split(/^```[^\n]*$/m).flatMap((part, i) => {
    if (i % 2) return [element("pre", [element("code", [part.replace(/^\n|\n$/g, "")])])];
    const paragraphs = part.split(/\n{2,}/).map(p => p.replace(/^\n+|\n+$/g, ""));
    return paragraphs.filter(p => p).map(p => element("p", inline(p)));
  });
}

/** A line's text and elements: `code` and **strong** text. */
export function inline(text) {
  return text.split(/(`[^`\n]+`|\*\*[^*\n]+\*\*)/).map((part, i) => {
    if (i % 2 === 0) return part;
    return part[0] === "`" ? element("code", [part.slice(1, -1)]) : element("strong", [part.slice(2, -2)]);
  });
}

/** An element with children, and properties. */
export function element(name, children = [], properties = {}) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}
