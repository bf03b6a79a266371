"""Reading images, volumes and data sets."""
