// The names of classes, compared as the server compares them.

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

/** The class of exactly that name, however it is spelled, or undefined. */
export function findClass(classes, typed) {
  const wanted = fold(typed);
  return classes.find(({ name }) => fold(name) === wanted);
}
