// The names of classes: compared as the server compares them, and what Enter does with what was typed.

/** What equal names of classes have in common, as `fold_class` in names.py: in case, width and spaces. */
export function fold(name) {
  const visible = name.replace(/[\p{Cf}\uFE00-\uFE0F]/gu, "");
  const usual = visible.replace(/[\u3000\uFF01-\uFFEE]/gu, (character) => character.normalize("NFKC"));
  const folded = [...usual.normalize("NFC")].map(foldCase).join("").normalize("NFC");
  return folded.split(/\s+/).join(" ").trim().replace(/^([+-]?\d+)\.0+$/, "$1");
}

/** Of one letter: "ß" is "ss", as in its upper case. */
function foldCase(letter) {
  return letter === "ı" ? letter : letter.toLowerCase().toUpperCase().toLowerCase();
}

/**
 * What one Enter does with what was typed: { kind, name, begun }. It can "take" the class `name` of
 * exactly this name, "add" a class if none begins so, or "mark" the only one that does. Among several,
 * which are `begun`, it would have to "guess" and does nothing.
 */
export function interpret(typed, names) {
  const wanted = fold(typed);
  const begun = names.filter((name) => fold(name).startsWith(wanted));
  const same = begun.find((name) => fold(name) === wanted);
  if (same !== undefined) return { kind: "take", name: same, begun };
  if (!begun.length) return { kind: "add", name: typed, begun };
  return { kind: begun.length > 1 ? "guess" : "mark", name: begun[0], begun };
}

/** The longest text that begins all classes which begin as what was typed. */
export function complete(typed, names) {
  const { begun } = interpret(typed, names);
  let text = begun[0] ?? typed;
  while (!begun.every((name) => fold(name).startsWith(fold(text)))) text = text.slice(0, -1);
  return fold(text) === fold(typed) ? typed : text;
}

/** The classes that begin as what was typed, then those that contain it. */
export function search(typed, names) {
  const wanted = fold(typed);
  const rank = (name) => (fold(name) === wanted ? 0 : fold(name).startsWith(wanted) ? 1 : 2);
  return names.filter((name) => fold(name).includes(wanted)).sort((a, b) => rank(a) - rank(b));
}
