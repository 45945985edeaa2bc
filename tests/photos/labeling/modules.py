"""Calls functions of the page's JavaScript that draw nothing: in Node, or else in a browser."""

import json
import pathlib
import shutil
import subprocess

import cls_jax.photos.labeling

PAGE = pathlib.Path(cls_jax.photos.labeling.__file__).parent / "page"
NODE = shutil.which("node")
_CALL = "async (file, code, given) => (0, eval)(code)(await import(file), ...given) ?? null"
_IN_NODE = f"""
const asked = JSON.parse((await import("node:fs")).readFileSync(0));
console.log(JSON.stringify(await ({_CALL})(...asked)));
"""


def call_in_node(folder: pathlib.Path, name: str, code: str, *given):
    """What a JavaScript function returns for the exports of a file of the page and more values."""
    copy = shutil.copytree(PAGE, folder, dirs_exist_ok=True)
    (copy / "package.json").write_text('{"type": "module"}')  # Older Nodes do not see it.
    outcome = subprocess.run(
        [NODE, "--input-type=module", "--eval", _IN_NODE],
        input=json.dumps([(copy / name).as_uri(), code, given]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stderr
    return json.loads(outcome.stdout)


def call_in_browser(browser, name: str, code: str, *given):
    """The same in a window that shows nothing."""

    def answer(route):
        path = PAGE / route.request.url.rpartition("/")[2]
        if path.is_file():
            route.fulfill(path=path)
        else:
            route.fulfill(body="", content_type="text/html")

    with browser.new_page() as window:
        window.route("**/*", answer)
        window.goto("http://modules.test/")
        return window.evaluate(f"asked => ({_CALL})(...asked)", [f"/{name}", code, given])
