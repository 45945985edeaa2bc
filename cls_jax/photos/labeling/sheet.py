"""A table as an Excel workbook: in many countries, Excel puts a line of a CSV file into one cell.

Only what such a file needs, by ECMA-376: one sheet of texts and numbers. A text is never a formula.
"""

import io
import re
import zipfile
from collections.abc import Iterable, Sequence
from xml.sax.saxutils import escape

MEDIA_TYPE = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
_MAX_ROWS = 1_048_576  # Excel opens no more.
_NOT_IN_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_TYPES = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_START = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>\n'
_FILES = {
    "[Content_Types].xml": f'<Types xmlns="{_PACKAGE}/content-types">'
    '<Default Extension="rels" ContentType="application/vnd.openxmlformats-package.relationships'
    '+xml"/><Default Extension="xml" ContentType="application/xml"/>'
    f'<Override PartName="/xl/workbook.xml" ContentType="{_TYPES}.sheet.main+xml"/>'
    f'<Override PartName="/xl/sheet.xml" ContentType="{_TYPES}.worksheet+xml"/></Types>',
    "_rels/.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="r1" Type="{_OFFICE}/officeDocument" Target="xl/workbook.xml"/>'
    "</Relationships>",
    "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{_PACKAGE}/relationships">'
    f'<Relationship Id="r1" Type="{_OFFICE}/worksheet" Target="sheet.xml"/></Relationships>',
    "xl/workbook.xml": f'<workbook xmlns="{_MAIN}" xmlns:r="{_OFFICE}"><sheets>'
    '<sheet name="Photos" sheetId="1" r:id="r1"/></sheets></workbook>',
}


def write_sheet(rows: Iterable[Sequence[str | float]]) -> bytes:
    """An .xlsx file with rows of texts and numbers, at most as many as Excel opens."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in _FILES.items():
            archive.writestr(name, _START + text)
        with archive.open("xl/sheet.xml", "w") as sheet:
            sheet.write(f'{_START}<worksheet xmlns="{_MAIN}"><sheetData>'.encode())
            for _, row in zip(range(_MAX_ROWS), rows, strict=False):
                sheet.write(f"<row>{''.join(map(_write_cell, row))}</row>".encode())
            sheet.write(b"</sheetData></worksheet>")
    return buffer.getvalue()


def _write_cell(value: str | float) -> str:
    if isinstance(value, float):
        return f"<c><v>{value}</v></c>"
    text = escape(_NOT_IN_XML.sub("\ufffd", value))
    return f'<c t="inlineStr"><is><t xml:space="preserve">{text}</t></is></c>'
