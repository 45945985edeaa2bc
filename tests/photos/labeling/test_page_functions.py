"""What the page decides before it draws: for which photos the keys are, and what comes of a key."""

import unicodedata

from cls_jax.photos.folder.names import fold_class

# Events → verdicts, with what is known of the earlier ones.
JUDGE = """({ decide, START }, cases) => {
  const judge = ([verdicts, memory], event) => {
    const found = decide(event, memory);
    return [[...verdicts, found.verdict], found.memory];
  };
  return cases.map((events) => events.reduce(judge, [[], START])[0]);
}"""
# Steps on four photos → the images that the keys are for after each, and whether a ring says so.
CHOOSE = """(selection, cases) => {
  const follow = ([all, value], [step, ...rest]) => {
    const next = selection[step](value, ...rest);
    return [[...all, [selection.getTargets(next), next.hasRing && !next.selected.size]], next];
  };
  const start = selection.start([10, 11, 12, 13]);
  return cases.map((steps) => steps.reduce(follow, [[], start])[0]);
}"""


def press(key, time, **properties):
    return {"type": "keydown", "key": key, "time": time, "on": ""} | properties


def click(button, time, x=0, **properties):
    return {"type": "click", "button": button, "time": time, "x": x, "y": 0} | properties


def test_the_ring_and_the_selection_are_one_value_that_says_for_which_photos_the_keys_are(
    call_module,
):
    cases = [
        ([["toggle", 1], ["toggle", 1]], [[11], []]),  # A mouse selects, and takes out again.
        ([["toggle", 1], ["toggle", 2], ["clear"]], [[11], [11, 12], []]),
        ([["move", 1], ["toggle", 1, True], ["toggle", 1, True]], [[11], [11], [11]]),  # Space.
        ([["move", 0], ["stretch", 2], ["stretch", 1]], [[10], [10, 11, 12], [10, 11]]),
        ([["move", 9], ["clear"], ["clear"]], [[13], [], []]),  # Esc takes the ring away, too.
        ([["move", 2], ["select", [10, 13]], ["clear"], ["clear"]], [[12], [10, 13], [12], []]),
        ([["move", 1], ["toggle", 3], ["stretch", 2]], [[11], [13], [12, 13]]),
        (
            [["select", [10, 11]], ["move", 3], ["stretch", 2]],
            [[10, 11], [10, 11], [10, 11, 12, 13]],
        ),
    ]
    found = call_module("selection.js", CHOOSE, [steps for steps, _ in cases])
    for (steps, expected), values in zip(cases, found, strict=True):
        assert [targets for targets, _ in values] == expected, steps
        # Where none is selected, a key is for the photo with the ring, or for none.
        assert all(len(targets) == 1 or not has_ring for targets, has_ring in values)


def test_photos_that_are_no_longer_shown_are_not_chosen(call_module):
    code = "({ start, getTargets }, cases) => cases.map((one) => getTargets(start(...one)))"
    cases = [[[1, 2], {"selected": [2, 7], "hasRing": True}], [[], {"hasRing": True}], [[5], {}]]
    assert call_module("selection.js", code, cases) == [[2], [], []]


def test_what_becomes_of_a_key_or_a_click_after_others(call_module):
    cases = [
        # A second click in the same place, or on the same button, means the same.
        ([click("a", 0), click("a", 500), click("a", 700)], ["pass", "drop", "pass"]),
        ([click("a", 0), click("b", 100, x=5)], ["pass", "drop"]),
        ([click("a", 0), click("b", 100, x=50)], ["pass", "pass"]),
        (
            [click("a", 0, pointer="touch"), click("b", 100, x=20, pointer="touch")],
            ["pass", "drop"],
        ),
        ([click(None, 0), click(None, 100)], ["pass", "pass"]),
        # A key that presses a button twice, and one whose button is gone.
        ([click("a", 0, isKey=True), click("a", 100, isKey=True)], ["pass", "drop"]),
        ([click("a", 0, isKey=True), click("b", 100, isKey=True)], ["pass", "pass"]),
        ([click("a", 0, isKey=True), click("b", 100, isKey=True, isGone=True)], ["pass", "drop"]),
        (
            [click("a", 0, isKey=True), press(" ", 100), press(" ", 700), press(" ", 1400)],
            ["pass", "drop", "lost", "pass"],
        ),
        ([click("a", 0, isKey=True), press("Enter", 700, on="cell")], ["pass", "pass"]),
        ([click("a", 0, isKey=True), press("Enter", 300, on="cell")], ["pass", "drop"]),
        ([click("a", 0, isKey=True), press("1", 300), press(" ", 400)], ["pass", "pass", "pass"]),
        ([click("a", 0, isKey=True), {"type": "pointerdown"}, press(" ", 99)], ["pass"] * 3),
        # A key that is held down, where it does not write.
        ([press("1", 0), press("1", 40, isRepeat=True)], ["pass", "drop"]),
        ([press("x", 0, on="input"), press("x", 40, on="input", isRepeat=True)], ["pass", "pass"]),
        ([press("Enter", 40, on="input", isRepeat=True)], ["drop"]),
        ([press("ArrowDown", 0), press("ArrowDown", 40, isRepeat=True)], ["pass", "pass"]),
        ([press("Enter", 0), press("Enter", 40, isRepeat=True)], ["pass", "drop"]),
        ([press(" ", 0), press(" ", 40, isRepeat=True)], ["pass", "drop"]),
        # A second Enter after one that took, or named, what was typed.
        (
            [{"type": "taken", "time": 0}, press("Enter", 500), press("Enter", 700)],
            ["pass", "drop", "pass"],
        ),
        ([{"type": "taken", "time": 0}, press("Enter", 500, hasText=True)], ["pass", "pass"]),
        # Keys of an input method.
        ([press("Enter", 0, isComposing=True)], ["stop"]),
    ]
    found = call_module("guards.js", JUDGE, [events for events, _ in cases])
    for (events, expected), verdicts in zip(cases, found, strict=True):
        assert verdicts == expected, events


