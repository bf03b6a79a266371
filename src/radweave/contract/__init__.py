"""What every method speaks, and nothing else: the model as the engine sees it, and the sizes that presets share."""
