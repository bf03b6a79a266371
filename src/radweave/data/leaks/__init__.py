"""What tells that two splits share a picture, a patient or a report."""
