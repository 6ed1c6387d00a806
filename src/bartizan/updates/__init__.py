"""Client updates of any container, checked once and read in blocks of columns."""

from bartizan.updates.build import Noise, combine
from bartizan.updates.column_pass import ColumnPass, Progress
from bartizan.updates.columns import UpdateRows
from bartizan.updates.parse import parse_updates
from bartizan.updates.updates import Updates

__all__ = ["ColumnPass", "Noise", "Progress", "UpdateRows", "Updates", "combine", "parse_updates"]
