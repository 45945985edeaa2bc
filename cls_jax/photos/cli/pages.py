"""The documentation, which every installation brings: beside the package, or in the wheel."""

import difflib
import importlib.metadata
import pathlib

from cls_jax.errors import UserError

_CLONE = pathlib.Path(__file__).parents[3] / "docs"


def find_pages() -> dict[str, pathlib.Path]:
    """The pages by name, such as "own_images", of a clone or of an installed wheel."""
    files = sorted(_CLONE.glob("*.md"))
    if not files:
        installed = importlib.metadata.files("cls-jax") or []
        files = [pathlib.Path(str(file.locate())) for file in installed if file.suffix == ".md"]
        files = sorted(file for file in files if file.parent.name == "cls-jax")
    return {file.stem: file for file in files}


def read_page(name: str) -> str:
    """A page of the documentation, in Markdown. Raises a UserError if there is none."""
    pages = find_pages()
    name = name.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        close = [page for page in pages if page.startswith(name)]
        close = close or difflib.get_close_matches(name, pages, n=1, cutoff=0.55)
        guess = f"did you mean {close[0]}? There are" if close else "choose one of"
        raise UserError(f"There is no page {name:.100}: {guess} {', '.join(pages)}.")
    return pages[name].read_text("utf-8")
