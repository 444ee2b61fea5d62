"""The report: one HTML file that needs no network, its pictures and its figures."""

from dream.tools.compare.page.files import check, write

__all__ = ["check", "write"]
