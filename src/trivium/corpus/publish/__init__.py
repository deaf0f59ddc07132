"""Publishing: finished pieces become one output, with its funnel, statistics and reports."""
