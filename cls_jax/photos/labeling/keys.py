"""Which number key stands for which class: the same one in all views."""

from collections.abc import Mapping, Sequence

KEYS = "123456789"


def assign_keys(
    class_names: Sequence[str], chosen: Mapping[str, str], former: Mapping[str, str]
) -> dict[str, str]:
    """The keys of those classes that have one, of which there are nine.

    A class has the key that a person has `chosen` for it, else its `former` one. Otherwise it gets
    the first that is free. If two classes claim the same key, the first class has it.
    """
    keys: dict[str, str] = {}
    for wanted in (chosen, former):
        for name in class_names:
            key = wanted.get(name)
            if key and key not in keys.values():
                keys.setdefault(name, key)
    free = (key for key in KEYS if key not in keys.values())
    rest = [name for name in class_names if name not in keys]
    return keys | dict(zip(rest, list(free), strict=False))
