"""The report: one HTML file that needs no network, its pictures and its figures."""

from dream.compare.page.folder import check
from dream.compare.page.write import write

__all__ = ["check", "write"]
