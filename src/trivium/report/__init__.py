"""Collect the results of all stages of a run into report.json and a self-contained report.html."""
