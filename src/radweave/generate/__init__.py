"""From images to reports: one study, files, or a split."""
