"""Sources of evidence that several methods have: how studies look, and what training studies that look alike say."""