def test_the_next_photo_gets_no_answer_before_it_is_looked_at_unless_a_person_is_fast(call_module):
    code = """({ createPace }, cases) => cases.map((steps) => {
      let now = 0;
      const pace = createPace(() => now);
      return steps.map(([step, time]) => [now = time, pace[step]()][1]);
    })"""
    slow = [["begin", 0], ["answer", 900], ["begin", 1000], ["getPause", 1100], ["getPause", 1400]]
    fast = [["begin", 0], ["answer", 400], ["begin", 500], ["slowDown", 520], ["getPause", 550]]
    found = call_module("guards.js", code, [slow, fast, fast[:3] + fast[4:]])
    assert [one[-1] for one in found] == [0, 550, 0]
    assert found[0][-2] == 200


def test_undo_says_which_answer_of_which_photo_came_back(call_module):
    cat, none, nothing = ("label", "cat"), ("none", ""), ("", "")
    cases = [
        (1, cat, nothing, "a.jpg is no longer cat"),
        (1, none, cat, "a.jpg is cat again"),
        (1, none, none, "a.jpg is none of these again"),
        (1, cat, ("skip", ""), "a.jpg is skipped again"),
        (20, cat, nothing, "20 photos are no longer cat"),
        (20, nothing, cat, "20 photos are cat again"),
        (20, None, nothing, "20 answers"),
        (20, cat, None, "20 answers"),
    ]

    def show(answer):
        return answer and dict(zip(("decision", "label"), answer, strict=True))

    undone = [{"count": n, "was": show(was), "now": show(now)} for n, was, now, _ in cases]
    code = "({ describeUndone }, undone) => undone.map((one) => describeUndone('a.jpg', one))"
    assert call_module("words.js", code, undone) == [said for *_, said in cases]
    classes = {name: {"name": name, "description": "", "key": ""} for name in ("cat", "dog")}
    lynx, described = {"name": "lynx"}, {**classes["dog"], "description": "barks"}
    changes = [
        ([lynx], [classes["cat"]], "cat is a class again"),
        ([classes["cat"], lynx], [classes["cat"]], "lynx is no longer a class"),
        ([described], [classes["dog"]], "the description of dog"),
        ([lynx], [lynx], ""),
    ]
    code = "({ describeChanged }, pairs) => pairs.map((pair) => describeChanged(...pair))"
    found = call_module("words.js", code, [pair[:2] for pair in changes])
    assert found == [said for *_, said in changes]


NAMES = ["dress", "dress shirt", "forest", "pikeperch", "Maße", "STRASSE", "fish", "glass", "ＡＢ"]


def test_one_enter_on_half_a_name_neither_labels_nor_adds(call_module):
    cases = {
        "for": ("mark", "forest"),
        "FOREST ": ("take", "forest"),
        "pike": ("mark", "pikeperch"),
        "perch": ("add", "perch"),  # "pikeperch" only contains it.
        "dre": ("guess", "dress"),
        "dress": ("take", "dress"),
        "sky": ("add", "sky"),
        "Masse": ("take", "Maße"),  # Other spellings.
        "Straße": ("take", "STRASSE"),
        "ﬁsh": ("take", "fish"),
        "GLAß": ("take", "glass"),
        "ab": ("take", "ＡＢ"),
    }
    code = "({ interpret }, typed, names) => typed.map((text) => interpret(text, names))"
    found = call_module("names.js", code, list(cases), NAMES)
    assert [(one["kind"], one["name"]) for one in found] == list(cases.values())


