"""The commands that made a run."""

import json
import sys

import jax

from cls_jax.runs.sessions import SESSIONS, read_sessions, record_session


def test_sessions_add_up(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/usr/bin/python3", "main.py", "--workdir", "a b"])
    record_session(tmp_path, 0)
    record_session(tmp_path, 100)
    first, second = read_sessions(tmp_path)
    assert first["command"] == "python main.py --workdir 'a b'"
    assert (first["first_step"], second["first_step"]) == (0, 100)
    assert first["versions"]["jax"] == jax.__version__
    assert first["started"] <= second["started"]


def test_damaged_lines_are_left_out_and_do_not_come_back(tmp_path):
    (tmp_path / SESSIONS).write_text('{"command": "a"}\n[1]\n{"comm')
    assert read_sessions(tmp_path) == [{"command": "a"}]
    record_session(tmp_path, 5)
    lines = (tmp_path / SESSIONS).read_text().splitlines()
    assert [json.loads(line).get("first_step") for line in lines] == [None, 5]


def test_no_sessions(tmp_path):
    assert read_sessions(tmp_path) == []
    (tmp_path / SESSIONS).write_bytes(b"\xff\xfe")
    assert read_sessions(tmp_path) == []
