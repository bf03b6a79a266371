"""From evidence to report: the report with the highest expected utility under what a model saw."""
