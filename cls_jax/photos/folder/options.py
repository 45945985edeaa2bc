"""What a user says about a folder where it can be read in several ways."""

from typing import Any, NamedTuple

CLASSES, SPLITS = "classes", "splits"


class FolderOptions(NamedTuple):
    """How to read a folder. "" where its content decides."""

    file_column: str = ""  # Header, or number from 1, of the label table's column of files.
    label_column: str = ""  # The same of the column of classes.
    # Whether folders called train, val or test are classes ("classes") or hold some ("splits").
    layout: str = ""
    source_column: str = ""  # As the other columns, of what images come from.
    source_pattern: str = ""  # A regular expression of names, whose group is the source.

    def to_arguments(self) -> list[str]:
        """The options of a command, as typed."""
        names = [f"--{field.replace('_', '-')}" for field in self._fields]
        pairs = zip(names, self, strict=True)
        return [word for name, value in pairs if value for word in (name, value)]


AUTOMATIC = FolderOptions()


def get_folder_options(data_config: Any) -> FolderOptions:
    """The options in the section `data` of a configuration."""
    return FolderOptions(
        file_column=data_config.file_column,
        label_column=data_config.label_column,
        layout=data_config.layout,
        source_column=data_config.source_column,
        source_pattern=data_config.source_pattern,
    )
