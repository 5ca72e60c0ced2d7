// Filters the rows of the table below an input.table-filter. Without JavaScript the input stays hidden.
for (const input of document.querySelectorAll("input.table-filter")) {
  const rows = [...document.querySelectorAll(".md-content tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  input.hidden = false;
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/);
    rows.forEach((row, i) => { row.hidden = !words.every((word) => texts[i].includes(word)); });
  });
}
