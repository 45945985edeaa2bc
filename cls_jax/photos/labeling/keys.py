"""Which number key stands for which class: the same one in all views."""

from collections.abc import Mapping, Sequence

KEYS = "123456789"
NO_KEY = "-"  # Of a class that came when all keys were given.


def assign_keys(
    class_names: Sequence[str], chosen: Mapping[str, str], former: Mapping[str, str]
) -> dict[str, str]:
    """The keys of those classes that have one, of which there are nine.

    A class has the key that a person has `chosen` for it, else its `former` one, which may be
    `NO_KEY`. Otherwise it gets the first that is free, but a class whose name is a digit gets only
    this one. If two classes claim the same key, the first class has it, by its place in `former`.
    """
    keys: dict[str, str] = {}
    places = {name: place for place, name in enumerate(former)}
    order = sorted(class_names, key=lambda name: places.get(name, len(places)))
    for wanted in (chosen, former, {key: key for key in KEYS}):
        for name in order:
            key = wanted.get(name)
            if key and (key == NO_KEY or key not in keys.values()):
                keys.setdefault(name, key)
    free = [key for key in KEYS if key not in keys.values()]
    rest = [name for name in class_names if name not in keys and name not in f"0{KEYS}"]
    keys |= dict(zip(rest, free, strict=False))
    return {name: key for name, key in keys.items() if key != NO_KEY}
