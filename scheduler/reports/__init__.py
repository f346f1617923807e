"""A result for somebody else's programs: a file for each format, each a pure function of a `Report`."""

from scheduler.reports.files import ReportFiles
from scheduler.reports.report import Report, Standing, report_of, result_document

__all__ = ["Report", "ReportFiles", "Standing", "report_of", "result_document"]
