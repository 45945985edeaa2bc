"""What a user says about a folder where it can be read in several ways."""

from typing import Any, NamedTuple


class FolderOptions(NamedTuple):
    """How to read a folder. "" where its content decides."""

    file_column: str = ""  # Header, or number from 1, of the label table's column of files.
    label_column: str = ""  # The same of the column of classes.


AUTOMATIC = FolderOptions()


def get_folder_options(data_config: Any) -> FolderOptions:
    """The options in the section `data` of a configuration."""
    return FolderOptions(
        file_column=data_config.file_column,
        label_column=data_config.label_column,
    )
