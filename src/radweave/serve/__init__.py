"""Serving users: from image files to a report."""
