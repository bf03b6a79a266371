"""What scores a report."""
