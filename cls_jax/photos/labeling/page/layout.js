// Where the photos of a grid are: rows of equal cells below the titles of their sections, in pixels.

/**
 * The rows of sections: { top, height, first, count }, or { top, height, title } above a section.
 * `rowOf` has the row of each photo, by its place among all of them.
 */
export function lay(sections, { columns, height, head, gap }) {
  const rows = [];
  const rowOf = [];
  let top = 0;
  for (const { title, items } of sections) {
    if (title) {
      rows.push({ top, height: head, title });
      top += head;
    }
    for (let start = 0; start < items.length; start += columns) {
      const count = Math.min(columns, items.length - start);
      const row = { top, height, first: rowOf.length, count };
      for (let i = 0; i < count; i++) rowOf.push(rows.length);
      rows.push(row);
      top += height + gap;
    }
  }
  return { rows, rowOf, height: top };
}

/** The last row that begins above a height. */
export function findRow(rows, y) {
  let [low, high] = [0, rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rows[middle].top <= y) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}

/** The photo above or below another one, by so many rows of photos, or the last one on the way. */
export function findBeside({ rows, rowOf }, i, steps) {
  const step = Math.sign(steps);
  const column = i - rows[rowOf[i]].first;
  let found = rowOf[i];
  for (let left = Math.abs(steps), row = found + step; left && rows[row]; row += step) {
    if (rows[row].title) continue;
    found = row;
    left -= 1;
  }
  return found === rowOf[i] ? i : rows[found].first + Math.min(column, rows[found].count - 1);
}

/** The places of the photos that a rectangle touches, whose cells are `cell` wide. */
export function findInside({ rows }, { left, right, top, bottom }, cell, gap) {
  return rows.slice(Math.max(0, findRow(rows, top)), findRow(rows, bottom) + 1).flatMap((row) => {
    if (row.title || row.top + row.height < top) return [];
    const places = Array.from({ length: row.count }, (_, column) => column);
    const touched = places.filter((column) => column * (cell + gap) <= right && column * (cell + gap) + cell >= left);
    return touched.map((column) => row.first + column);
  });
}
