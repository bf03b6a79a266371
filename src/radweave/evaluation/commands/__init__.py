"""What the verbs evaluate, compare and label do."""
