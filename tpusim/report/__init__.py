from tpusim.report.page import page, write_report

__all__ = ["page", "write_report"]
