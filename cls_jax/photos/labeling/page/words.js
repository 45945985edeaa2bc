// Words and numbers that several views say in the same way.

export function formatPercent(share) {
  return `${Math.round(100 * share)}%`;
}

export function formatCount(count, noun, plural = `${noun}s`) {
  return `${count.toLocaleString("en")} ${count === 1 ? noun : plural}`;
}

/** What a decision without a class is. */
export function describeDecision(decision) {
  return { none: "none of these", skip: "skipped" }[decision] ?? "no label";
}

/** What became of a class that was typed, and its photo no longer shown. */
export function describeUnsaved(text, name) {
  return `“${text}” was typed for ${name} and was not saved.`;
}
