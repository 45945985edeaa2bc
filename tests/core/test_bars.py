"""Progress that nobody watches: a log keeps one line a minute."""

import sys

import pytest

from cls_jax.bars import show_progress


@pytest.mark.parametrize(("seconds", "lines"), [(59, 0), (605, 10)])
def test_a_file_gets_a_line_a_minute(seconds, lines, monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    with show_progress(total=10 * seconds, desc="Features") as bar:
        for _ in range(10 * seconds):
            now[0] += 0.1
            bar.update()
    found = capsys.readouterr().err
    assert "\r" not in found
    assert len(found.splitlines()) in (lines, lines + 1)  # The last one is that of the end.
    assert all(line.startswith("Features: ") for line in found.splitlines())