def test_the_page_compares_names_of_classes_as_the_server_does(call_module):
    letters = [chr(i) for i in range(0x30000) if unicodedata.category(chr(i)) not in ("Cn", "Cs")]
    names = [
        *(a for a in letters if a.strip() and fold_class(a) != a),
        *("Ünï Çodé", "a\u0308", "0.0", "-12.00", "1.5", "a  b", "ς", "ΟΔΟΣ", "ＡＢ　Ｃ"),
    ]
    fold = "({ fold }, names) => names.map(fold)"
    found = call_module("names.js", fold, names)
    folded = call_module("names.js", fold, [fold_class(name) for name in names])
    assert [n for n, a, b in zip(names, found, folded, strict=True) if a != b] == []
    assert len(set(found)) == len({fold_class(name) for name in names})


def test_tab_completes_as_far_as_all_classes_agree(call_module):
    cases = {"fo": "forest", "dr": "dress", "dress": "dress", "dress ": "dress ", "sky": "sky"}
    code = "({ complete }, typed, names) => typed.map((text) => complete(text, names))"
    assert call_module("names.js", code, list(cases), NAMES) == list(cases.values())


def test_rows_of_photos_below_the_titles_of_their_sections(call_module):
    sections = [{"title": "a", "items": [0] * 5}, {"title": "b", "items": [0] * 2}]
    sizes = {"columns": 3, "height": 100, "head": 40, "gap": 10}
    moves = {(0, 1): 3, (2, 1): 4, (3, 1): 5, (6, -1): 4, (1, 9): 6, (1, -1): 1}
    box = {"left": 105, "right": 115, "top": 60, "bottom": 200}
    code = """({ lay, findBeside, findInside }, sections, sizes, moves, box) => {
      const found = lay(sections, sizes);
      const beside = moves.map(([place, steps]) => findBeside(found, place, steps));
      return { ...found, beside, inside: findInside(found, box, 100, 10) };
    }"""
    found = call_module("layout.js", code, sections, sizes, list(moves), box)
    assert found["rowOf"] == [1, 1, 1, 2, 2, 4, 4]
    assert found["height"] == 2 * 40 + 3 * 110
    assert [row["top"] for row in found["rows"]] == [0, 40, 150, 260, 300]
    assert found["beside"] == list(moves.values())
    assert found["inside"] == [1, 4]


def test_a_photo_that_is_enlarged_stays_under_the_pointer_and_in_its_frame(call_module):
    code = """({ zoomBy, panBy }) => {
      const near = zoomBy({ scale: 1, x: 0, y: 0 }, 2, { x: 0.25, y: 0 });
      const moved = panBy(near, -9, 0.1);
      return [near, moved, zoomBy(moved, 0.1)];
    }"""
    assert call_module("zoom.js", code) == [
        {"scale": 2, "x": -0.25, "y": 0},
        {"scale": 2, "x": -0.5, "y": 0.1},
        {"scale": 1, "x": 0, "y": 0},
    ]


def test_photos_are_listed_by_class_with_the_least_certain_first_and_answers_last(call_module):
    rows = [  # Name, decision, label, confidence, copies.
        ("a0", "label", "a", 0, -1),
        ("a1", "", "a", 0.9, 7),
        ("a2", "", "a", 0.4, -1),
        ("none", "none", "", 0, -1),
        ("skipped", "skip", "", 0, -1),
        ("new", "", "", 0, 7),
        ("n0", "label", "None of these", 0, -1),
    ]
    keys = ("name", "decision", "label", "confidence", "copies", "image")
    photos = [dict(zip(keys, (*row, i), strict=True)) for i, row in enumerate(rows)]
    every = {"file": "", "label": "", "below": "", "kind": ""}
    filters = [{}, {"kind": "open"}, {"below": "0.5"}, {"file": "A"}, {"kind": "copies"}]
    code = """({ arrange }, photos, names, filters) => filters.map((one) =>
      arrange(photos, names, one).filter(({ items }) => items.length).map(({ title, items }) =>
        [title, ...items.map(({ name }) => name)]))"""
    names = ["a", "None of these"]
    found = call_module("listing.js", code, photos, names, [every | one for one in filters])
    assert found == [
        [
            ["a · 3", "a2", "a1", "a0"],
            ["None of these · 1", "n0"],
            ["No class yet · 1", "new"],
            ["None of these · 1", "none"],
            ["Skipped · 1", "skipped"],
        ],
        [["a · 2", "a2", "a1"], ["No class yet · 1", "new"]],
        [["a · 1", "a2"], ["No class yet · 1", "new"]],
        [["a · 3", "a2", "a1", "a0"]],
        [["Look-alikes · 2", "a1", "new"]],
    ]
