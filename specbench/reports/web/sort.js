"use strict";
// A click on a heading sorts its table: up, down, as it was. By the number that a cell begins with, such as 1.60 of
// "1.60 [1.59, 1.61]" or 10000 of "10,000"; then by text. Cells that hold nothing or a dash come last both ways.
function key(cell) {
  const text = cell.textContent.trim();
  if (text === "" || /^[-–](\s|$)/.test(text)) return null;
  if (/^-?infinite$/.test(text)) return text[0] === "-" ? -Infinity : Infinity;
  const number = /^[-+]?(\d[\d,]*(\.\d+)?|\.\d+)(e[-+]?\d+)?/i.exec(text);
  return number ? Number(number[0].replaceAll(",", "")) : text;
}

function compare(a, b) {
  if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
  return typeof a === "number" ? Math.sign(a - b) || 0 : a.localeCompare(b, "en", { numeric: true });
}

function sorted(rows, column, direction) {
  const keyed = rows.map((row) => [key(row.cells[column]), row]);
  keyed.sort(([a], [b]) => (a === null || b === null ? (a === null) - (b === null) : direction * compare(a, b)));
  return keyed.map(([, row]) => row);
}

for (const table of document.querySelectorAll("table")) {
  const body = table.tBodies[0] || table.createTBody();
  const first = Array.from(body.rows);
  table.querySelectorAll("th > button").forEach((button, column) => {
    const heading = button.parentElement;
    button.title = "Sort by this column";
    button.addEventListener("click", () => {
      const next = { ascending: "descending", descending: "none" }[heading.ariaSort] || "ascending";
      for (const other of heading.parentElement.cells) other.removeAttribute("aria-sort");
      if (next !== "none") heading.ariaSort = next;
      body.append(...(next === "none" ? first : sorted(first, column, next === "ascending" ? 1 : -1)));
    });
  });
}
