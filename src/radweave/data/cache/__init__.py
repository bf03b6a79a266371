"""Decoded images and prepared scans, kept and checked."""
