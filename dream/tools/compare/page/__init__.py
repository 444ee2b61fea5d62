"""The report: one HTML file that needs no network, its pictures and its figures."""

from dream.tools.compare.page.folder import check
from dream.tools.compare.page.write import write

__all__ = ["check", "write"]
