// A click on a heading sorts the table by that column: first up, then down.
for (const heading of document.querySelectorAll("table.sortable th")) {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...heading.childNodes);
  heading.append(button);
  button.addEventListener("click", () => {
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const body = heading.closest("table").tBodies[0];
    const value = (row) => {
      const cell = row.cells[heading.cellIndex];
      return cell.dataset.value === undefined ? cell.textContent.trim() : Number(cell.dataset.value);
    };
    const compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    const rows = [...body.rows].sort((a, b) => compare(value(a), value(b)) * (up ? 1 : -1));
    body.append(...rows);
  });
}
