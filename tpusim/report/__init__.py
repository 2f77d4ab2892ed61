from tpusim.report.notebook import summary_html
from tpusim.report.page import page, write_report
from tpusim.report.views import Views

__all__ = ["Views", "page", "summary_html", "write_report"]
