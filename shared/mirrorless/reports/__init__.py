"""Reports: one self-contained HTML page with tables and plots, from plain values."""
